// `onceonly webhooks`: looks at endpoints, deliveries and their attempts, sends deliveries again, and disables or enables endpoints. The program
// sends nothing itself: that is for a sender, which runs in the service.

import { systemClock } from '../core/clock.ts'
import { webhooksByHand } from '../webhooks.ts'
import type { DeliveryFilter, DeliveryState, WebhookAttempt, WebhookDelivery, WebhookEndpoint } from '../webhooks.ts'
import { chosen, choice, count, flag, parseCommand, text, wrong, reason as reasonText } from './arguments.ts'
import type { Option } from './arguments.ts'
import { moment, oneLine, paint, span, table } from './words.ts'
import { storeHelp, storeOptions, withStore } from './with-store.ts'

const help = `onceonly webhooks: look at webhooks, send them again, and disable endpoints

Usage: onceonly webhooks list [--endpoint ID] [--topic TOPIC] [--type TYPE] [--state STATE] [--from TIME] [--until TIME] [--limit N]
       onceonly webhooks endpoints [--topic TOPIC] [--state active|disabled] [--limit N]
       onceonly webhooks show EVENT [--reveal]
       onceonly webhooks replay [--id EVENT] [--endpoint ID] [--topic TOPIC] [--type TYPE] [--state STATE] [--from TIME]
                        [--until TIME] [--limit N] --reason TEXT
       onceonly webhooks disable ENDPOINT --reason TEXT
       onceonly webhooks enable ENDPOINT --reason TEXT

${storeHelp}
  --state STATE  of deliveries: pending, delivered or failed
  --topic, --type, --endpoint, --id
                 only those of this topic, type, endpoint or event
  --from, --until
                 only events that were added from this time on, or before it: 2026-11-16T12:00:00Z
  --limit N      so many at the most, the oldest first; 50 unless given, and 1000 for replay
  --reason TEXT  why, for the people who look at it later. It goes into the audit trail: onceonly keys show TOPIC EVENT, and
                 onceonly keys show webhooks ENDPOINT
  --reveal       show the body, and what the endpoints answered, too. They may hold a customer's secrets

replay is a request: a sender that runs sends the deliveries within about a second, with their ids and a new schedule. Without --id and
--state it takes those that failed.
What is for a disabled endpoint waits, and is sent when the endpoint is enabled.
show, replay, disable and enable end with 3 when there is nothing like that.

Example: onceonly webhooks replay --topic acme --from 2026-11-16T08:00:00Z --reason "their outage" --store postgres://db.example/app
`

type Part = (args: readonly string[]) => Promise<number>
const parts = {
  endpoints,
  list,
  show,
  replay,
  disable: change('disable'),
  enable: change('enable'),
} as const satisfies Record<string, Part>

export async function webhooks(args: readonly string[]): Promise<number> {
  const [part, ...rest] = args
  if (part === '--help' || part === '-h') {
    console.log(help.trimEnd())
    return 0
  }
  return parts[chosen('webhooks', Object.keys(parts) as (keyof typeof parts)[], part)](rest)
}

// A screen.
const pageLimit = 50
const replayLimit = 1_000

/** A moment, as ISO 8601 writes it, with its offset. */
const time: Option<number> = {
  type: 'string',
  expected: 'a time such as 2026-11-16T12:00:00Z',
  parse(given) {
    const atMs = /^\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d))?$/.test(given)
      ? Date.parse(given)
      : Number.NaN
    return Number.isNaN(atMs) ? undefined : atMs
  },
  json: { type: 'string', format: 'date-time' },
}

const states = ['pending', 'delivered', 'failed'] as const satisfies readonly DeliveryState[]
const filterOptions = {
  endpoint: text,
  topic: text,
  type: text,
  state: choice(...states),
  from: time,
  until: time,
  limit: count,
}

async function endpoints(args: readonly string[]): Promise<number> {
  const command = 'webhooks endpoints'
  const options = { ...storeOptions, topic: text, state: choice('active', 'disabled'), limit: count }
  const parsed = parseCommand({ command, help, options, args })
  if (!parsed) return 0
  const { store: url, json, topic, state, limit = pageLimit } = parsed.values
  return withStore(command, url, async ({ store }) => {
    const filter = {
      ...(topic !== undefined && { topic }),
      ...(state !== undefined && { state: state as WebhookEndpoint['state'] }),
    }
    // One more than requested shows whether there are more.
    const webhooks = webhooksByHand(store)
    const found = await webhooks.endpoints.list({ ...filter, limit: limit + 1 })
    const shown: ListedEndpoint[] = []
    for (const endpoint of found.slice(0, limit)) {
      const pending = { endpoint: endpoint.id, state: 'pending', limit: waitingMax } as const
      shown.push({ ...endpoint, waiting: await webhooks.deliveries.count(pending) })
    }
    if (json) console.log(JSON.stringify({ endpoints: shown, more: found.length > limit }, undefined, 2))
    else printEndpoints(shown, found.length > limit)
    return 0
  })
}

async function list(args: readonly string[]): Promise<number> {
  const command = 'webhooks list'
  const parsed = parseCommand({ command, help, options: { ...storeOptions, ...filterOptions }, args })
  if (!parsed) return 0
  const { store: url, json, limit = pageLimit, ...given } = parsed.values
  return withStore(command, url, async ({ store }) => {
    const found = await webhooksByHand(store).deliveries.list({ ...filterOf(given), limit: limit + 1 })
    const shown = found.slice(0, limit)
    if (json) console.log(JSON.stringify({ deliveries: shown, more: found.length > limit }, undefined, 2))
    else printDeliveries(shown, found.length > limit)
    return 0
  })
}

async function show(args: readonly string[]): Promise<number> {
  const command = 'webhooks show'
  const options = { ...storeOptions, reveal: flag }
  const parsed = parseCommand({ command, help, options, operands: ['EVENT'], args })
  if (!parsed) return 0
  const { store: url, json, reveal } = parsed.values
  const [id] = parsed.operands as [string]
  return withStore(command, url, async ({ store }) => {
    const { deliveries } = webhooksByHand(store)
    const found: Shown[] = []
    for (const delivery of await deliveries.list({ id, limit: replayLimit })) {
      const attempts = await deliveries.attempts(id, delivery.endpoint)
      found.push({ delivery, attempts: reveal ? attempts : attempts.map(withoutAnswer) })
    }
    if (found.length === 0) return notFound(`webhook ${id}`)
    const body = reveal ? Buffer.from((await deliveries.body(id)) ?? '').toString() : undefined
    if (json) console.log(JSON.stringify({ deliveries: found, ...(body !== undefined && { body }) }, undefined, 2))
    else for (const line of describeShown(found, body)) console.log(line)
    return 0
  })
}

async function replay(args: readonly string[]): Promise<number> {
  const command = 'webhooks replay'
  const options = { ...storeOptions, ...filterOptions, id: text, reason: reasonText }
  const parsed = parseCommand({ command, help, options, args })
  if (!parsed) return 0
  const { store: url, json, limit = replayLimit, reason, ...given } = parsed.values
  const filter = filterOf(given)
  if (Object.keys(filter).length === 0) {
    throw wrong(command, 'which? Give --id, --endpoint, --topic, --type, --state, --from or --until')
  }
  if (reason === undefined) throw wrong(command, 'why? Give --reason TEXT, for the people who look at it later')
  return withStore(command, url, async ({ store }) => {
    const replayed = await webhooksByHand(store).deliveries.replay({ ...filter, limit }, reason)
    if (json) console.log(JSON.stringify({ replayed }))
    else if (replayed > 0)
      console.log(`${replayed} to be sent again: a sender that runs sends them within about a second.`)
    return replayed > 0 ? 0 : notFound('delivery like that')
  })
}

function change(name: 'disable' | 'enable'): Part {
  const command = `webhooks ${name}`
  return async (args) => {
    const parsed = parseCommand({
      command,
      help,
      options: { ...storeOptions, reason: reasonText },
      operands: ['ENDPOINT'],
      args,
    })
    if (!parsed) return 0
    const { store: url, json, reason } = parsed.values
    const [id] = parsed.operands as [string]
    if (reason === undefined) throw wrong(command, 'why? Give --reason TEXT, for the people who look at it later')
    return withStore(command, url, async ({ store }) => {
      const isChanged = await webhooksByHand(store).endpoints[name](id, reason)
      if (!isChanged) return notFound(`endpoint ${id}`)
      console.log(
        json
          ? JSON.stringify({ endpoint: id, state: name === 'disable' ? 'disabled' : 'active' })
          : `${oneLine(id)} is ${name}d.`,
      )
      return 0
    })
  }
}

type Given = { readonly [Name in 'id' | 'endpoint' | 'topic' | 'type' | 'state']?: string | undefined } & {
  readonly from?: number | undefined
  readonly until?: number | undefined
}

function filterOf({ id, endpoint, topic, type, state, from, until }: Given): DeliveryFilter {
  return {
    ...(id !== undefined && { id }),
    ...(endpoint !== undefined && { endpoint }),
    ...(topic !== undefined && { topic }),
    ...(type !== undefined && { type }),
    ...(state !== undefined && { state: state as DeliveryState }),
    ...(from !== undefined && { fromMs: from }),
    ...(until !== undefined && { untilMs: until }),
  }
}

function notFound(what: string): number {
  console.error(`onceonly: there is no ${oneLine(what)}.`)
  return 3
}

/** What an endpoint said can be a customer's secret. */
function withoutAnswer({ response: _response, ...rest }: WebhookAttempt): Omit<WebhookAttempt, 'response'> {
  return rest
}

interface Shown {
  readonly delivery: WebhookDelivery
  readonly attempts: readonly (Omit<WebhookAttempt, 'response'> & { readonly response?: string })[]
}

function printTable(head: readonly string[], rows: readonly (readonly string[])[]): void {
  const [first, ...lines] = table(head, rows)
  console.log(paint('strong', first!))
  for (const line of lines) console.log(line)
}

interface ListedEndpoint extends WebhookEndpoint {
  /** Pending deliveries, counted up to `waitingMax`. */
  readonly waiting: number
}

// Enough to tell an endpoint that is behind from one that is not.
const waitingMax = 1_000

function printEndpoints(found: readonly ListedEndpoint[], isMore: boolean): void {
  if (found.length === 0) return console.log('No such endpoint.')
  const nowMs = systemClock.now()
  const rows = found.map(({ id, topic, url, types, state, disabledReason, failingSinceMs, waiting }) => [
    id,
    topic,
    url,
    types.join(',') || 'all',
    state === 'active' ? state : `${state}: ${disabledReason ?? '-'}`,
    failingSinceMs === undefined ? '-' : moment(failingSinceMs, nowMs),
    waiting < waitingMax ? String(waiting) : `${waitingMax} or more`,
  ])
  printTable(['ID', 'TOPIC', 'URL', 'TYPES', 'STATE', 'FAILING SINCE', 'WAITING'], rows)
  if (isMore) console.log('\nThere are more: --limit, --topic and --state choose.')
}

function printDeliveries(found: readonly WebhookDelivery[], isMore: boolean): void {
  if (found.length === 0) return console.log('No such delivery.')
  const nowMs = systemClock.now()
  const rows = found.map(({ id, endpoint, topic, type, state, attempts, status, addedAtMs, dueAtMs }) => [
    id,
    endpoint,
    topic,
    type,
    state,
    String(attempts),
    String(status ?? '-'),
    moment(addedAtMs, nowMs),
    dueAtMs === undefined ? '-' : moment(dueAtMs, nowMs),
  ])
  printTable(['EVENT', 'ENDPOINT', 'TOPIC', 'TYPE', 'STATE', 'ATTEMPTS', 'STATUS', 'ADDED', 'NEXT'], rows)
  if (isMore) console.log('\nThere are more: --limit, --endpoint, --topic, --type, --state, --from and --until choose.')
}

function describeShown(found: readonly Shown[], body: string | undefined): string[] {
  const nowMs = systemClock.now()
  const { id, topic, type, addedAtMs } = found[0]!.delivery
  return [
    paint('strong', oneLine(`${topic} / ${id}`)),
    `  Type      ${oneLine(type)}`,
    `  Added     ${moment(addedAtMs, nowMs)}`,
    ...(body === undefined ? [] : [`  Body      ${oneLine(body)}`]),
    ...found.flatMap(({ delivery, attempts }) => [
      '',
      paint('strong', oneLine(`to ${delivery.endpoint}: ${delivery.state}`)),
      ...attempts.map(({ number, atMs, durationMs, status, failure, response }) => {
        const said = response === undefined ? '' : ` ${oneLine(response)}`
        return `  ${number}. ${moment(atMs, nowMs)}, ${span(durationMs)}: ${oneLine(String(status ?? failure))}${said}`
      }),
      ...(delivery.dueAtMs === undefined ? [] : [`  next ${moment(delivery.dueAtMs, nowMs)}`]),
    ]),
  ]
}

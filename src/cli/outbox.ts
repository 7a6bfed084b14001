// `onceonly outbox`: how far behind the relays are, what they could not publish, letting them try it again, and removing it. The program publishes
// nothing itself: that is for a relay, which has the broker.

import { systemClock } from '../core/clock.ts'
import { outboxByHand } from '../messages/outbox.ts'
import type { DeadLetter, DeadLetterFilter, HeldState, RelayStatus } from '../messages/outbox.ts'
import { unsentCountedMax } from '../messages/relay.ts'
import { chosen, choice, count, flag, parseCommand, text, wrong, reason as reasonText } from './arguments.ts'
import { moment, oneLine, paint, span, table } from './words.ts'
import { storeHelp, storeOptions, withStore } from './with-store.ts'

const help = `onceonly outbox: see how far behind an outbox is, and what its relays could not publish

Usage: onceonly outbox status
       onceonly outbox list [--state STATE] [--topic TOPIC] [--key KEY] [--type TYPE] [--limit N] [--reveal]
       onceonly outbox redrive [--id ID] [--topic TOPIC] [--key KEY] [--type TYPE] [--state STATE] [--limit N] [--all]
                        --reason TEXT
       onceonly outbox discard [--id ID] [--topic TOPIC] [--key KEY] [--type TYPE] [--state STATE] [--limit N] [--all]
                        --reason TEXT

${storeHelp}
  --state STATE  only parked (its key waits behind it), dead (it was skipped, and its key went on) or waiting (it is tried again, or waits
                 behind another). parked and dead unless given
  --topic, --key, --type, --id
                 only those of this topic, key or type, or with this id
  --limit N      so many at the most, the oldest first; 50 unless given, and 1000 for redrive and discard
  --all          all that are parked or dead
  --reason TEXT  why, for the people who look at it later. It goes into the audit trail: onceonly keys show TOPIC ID
  --reveal       show why the broker refused them, too. What it says may hold a customer's secrets

redrive is a request: a relay that runs tries the rows again within about a second, with their tries forgotten. A parked key leaves in its
order. A dead letter arrives after those that overtook it.
discard removes rows that are never to be sent. A parked key goes on without them.
Both end with 3 when there is no such row.

Example: onceonly outbox redrive --topic orders --reason "the topic exists now" --store postgres://db.example/app
`

type Part = (args: readonly string[]) => Promise<number>
const parts = { status, list, redrive: change('redrive'), discard: change('discard') } as const satisfies Record<
  string,
  Part
>

export async function outbox(args: readonly string[]): Promise<number> {
  const [part, ...rest] = args
  if (part === '--help' || part === '-h') {
    console.log(help.trimEnd())
    return 0
  }
  return parts[chosen('outbox', Object.keys(parts) as (keyof typeof parts)[], part)](rest)
}

const states = ['waiting', 'parked', 'dead'] as const satisfies readonly HeldState[]
// A screen.
const pageLimit = 50
const changeLimit = 1_000

async function status(args: readonly string[]): Promise<number> {
  const command = 'outbox status'
  const parsed = parseCommand({ command, help, options: storeOptions, args })
  if (!parsed) return 0
  const { store: url, json } = parsed.values
  return withStore(command, url, async ({ store }) => {
    const found = await outboxByHand(store).status()
    if (json)
      console.log(JSON.stringify({ ...found, lagMs: found.lagMs ?? null, headOfLineMs: found.headOfLineMs ?? null }))
    else for (const line of describeStatus(found)) console.log(line)
    return 0
  })
}

function describeStatus({
  unsent,
  lagMs,
  blockedKeys,
  headOfLineMs,
  waiting,
  parked,
  dead,
  shards,
  shardsIdle,
}: RelayStatus): string[] {
  const aged = (number: number | string, ageMs: number | undefined): string =>
    ageMs === undefined ? String(number) : `${number}, the oldest added ${span(ageMs)} ago`
  const line = (label: string, content: string, wantsCare = false): string => {
    const whole = `${label.padEnd(12)} ${content}`
    return wantsCare ? paint('care', whole) : whole
  }
  const idle = shardsIdle === 0 ? '' : `, no relay works on ${shardsIdle} of them`
  return [
    line('Unsent', aged(unsent === unsentCountedMax ? `${unsent} or more` : unsent, lagMs)),
    line('Blocked keys', aged(blockedKeys, headOfLineMs), blockedKeys > 0),
    line('Waiting', `${waiting} rows, to be tried again or behind one that is`),
    line('Parked', String(parked), parked > 0),
    line('Dead', String(dead), dead > 0),
    line('Shards', `${shards}${idle}`, shardsIdle > 0),
  ]
}

const filterOptions = { state: choice(...states), topic: text, key: text, type: text, limit: count }

async function list(args: readonly string[]): Promise<number> {
  const command = 'outbox list'
  const options = { ...storeOptions, ...filterOptions, reveal: flag }
  const parsed = parseCommand({ command, help, options, args })
  if (!parsed) return 0
  const { store: url, json, reveal, limit = pageLimit, ...given } = parsed.values
  return withStore(command, url, async ({ store }) => {
    // One more than requested shows whether there are more.
    const found = await outboxByHand(store).deadLetters({ ...filterOf(given), limit: limit + 1 })
    const shown = found.slice(0, limit)
    if (json) {
      const letters = shown.map(({ reason, ...rest }) => (reveal ? { ...rest, reason } : rest))
      console.log(JSON.stringify({ letters, more: found.length > limit }, undefined, 2))
    } else printList(shown, found.length > limit, reveal)
    return 0
  })
}

const doneWords = {
  redrive: 'redriven: a relay that runs tries them within about a second',
  discard: 'discarded: they are never sent',
} as const

function change(name: keyof typeof doneWords): Part {
  const command = `outbox ${name}`
  return async (args) => {
    const options = { ...storeOptions, ...filterOptions, id: text, all: flag, reason: reasonText }
    const parsed = parseCommand({ command, help, options, args })
    if (!parsed) return 0
    const { store: url, json, all, limit = changeLimit, reason, ...given } = parsed.values
    const filter = filterOf(given)
    if (Object.keys(filter).length === 0 && !all) {
      throw wrong(
        command,
        'which? Give --id, --topic, --key, --type or --state, or --all for every parked and dead row',
      )
    }
    if (reason === undefined) throw wrong(command, 'why? Give --reason TEXT, for the people who look at it later')
    return withStore(command, url, async ({ store }) => {
      const changed = await outboxByHand(store)[name]({ ...filter, limit }, reason)
      if (json) console.log(JSON.stringify({ [name === 'redrive' ? 'redriven' : 'discarded']: changed }))
      else if (changed > 0) console.log(`${changed} ${doneWords[name]}.`)
      if (changed > 0) return 0
      console.error('onceonly: there is no such row.')
      return 3
    })
  }
}

type GivenFilter = { readonly [Name in 'id' | 'topic' | 'key' | 'type' | 'state']?: string | undefined }

function filterOf({ id, topic, key, type, state }: GivenFilter): DeadLetterFilter {
  return {
    ...(id !== undefined && { id }),
    ...(topic !== undefined && { topic }),
    ...(key !== undefined && { key }),
    ...(type !== undefined && { type }),
    ...(state !== undefined && { state: state as HeldState }),
  }
}

function printList(found: readonly DeadLetter[], isMore: boolean, reveal: true | undefined): void {
  if (found.length === 0) return console.log('No such row.')
  const nowMs = systemClock.now()
  const rows = found.map(({ id, topic, key, type, state, tries, failedAtMs, reason }) => [
    id,
    topic,
    key ?? '-',
    type,
    state,
    String(tries),
    failedAtMs === undefined ? '-' : moment(failedAtMs, nowMs),
    ...(reveal ? [oneLine(reason ?? '-')] : []),
  ])
  const head = ['ID', 'TOPIC', 'KEY', 'TYPE', 'STATE', 'TRIES', 'FAILED', ...(reveal ? ['WHY'] : [])]
  const [first, ...lines] = table(head, rows)
  console.log(paint('strong', first!))
  for (const line of lines) console.log(line)
  if (isMore) console.log('\nThere are more: --limit, --topic, --key and --type choose.')
}

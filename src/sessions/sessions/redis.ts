// Sessions on Redis: an attempt holds its number by lease, and settles it by token and fence, as a key does. A server that has lost
// everything knows no session, so nothing runs again. One that came back older than it was may run what it forgot.

import type { RedisArgument, RedisServers, ServerScript } from '../../clients/redis.ts'
import type { Key } from '../../core/key.ts'
import type { Claim, ClaimRequest, Fenced, Store, Verdict } from '../../core/store.ts'
import { inOrder, isWanted, shownState } from './ground.ts'
import type {
  ScopedFilter,
  ScopedSession,
  SessionGround,
  SessionInFull,
  SessionName,
  SessionSettings,
  ShownSession,
} from './ground.ts'
import {
  claimScript,
  closeScript,
  keepAliveScript,
  registerScript,
  showScript,
  writeScript,
} from './redis/decisions.lua.ts'
import { refusedBySession } from './rules.ts'
import type { AskedSession, NumberedRequest, SessionRefusalCode } from './rules.ts'

interface RedisSessions {
  readonly place: RedisServers
  readonly settings: SessionSettings
  nameOf(client: string): string
}

export function sessionsOnRedis(place: RedisServers, settings: SessionSettings): SessionGround {
  const { scope, leaseMs, tombstoneMs, window } = settings
  const on: RedisSessions = { place, settings, nameOf: (client) => keyOf(place, { scope, session: client }) }
  return {
    guarantee: 'claim-and-settle',
    schema: [],
    migrate: async () => {},
    async register(client) {
      const epoch = await place.run({
        script: registerScript,
        key: on.nameOf(client),
        values: words(leaseMs, tombstoneMs, window),
        what: `register the session ${client}`,
        executed: 'unknown',
      })
      return { epoch: Number(epoch) }
    },
    async keepAlive(asked) {
      const values = words(asked.epoch, leaseMs, tombstoneMs)
      await decided(on, asked, { script: keepAliveScript, values, verb: 'renew' })
    },
    async close(asked) {
      await decided(on, asked, { script: closeScript, values: words(asked.epoch, tombstoneMs), verb: 'close' })
    },
    show: (client) => showInFull(place, { scope, session: client }),
    // Redis removes a session by itself when its tombstone ends.
    sweep: async () => 0,
    storeFor: (asked) => storeOf(on, asked),
  }
}

const words = (...numbers: readonly number[]): string[] => numbers.map(String)

// A scope has no slash in a name, so that the first one ends it.
const beginningOf = ({ prefix }: RedisServers, scope: string): string =>
  `${prefix}:session:${scope.replaceAll('%', '%25').replaceAll('/', '%2F')}/`

const keyOf = (place: RedisServers, { scope, session }: SessionName): string => `${beginningOf(place, scope)}${session}`

function nameIn({ prefix }: RedisServers, key: string): SessionName {
  const from = prefix.length + ':session:'.length
  const slash = key.indexOf('/', from)
  const scope = key.slice(from, slash)
  return { scope: scope.replaceAll('%2F', '/').replaceAll('%25', '%'), session: key.slice(slash + 1) }
}

/** The sessions of all services. It looks through every name that there is, and remembers no more than it gives. */
export async function listOnRedis(place: RedisServers, filter: ScopedFilter): Promise<readonly ScopedSession[]> {
  const limit = filter.limit ?? 100
  const found: ScopedSession[] = []
  let after = filter.after
  for (;;) {
    const wanted = limit - found.length
    const names = await firstNames(place, { ...filter, ...(after && { after }), limit: wanted })
    for (const name of names) {
      const reply = await showReply(place, name, [])
      // Its tombstone has ended since.
      if (reply) found.push({ scope: name.scope, ...shownIn(name, reply) })
    }
    if (names.length < wanted || found.length >= limit) return found
    after = names.at(-1)!
  }
}

async function firstNames(
  place: RedisServers,
  filter: ScopedFilter & { readonly limit: number },
): Promise<readonly SessionName[]> {
  const { scope, begins = '', limit } = filter
  // What the server can leave out does not come here.
  const beginning = scope === undefined ? `${place.prefix}:session:` : `${beginningOf(place, scope)}${begins}`
  let first: SessionName[] = []
  // SCAN may return a name twice.
  const trim = (): void => {
    const sorted = first.toSorted(inOrder)
    first = sorted.filter((name, at) => at === 0 || inOrder(name, sorted[at - 1]!) !== 0).slice(0, limit)
  }
  for await (const key of place.names(beginning)) {
    const name = nameIn(place, key)
    if (isWanted(filter, name)) first.push(name)
    // A sort for each thousand, and not for each name.
    if (first.length >= limit + 1_000) trim()
  }
  trim()
  return first
}

async function showReply(
  place: RedisServers,
  name: SessionName,
  values: readonly string[],
): Promise<readonly Buffer[] | undefined> {
  const what = `show the session ${name.session}`
  const reply = await place.run({ script: showScript, key: keyOf(place, name), values, what, executed: 'no' })
  return (reply as readonly Buffer[] | null) ?? undefined
}

async function showInFull(place: RedisServers, name: SessionName): Promise<SessionInFull | undefined> {
  const reply = await showReply(place, name, ['numbers'])
  if (!reply) return undefined
  const [letIn, answered] = reply.slice(8).map((text) => String(text).split(' ').filter(Boolean).map(Number)) as [
    number[],
    number[],
  ]
  const isAnswered = new Set(answered)
  const inTurn = letIn.toSorted((one, other) => one - other)
  return {
    ...shownIn(name, reply),
    answered: inTurn.filter((sequence) => isAnswered.has(sequence)),
    unanswered: inTurn.filter((sequence) => !isAnswered.has(sequence)),
  }
}

function shownIn({ session }: SessionName, reply: readonly Buffer[]): ShownSession {
  const [nowMs, epoch, floor, last, leaseUntilMs, closed, window, requests] = reply.slice(0, 8).map(Number) as Eight
  const state = shownState({ leaseUntilMs, isClosed: closed === 1 }, nowMs)
  return { session, epoch, state, floor, last, requests: state === 'open' ? requests : 0, leaseUntilMs, window }
}

type Eight = [number, number, number, number, number, number, number, number]

interface Deciding extends Pick<ServerScript, 'script' | 'values'> {
  /** Completes "Redis could not … the session till-7". */
  readonly verb: string
  /** Default 'unknown'. */
  readonly executed?: ServerScript['executed']
}

/** The reply of a script that decides. Throws what refuses. */
async function decided(
  { place, settings, nameOf }: RedisSessions,
  asked: AskedSession & Partial<NumberedRequest>,
  { verb, executed = 'unknown', ...call }: Deciding,
): Promise<readonly Buffer[]> {
  const { client, sequence } = asked
  const of = sequence === undefined ? 'the session' : `request ${sequence} of the session`
  const what = `${verb} ${of} ${client}`
  const reply = (await place.run({ ...call, key: nameOf(client), what, executed })) as readonly Buffer[]
  if (String(reply[0]) !== 'refused') return reply
  const [epoch, floor, last] = reply.slice(2).map(Number) as [number, number, number]
  const code = String(reply[1]) as SessionRefusalCode
  throw refusedBySession({ code, session: { epoch, floor, last } }, asked, settings)
}

function storeOf(on: RedisSessions, asked: NumberedRequest): Store {
  const write = async ({ token, fence }: Claim, what: string, value: RedisArgument): Promise<Fenced> => {
    const values = [...words(asked.epoch, asked.sequence), token, `${fence}`, what, value]
    const [reply] = await decided(on, asked, { script: writeScript, values, verb: what })
    return String(reply) as Fenced
  }
  return {
    name: 'redis',
    claim: (key, request) => claim(on, { ...asked, key }, request),
    extend: (held, leaseMs) => write(held, 'extend', `${leaseMs}`),
    settle: (held, outcome) => write(held, 'settle', Buffer.from(outcome)),
    release: (held) => write(held, 'release', ''),
  }
}

async function claim(
  on: RedisSessions,
  asked: NumberedRequest & { readonly key: Key },
  { fingerprint, token, leaseMs }: ClaimRequest,
): Promise<Verdict> {
  const { settings } = on
  const values = [
    ...words(asked.epoch, asked.sequence, asked.acknowledged),
    fingerprint,
    token,
    ...words(leaseMs, settings.leaseMs, settings.tombstoneMs, settings.window),
    settings.strict ? '1' : '0',
  ]
  const reply = await decided(on, asked, { script: claimScript, values, verb: 'claim', executed: 'no' })
  const [is, first, second, third] = reply
  switch (String(is)) {
    case 'granted': {
      const how = String(first) as 'fresh' | 'reopened' | 'taken-over'
      return { is: 'granted', how, claim: { key: asked.key, token, attempt: Number(second), fence: Number(third) } }
    }
    case 'settled':
      return { is: 'settled', outcome: new Uint8Array(second!), version: 0, attempt: Number(first) }
    case 'busy':
      return { is: 'busy', retryAfterMs: Number(first) }
    default:
      throw new Error(`Bug! Redis answered a request of a session with ${String(is)}.`)
  }
}

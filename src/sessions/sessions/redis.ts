// Sessions on Redis: an attempt holds its number by lease, and settles it by token and fence, as a key does. A server that has lost
// everything knows no session, so nothing runs again. One that came back older than it was may run what it forgot.

import type { RedisArgument, RedisServers } from '../../clients/redis.ts'
import type { Key } from '../../core/key.ts'
import type { Claim, ClaimRequest, Fenced, Store, Verdict } from '../../core/store.ts'
import type { SessionGround, SessionSettings, ShownSession } from './ground.ts'
import { shownState } from './ground.ts'
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
  const { leaseMs, tombstoneMs } = settings
  const beginning = `${place.prefix}:session:${settings.scope.replaceAll('%', '%25').replaceAll('/', '%2F')}/`
  const on: RedisSessions = { place, settings, nameOf: (client) => `${beginning}${client}` }
  return {
    guarantee: 'claim-and-settle',
    schema: [],
    migrate: async () => {},
    async register(client) {
      const epoch = await place.run(registerScript, on.nameOf(client), words(leaseMs, tombstoneMs))
      return { epoch: Number(epoch) }
    },
    async keepAlive(asked) {
      await decided(on, asked, keepAliveScript, words(asked.epoch, leaseMs, tombstoneMs))
    },
    async close(asked) {
      await decided(on, asked, closeScript, words(asked.epoch, tombstoneMs))
    },
    show: (client) => show(on, client),
    async list({ after, limit = 100 }) {
      const names = await place.names(beginning)
      const clients = names.map((name) => name.slice(beginning.length)).toSorted()
      const found: ShownSession[] = []
      for (const client of clients) {
        if (found.length >= limit) break
        const shown = after === undefined || client > after ? await show(on, client) : undefined
        if (shown) found.push(shown)
      }
      return found
    },
    // Redis removes a session by itself when its tombstone ends.
    sweep: async () => 0,
    storeFor: (asked) => storeOf(on, asked),
  }
}

const words = (...numbers: readonly number[]): string[] => numbers.map(String)

async function show({ place, nameOf }: RedisSessions, client: string): Promise<ShownSession | undefined> {
  const reply = (await place.run(showScript, nameOf(client), [])) as readonly Buffer[] | null
  if (!reply) return undefined
  const [nowMs, epoch, floor, last, leaseUntilMs, closed, requests] = reply.map(Number) as unknown as Numbers
  const state = shownState({ epoch, floor, last, leaseUntilMs, fence: 0, isClosed: closed === 1 }, nowMs)
  return { session: client, epoch, state, floor, last, requests: state === 'open' ? requests : 0, leaseUntilMs }
}

type Numbers = readonly [number, number, number, number, number, number, number]

/** The reply of a script that decides. Throws what refuses. */
async function decided(
  { place, settings, nameOf }: RedisSessions,
  asked: AskedSession & Partial<NumberedRequest>,
  script: string,
  values: readonly RedisArgument[],
): Promise<readonly Buffer[]> {
  const reply = (await place.run(script, nameOf(asked.client), values)) as readonly Buffer[]
  if (String(reply[0]) !== 'refused') return reply
  const [epoch, floor, last] = reply.slice(2).map(Number) as unknown as Numbers
  const code = String(reply[1]) as SessionRefusalCode
  throw refusedBySession({ code, session: { epoch, floor, last } }, asked, settings)
}

function storeOf(on: RedisSessions, asked: NumberedRequest): Store {
  const write = async ({ token, fence }: Claim, what: string, value: RedisArgument): Promise<Fenced> => {
    const values = [...words(asked.epoch, asked.sequence), token, `${fence}`, what, value]
    const [reply] = await decided(on, asked, writeScript, values)
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
  const reply = await decided(on, asked, claimScript, [
    ...words(asked.epoch, asked.sequence, asked.acknowledged),
    fingerprint,
    token,
    ...words(leaseMs, settings.leaseMs, settings.tombstoneMs, settings.window),
    settings.strict ? '1' : '0',
  ])
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

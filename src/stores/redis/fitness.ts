// Is a Redis or Valkey server fit? It may not evict, it must keep its data on disk, and it must know the commands we use. The
// facts are read and judged once, for the store's start and for `onceonly doctor`. What the server does not say is not assumed:
// a user who runs an unfit or silent server has to accept that by an option.

import { OnceError } from '../../core/errors.ts'
import { check, judge } from '../../core/fitness.ts'
import type { Fitness, FitnessCheck, FitnessQuestion, Judgement } from '../../core/fitness.ts'
import { linkTo } from '../../clients/redis.ts'
import type { RedisClient, RedisLink, Send } from '../../clients/redis.ts'
import { isQuarantinable, quarantineCheck } from './data-loss.ts'

/** What a server says of itself. Undefined where it does not say. */
export interface RedisFacts {
  field(name: string): string | undefined
  setting(name: Setting): string | undefined
}

type Setting = 'appendfsync' | 'min-replicas-to-write'

interface RedisCheck {
  readonly question: FitnessQuestion
  judge(facts: RedisFacts): Judgement
}

const silent = 'the server does not say'

// SET … PXAT.
const versionMin = [6, 2] as const

const version: RedisCheck = {
  question: { name: 'redis-version', lookedAt: 'redis_version', why: 'The scripts use commands of Redis 6.2.' },
  judge({ field }) {
    const found = field('redis_version')
    if (found === undefined) return { verdict: 'unknown', found: silent }
    const [major = 0, minor = 0] = found.split('.').map(Number)
    const isOld = major < versionMin[0] || (major === versionMin[0] && minor < versionMin[1])
    return judge(isOld ? 'violated' : 'ok', found, 'Install Redis 6.2 or later, or any Valkey.')
  },
}

/** Which native commands the store can use in the place of scripts. */
export interface NativeAbilities {
  /** `SET … NX GET`: Redis 7.0, Valkey. */
  readonly nxGet: boolean
  /** `SET … IFEQ`: Redis 8.4, Valkey 8.1. */
  readonly ifEq: boolean
}

function abilitiesOf({ field }: RedisFacts): NativeAbilities {
  const valkey = field('valkey_version')
  const isAtLeast = (found: string | undefined, least: readonly [number, number]): boolean => {
    const [major = 0, minor = 0] = (found ?? '').split('.').map(Number)
    return major > least[0] || (major === least[0] && minor >= least[1])
  }
  if (valkey !== undefined) return { nxGet: true, ifEq: isAtLeast(valkey, [8, 1]) }
  const redis = field('redis_version')
  return { nxGet: isAtLeast(redis, [7, 0]), ifEq: isAtLeast(redis, [8, 4]) }
}

const nativeCommands: RedisCheck = {
  question: {
    name: 'redis-commands',
    lookedAt: 'redis_version and valkey_version',
    why: 'Native commands cost the server half of what a script does. Guarantees are the same.',
  },
  judge(facts) {
    const { nxGet, ifEq } = abilitiesOf(facts)
    if (ifEq) return { verdict: 'ok', found: 'claims by SET NX GET, settles by SET IFEQ' }
    return { verdict: 'ok', found: nxGet ? 'claims by SET NX GET, settles by script' : 'claims and settles by script' }
  },
}

const eviction: RedisCheck = {
  question: {
    name: 'redis-eviction',
    lookedAt: 'maxmemory-policy',
    why: 'A server that evicts forgets keys that have run when memory is short, and their retries run again.',
  },
  judge({ field }) {
    const policy = field('maxmemory_policy')
    if (policy === undefined) return { verdict: 'unknown', found: silent, mend: 'Allow INFO for this user.' }
    const mend = 'Run CONFIG SET maxmemory-policy noeviction, and set the same in redis.conf.'
    return judge(policy === 'noeviction' ? 'ok' : 'violated', policy, mend)
  },
}

const persistence: RedisCheck = {
  question: {
    name: 'redis-persistence',
    lookedAt: 'appendonly and appendfsync',
    why: 'What is acknowledged and not on disk is gone after a crash, and its retries run again.',
  },
  judge({ field, setting }) {
    const appendOnly = field('aof_enabled')
    if (appendOnly === undefined) return { verdict: 'unknown', found: silent, mend: 'Allow INFO for this user.' }
    if (appendOnly !== '1') {
      const mend = 'Run CONFIG SET appendonly yes, and set the same in redis.conf.'
      return judge('violated', 'no append-only file', mend)
    }
    const sync = setting('appendfsync')
    if (sync === undefined) {
      const mend = 'Allow CONFIG GET for this user.'
      return { verdict: 'unknown', found: 'appendonly yes, appendfsync not told', mend }
    }
    const found = `appendonly yes, appendfsync ${sync}`
    if (sync === 'no') return judge('violated', found, 'Set appendfsync to always or everysec.')
    const mend = 'A power cut can lose the last second or two. Where that is too much, set appendfsync to always.'
    return judge(sync === 'always' ? 'ok' : 'warning', found, mend)
  },
}

/** Enough room left to notice and to act. */
const memoryUsedMax = 0.8

const memory: RedisCheck = {
  question: {
    name: 'redis-memory',
    lookedAt: 'used_memory and maxmemory',
    why: 'A full server that does not evict refuses new keys: nothing runs twice, but nothing runs.',
  },
  judge({ field }) {
    const [used, max] = [Number(field('used_memory')), Number(field('maxmemory'))]
    if (!Number.isFinite(used) || !Number.isFinite(max)) {
      return { verdict: 'unknown', found: silent, mend: 'Allow INFO for this user.' }
    }
    if (max === 0) return { verdict: 'ok', found: `${mebibytes(used)}, without a limit` }
    const mend = 'Raise maxmemory, or keep outcomes for a shorter time.'
    return judge(used > max * memoryUsedMax ? 'warning' : 'ok', `${mebibytes(used)} of ${mebibytes(max)}`, mend)
  },
}

const disk: RedisCheck = {
  question: {
    name: 'redis-disk',
    lookedAt: 'aof_last_write_status, aof_last_bgrewrite_status',
    why: 'A server that cannot write its files keeps replying for a while, from memory alone.',
  },
  judge({ field }) {
    if (field('redis_version') === undefined) {
      return { verdict: 'unknown', found: silent, mend: 'Allow INFO for this user.' }
    }
    const [write, rewrite] = [field('aof_last_write_status') ?? 'ok', field('aof_last_bgrewrite_status') ?? 'ok']
    const verdict = write === 'ok' ? (rewrite === 'ok' ? 'ok' : 'warning') : 'violated'
    return judge(verdict, `write ${write}, rewrite ${rewrite}`, 'Read its log, and look at the free space of its disk.')
  },
}

const replication: RedisCheck = {
  question: {
    name: 'redis-replication',
    lookedAt: 'role, connected_slaves, min-replicas-to-write',
    why: 'Replication is asynchronous: a replica that is promoted may lack what the primary had acknowledged.',
  },
  judge({ field, setting }) {
    const role = field('role')
    if (role === undefined) return { verdict: 'unknown', found: silent, mend: 'Allow INFO for this user.' }
    if (role === 'slave') return judge('violated', 'this is a replica', 'Give the URL of the primary.')
    const replicas = Number(field('connected_slaves') ?? 0)
    if (replicas === 0) return { verdict: 'ok', found: 'a primary without replicas: nothing to fail over to' }
    const needed = setting('min-replicas-to-write')
    const found = `replicas ${replicas}, min-replicas-to-write ${needed ?? 'not told'}`
    if (needed === undefined) return { verdict: 'unknown', found, mend: 'Allow CONFIG GET for this user.' }
    const mend =
      'Set min-replicas-to-write 1 and a small min-replicas-max-lag, which bounds what a failover can lose. Where nothing ' +
      'may be lost, use PostgreSQL with Redis as its cache.'
    return judge(Number(needed) > 0 ? 'ok' : 'warning', found, mend)
  },
}

function mebibytes(byteCount: number): string {
  return `${(byteCount / 1_024 ** 2).toFixed(1)} MiB`
}

export interface Accepted {
  readonly eviction: 'refuse' | 'accept'
  readonly durability: 'aof' | 'relaxed'
}

/** Rejects with STORE_UNSAFE when any primary is not fit and the user has not accepted that. Returns what all of them can do. */
export async function checkServers(link: RedisLink, accepted: Accepted): Promise<NativeAbilities> {
  const primaries = await link.primaries()
  // A server where CONFIG is forbidden must not be asked for what the user has accepted.
  const settings: Setting[] = accepted.durability === 'aof' ? ['appendfsync'] : []
  const facts = await Promise.all(primaries.map((send) => factsOf(send, settings)))
  const objections = facts.flatMap((each) => objectionsTo(each, accepted))
  if (objections.length === 0) {
    const abilities = facts.map(abilitiesOf)
    return { nxGet: abilities.every(({ nxGet }) => nxGet), ifEq: abilities.every(({ ifEq }) => ifEq) }
  }
  throw new OnceError('STORE_UNSAFE', { message: [...new Set(objections)].join(' ') })
}

export function objectionsTo(facts: RedisFacts, accepted: Accepted): readonly string[] {
  const objections: string[] = []
  const object = ({ question, judge: judgeIt }: RedisCheck, option?: string): void => {
    const { verdict, found, mend } = judgeIt(facts)
    // A server that does not tell its version fails at the first script if it is too old. Nothing is lost by that.
    const isRefused = verdict === 'violated' || (verdict === 'unknown' && option !== undefined)
    if (!isRefused) return
    const accept = option === undefined ? '' : ` Or pass ${option} to redisStore to accept it.`
    objections.push(`Redis is not fit (${question.lookedAt}: ${found}). ${question.why} ${mend}${accept}`)
  }
  object(version)
  if (accepted.eviction === 'refuse') object(eviction, `eviction: 'accept'`)
  if (accepted.durability === 'aof') object(persistence, `durability: 'relaxed'`)
  return objections
}

const doctorChecks = [version, nativeCommands, eviction, memory, persistence, disk, replication]

/**
 * For `onceonly doctor`: every check of every primary, and whether the store has noticed a loss of data.
 *
 * @example
 * import { createClient } from 'redis'
 * import { redisFitness, redisStore } from 'onceonly/redis'
 *
 * const client = await createClient({ url: 'redis://localhost:6379' }).connect()
 * const checks = await redisFitness(client, redisStore({ client })).checks(Date.now())
 */
export function redisFitness(client: RedisClient, store: object): Fitness {
  const link = linkTo(client)
  return {
    async timeMs() {
      const [send] = await link.primaries()
      const [seconds, microseconds] = (await send!(['TIME'])) as [Buffer, Buffer]
      return Number(String(seconds)) * 1_000 + Number(String(microseconds)) / 1_000
    },
    async checks(nowMs) {
      const primaries = await link.primaries()
      const checks: FitnessCheck[] = []
      for (const [at, send] of primaries.entries()) {
        const which = primaries.length > 1 ? `, primary ${at + 1} of ${primaries.length}` : ''
        checks.push(...(await serverChecks(send, which)))
      }
      if (isQuarantinable(store)) checks.push(await quarantineCheck(store, nowMs))
      return checks
    },
  }
}

async function serverChecks(send: Send, which: string): Promise<readonly FitnessCheck[]> {
  const facts = factsOf(send, ['appendfsync', 'min-replicas-to-write'])
  return Promise.all(
    doctorChecks.map(({ question, judge: judgeIt }) =>
      check({ ...question, lookedAt: `${question.lookedAt}${which}` }, async () => judgeIt(await facts)),
    ),
  )
}

/** Reads INFO and these settings. */
export async function factsOf(send: Send, settings: readonly Setting[]): Promise<RedisFacts> {
  const info = await refusable(send(['INFO']))
  const field = (name: string): string | undefined =>
    new RegExp(`^${name}:(.*?)\\r?$`, 'm').exec(info === undefined ? '' : String(info))?.[1]
  // While it loads its append-only file, Redis says that it has none.
  if (field('loading') === '1') throw new Error('LOADING Redis is loading the dataset in memory')
  const found = new Map<string, string | undefined>()
  for (const name of settings) found.set(name, settingIn(await refusable(send(['CONFIG', 'GET', name])), name))
  return { field, setting: (name) => found.get(name) }
}

/** CONFIG GET returns names and values in turn. With the newer protocol it is a map, or an object of the client's making. */
function settingIn(reply: unknown, name: string): string | undefined {
  if (Array.isArray(reply)) return reply.length < 2 ? undefined : String(reply[1])
  const entries = reply instanceof Map ? [...reply] : Object.entries(reply ?? {})
  const value: unknown = entries.find(([each]) => String(each) === name)?.[1]
  return value === undefined ? undefined : String(value)
}

/** Undefined where the server refuses: managed ones do not know CONFIG, and users may lack permission. */
async function refusable(reply: Promise<unknown>): Promise<unknown> {
  try {
    return await reply
  } catch (error) {
    if (error instanceof Error && /^(NOPERM|ERR unknown|ERR .*(CONFIG|INFO))/i.test(error.message)) return undefined
    throw error
  }
}

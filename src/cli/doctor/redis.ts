// What a Redis or Valkey server must be like: it keeps everything, on disk, and it is the primary.

import { factsOf } from '../../stores/redis/fitness.ts'
import type { Quarantinable } from '../../stores/redis.ts'
import { linkTo } from '../../clients/redis.ts'
import type { RedisClient, Send } from '../../clients/redis.ts'
import { check, judge } from '../../core/fitness.ts'
import type { FitnessCheck, Judgement } from '../../core/fitness.ts'
import { moment } from '../words.ts'

export async function redisTimeMs(client: RedisClient): Promise<number> {
  const [send] = await linkTo(client).primaries()
  const [seconds, microseconds] = (await send!(['TIME'])) as [Buffer, Buffer]
  return Number(String(seconds)) * 1_000 + Number(String(microseconds)) / 1_000
}

export async function redisChecks(client: RedisClient, store: object, nowMs: number): Promise<FitnessCheck[]> {
  const primaries = await linkTo(client).primaries()
  const checks: FitnessCheck[] = []
  for (const [at, send] of primaries.entries()) {
    const found = await serverChecks(send)
    const which = primaries.length > 1 ? `, primary ${at + 1} of ${primaries.length}` : ''
    checks.push(...found.map((check) => ({ ...check, lookedAt: `${check.lookedAt}${which}` })))
  }
  if ('quarantine' in store) checks.push(await quarantineCheck(store as Quarantinable, nowMs))
  return checks
}

async function serverChecks(send: Send): Promise<FitnessCheck[]> {
  return [
    await versionCheck(send),
    await evictionCheck(send),
    await memoryCheck(send),
    await persistenceCheck(send),
    await writeErrorCheck(send),
    await replicationCheck(send),
  ]
}

type Field = (name: string) => string | undefined

async function info(send: Send): Promise<Field> {
  const all = String(await send(['INFO', 'everything']))
  return (name) => new RegExp(`^${name}:(.*?)\\r?$`, 'm').exec(all)?.[1]
}

async function setting(send: Send, name: string): Promise<string | undefined> {
  const answer = await send(['CONFIG', 'GET', name])
  if (Array.isArray(answer)) return answer.length < 2 ? undefined : String(answer[1])
  // With the newer protocol a map, or an object of the client's making.
  const [first] = answer instanceof Map ? [...(answer as Map<unknown, unknown>)] : Object.entries(answer as object)
  const found: unknown = first?.[1]
  return found === undefined ? undefined : String(found)
}

const facts = (send: Send): ReturnType<typeof factsOf> => factsOf(send, { eviction: 'refuse', durability: 'aof' })

function versionCheck(send: Send): Promise<FitnessCheck> {
  const question = {
    name: 'redis-version',
    lookedAt: 'INFO redis_version',
    why: 'The scripts use commands of Redis 6.2.',
  }
  return check(question, async () => {
    const { version } = await facts(send)
    if (version === undefined) return { verdict: 'unknown', found: 'the server does not say' }
    const [major = 0, minor = 0] = version.split('.').map(Number)
    const old = major < 6 || (major === 6 && minor < 2)
    return judge(old ? 'violated' : 'ok', version, 'Install Redis 6.2 or later, or any Valkey.')
  })
}

function evictionCheck(send: Send): Promise<FitnessCheck> {
  const why = 'A server that evicts forgets keys that have run when memory is short, and their retries run again.'
  return check({ name: 'redis-eviction', lookedAt: 'maxmemory-policy', why }, async () => {
    const { evictionPolicy } = await facts(send)
    if (evictionPolicy === undefined)
      return { verdict: 'unknown', found: 'the server does not say', mend: 'Allow INFO.' }
    const mend = 'CONFIG SET maxmemory-policy noeviction, and the same in redis.conf.'
    return judge(evictionPolicy === 'noeviction' ? 'ok' : 'violated', evictionPolicy, mend)
  })
}

/** Enough room left to notice and to act. */
const memoryUsedMax = 0.8

function memoryCheck(send: Send): Promise<FitnessCheck> {
  const why = 'A full server that does not evict refuses new keys: nothing runs twice, but nothing runs.'
  return check({ name: 'redis-memory', lookedAt: 'used_memory and maxmemory', why }, async () => {
    const field = await info(send)
    const [used, max] = [Number(field('used_memory')), Number(field('maxmemory'))]
    if (!Number.isFinite(used) || !Number.isFinite(max)) return { verdict: 'unknown', found: 'the server does not say' }
    if (max === 0) return { verdict: 'ok', found: `${megabytes(used)}, without a limit` }
    const found = `${megabytes(used)} of ${megabytes(max)}`
    return judge(
      used > max * memoryUsedMax ? 'warning' : 'ok',
      found,
      'Raise maxmemory, or keep outcomes for a shorter time.',
    )
  })
}

function persistenceCheck(send: Send): Promise<FitnessCheck> {
  const why = 'What is acknowledged and not on disk is gone after a crash, and its retries run again.'
  return check(
    { name: 'redis-persistence', lookedAt: 'appendonly and appendfsync', why },
    async (): Promise<Judgement> => {
      const { appendOnly, appendFsync } = await facts(send)
      if (appendOnly === undefined) return { verdict: 'unknown', found: 'the server does not say', mend: 'Allow INFO.' }
      if (!appendOnly) {
        return judge('violated', 'no append-only file', 'CONFIG SET appendonly yes, and the same in redis.conf.')
      }
      if (appendFsync === undefined) {
        return { verdict: 'unknown', found: 'appendonly yes, appendfsync not told', mend: 'Allow CONFIG GET.' }
      }
      const found = `appendonly yes, appendfsync ${appendFsync}`
      if (appendFsync === 'no') return judge('violated', found, 'Set appendfsync always, or everysec.')
      const mend = 'A power cut can lose the last second or two. Where that is too much, set appendfsync always.'
      return judge(appendFsync === 'always' ? 'ok' : 'warning', found, mend)
    },
  )
}

function writeErrorCheck(send: Send): Promise<FitnessCheck> {
  const why = 'A server that cannot write its files keeps answering for a while, from memory alone.'
  return check({ name: 'redis-disk', lookedAt: 'aof_last_write_status, aof_last_bgrewrite_status', why }, async () => {
    const field = await info(send)
    const [write, rewrite] = [field('aof_last_write_status') ?? 'ok', field('aof_last_bgrewrite_status') ?? 'ok']
    const bad = write === 'ok' ? (rewrite === 'ok' ? 'ok' : 'warning') : 'violated'
    return judge(bad, `write ${write}, rewrite ${rewrite}`, 'See its log and the free space of its disk.')
  })
}

function replicationCheck(send: Send): Promise<FitnessCheck> {
  const why = 'Replication is asynchronous: a replica that is promoted may lack what the primary had acknowledged.'
  return check(
    { name: 'redis-replication', lookedAt: 'role, connected_slaves, min-replicas-to-write', why },
    async () => {
      const field = await info(send)
      if (field('role') === 'slave') return judge('violated', 'this is a replica', 'Give the URL of the primary.')
      const replicas = Number(field('connected_slaves') ?? 0)
      if (replicas === 0) return { verdict: 'ok', found: 'a primary without replicas: nothing to fail over to' }
      const needed = Number(await setting(send, 'min-replicas-to-write'))
      const found = `${replicas} replicas, min-replicas-to-write ${needed}`
      const mend =
        'Set min-replicas-to-write 1 and a small min-replicas-max-lag, which bounds what a failover can lose; where nothing ' +
        'may be lost, use PostgreSQL with Redis as its cache.'
      return judge(needed > 0 ? 'ok' : 'warning', found, mend)
    },
  )
}

function quarantineCheck(store: Quarantinable, nowMs: number): Promise<FitnessCheck> {
  const why = 'Redis came back without data that it had acknowledged: new keys are refused until somebody has looked.'
  return check({ name: 'redis-data-loss', lookedAt: 'the register of the store', why }, async () => {
    const held = await store.quarantine()
    if (!held) return { verdict: 'ok', found: 'no loss of data was noticed' }
    const found = `quarantine since ${moment(held.sinceMs, nowMs)}`
    return judge(
      'violated',
      found,
      'Find out what was lost (docs/stores.md, Redis), then: onceonly quarantine --end --reason …',
    )
  })
}

function megabytes(byteCount: number): string {
  return `${(byteCount / 1_024 ** 2).toFixed(1)} MiB`
}

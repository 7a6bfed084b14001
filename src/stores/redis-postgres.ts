// The PostgreSQL store with Redis in front of it. The database decides everything. Redis only remembers answers that are settled
// and committed, for a minute, so that a retry soon after costs one command and no SQL. Whatever Redis does (nothing, late,
// wrong), the answer is the database's. docs/stores.md has the one bound, ageMaxMs, and when it matters.
//
// How it keeps the invariants, and what that costs:
// - the database decides everything. Redis holds only settled outcomes, sealed by a MAC over scope, id, fingerprint, version,
//   attempt, outcome and an expiry in the database's time, with a secret that lives in the table. Whatever is wrong with a reply
//   of Redis makes it a miss. Costs: a fresh call is 0.64 to 0.8 of plain PostgreSQL, a hit is 1.5 to 2.3 times its replay.

import { pausesMs } from '../core/backoff.ts'
import type { KeyObject } from 'node:crypto'
import { databaseOf, offerDatabase } from '../clients/sql-database.ts'
import { systemClock } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { keyString } from '../core/key.ts'
import type { Key } from '../core/key.ts'
import { checkOptions, optional, positiveMs, withMethods } from '../core/options.ts'
import type { Rule } from '../core/options.ts'
import type { Began, Claim, ClaimRequest, Fenced, Retention, Verdict } from '../core/store.ts'
import type { PostgresStore } from './postgres.ts'
import { linkTo } from '../clients/redis.ts'
import type { RedisClient } from '../clients/redis.ts'
import { cachedBytesMax, settledCache } from './redis-postgres/cache.ts'
import type { Cache, Knowledge } from './redis-postgres/cache.ts'
import { databaseSecret, inspectionWithoutSecret } from './redis-postgres/secret.ts'
import { databaseTime } from './redis-postgres/time.ts'

export type { PostgresStore } from './postgres.ts'
export type { RedisClient } from '../clients/redis.ts'

export interface RedisPostgresStoreOptions<Client> {
  /** A connected client of node-redis or ioredis: one server, a pool, Sentinel or Cluster. It stays yours to close. */
  readonly redis: RedisClient
  readonly postgres: PostgresStore<Client>
  /** How long an answer may come from Redis after the database was last asked, the same in all processes. Default 60 s. */
  readonly ageMaxMs?: number
  /** How long a call waits for Redis before it asks the database. Default 50 ms. */
  readonly redisTimeoutMs?: number
  /** The beginning of all names in Redis. Default onceonly:settled. */
  readonly prefix?: string
  readonly clock?: Clock
}

/** Clients retry within seconds. An answer that was mended behind this store's back is not returned for longer than this. */
const ageMsDefault = 60_000
/** Many times what Redis takes, and less than a caller would notice. */
const redisTimeoutMsDefault = 50
/** How many answers are read from the database at once to be remembered. These optional reads must not use up the pool. */
const readingsMax = 2
/** Claims under way of which we know what was asked. Forgetting one costs its first retry a question to the database. */
const claimsMax = 10_000

const redisRule: Rule = (value) => {
  try {
    linkTo(value)
    return undefined
  } catch {
    return 'a client of node-redis or of ioredis (without keyPrefix)'
  }
}

const prefixRule: Rule = (value) =>
  typeof value === 'string' && /^[\w.:-]{1,64}$/.test(value)
    ? undefined
    : '1 to 64 letters, digits, underscores, dots, colons and dashes'

const rules = {
  redis: redisRule,
  postgres: withMethods('claim', 'settle', 'within', 'begin', 'show', 'mend'),
  ageMaxMs: optional(positiveMs),
  redisTimeoutMs: optional(positiveMs),
  prefix: optional(prefixRule),
  clock: optional(withMethods('now', 'elapsed', 'schedule')),
}

/**
 * The PostgreSQL store with Redis in front of it: a retry soon after costs one Redis command and no SQL. PostgreSQL decides, so a
 * Redis that is down, empty or wrong costs speed and nothing else.
 *
 * @example
 * import pg from 'pg'
 * import { createClient } from 'redis'
 * import { createOnce } from 'onceonly'
 * import { postgresStore } from 'onceonly/postgres'
 * import { redisPostgresStore } from 'onceonly/redis-postgres'
 *
 * const redis = await createClient({ url: 'redis://localhost:6379' }).connect()
 * const postgres = postgresStore({ pool: new pg.Pool() })
 * const once = createOnce({ store: redisPostgresStore({ redis, postgres }), scope: 'payments' })
 */
export function redisPostgresStore<Client>(options: RedisPostgresStoreOptions<Client>): PostgresStore<Client> {
  checkOptions('redisPostgresStore', options, rules)
  const { postgres, clock = systemClock } = options
  const knowledge = knowledgeOf(clock, postgres)
  const cache = settledCache({
    link: linkTo(options.redis),
    clock,
    prefix: options.prefix ?? 'onceonly:settled',
    ageMaxMs: options.ageMaxMs ?? ageMsDefault,
    redisTimeoutMs: options.redisTimeoutMs ?? redisTimeoutMsDefault,
    knowledge,
  })
  const context: RedisPostgresContext<Client> = { postgres, cache, knowledge, asked: new Map(), reading: new Set() }
  const inspected = inspectionWithoutSecret(postgres)
  const store: PostgresStore<Client> = {
    // What is done inside a caller's transaction is not committed yet: `within` is the database's own, and the first replay
    // after the commit is remembered. `extend` and `release` concern claims that are not settled: Redis has nothing of them.
    ...postgres,
    name: 'redis-postgres',
    claim: (key, request) => claim(context, key, request),
    settle: (held, outcome, retention) => settle(context, held, outcome, retention),
    release(held, how) {
      context.asked.delete(held.token)
      return postgres.release(held, how)
    },
    begin: (key, request) => begin(context, key, request),
    ...inspected,
    // Barred before, so that a process that dies in between leaves nothing. Barred after, so that what was seen in between is
    // barred, too.
    async mend(key, action, reason) {
      // What is kept for longer is still the same outcome: Redis may go on with it.
      if (typeof action === 'object' && 'keepMs' in action) return inspected.mend(key, action, reason)
      await cache.bar(key)
      const before = await inspected.mend(key, action, reason)
      await cache.bar(key)
      return before
    },
  }
  const database = databaseOf(postgres)
  return database ? offerDatabase(store, database) : store
}

interface RedisPostgresContext<Client> {
  readonly postgres: PostgresStore<Client>
  readonly cache: Cache
  knowledge(): Knowledge | undefined
  /** By token: what a settle does not say again. */
  readonly asked: Map<string, AskedClaim>
  readonly reading: Set<string>
}

interface AskedClaim {
  readonly fingerprint: string
  readonly version: number
  readonly attempt: number
}

function knowledgeOf<Client>(clock: Clock, postgres: PostgresStore<Client>): () => Knowledge | undefined {
  const time = databaseTime(clock, postgres)
  let secret: KeyObject | undefined
  let notBeforeMs = -Infinity
  const learn = async (): Promise<void> => {
    notBeforeMs = clock.elapsed() + pausesMs.databaseDown
    secret ??= await databaseSecret(postgres).catch(() => undefined)
  }
  return () => {
    const bounds = time()
    if (!secret && clock.elapsed() >= notBeforeMs) void learn()
    return secret && bounds && { secret, time: bounds }
  }
}

async function claim<Client>(context: RedisPostgresContext<Client>, key: Key, request: ClaimRequest): Promise<Verdict> {
  const found = await context.cache.find(key, request.fingerprint)
  if (found) return { is: 'settled', ...found }
  const verdict = await context.postgres.claim(key, request)
  if (verdict.is === 'granted') remember(context.asked, verdict.claim, request)
  if (verdict.is === 'settled') void keepFromDatabase(context, key, verdict.outcome.length)
  return verdict
}

function remember(
  asked: Map<string, AskedClaim>,
  { token, attempt }: Claim,
  { fingerprint, version }: ClaimRequest,
): void {
  asked.set(token, { fingerprint, version, attempt })
  if (asked.size > claimsMax) asked.delete(asked.keys().next().value!)
}

// Only the first settle of a claim tells what was written and when. A repeated settle is done without being written.
function settle<Client>(
  context: RedisPostgresContext<Client>,
  held: Claim,
  outcome: Uint8Array,
  retention: Retention,
): Promise<Fenced> {
  const first = context.asked.get(held.token)
  context.asked.delete(held.token)
  return keepWritten(context, { key: held.key, asked: first, outcome, retention }, () =>
    context.postgres.settle(held, outcome, retention),
  )
}

interface Writing {
  readonly key: Key
  /** Undefined when it is not known. Then the first replay is remembered. */
  readonly asked: AskedClaim | undefined
  readonly outcome: Uint8Array
  readonly retention: Retention
}

async function keepWritten<Client>(
  { cache, knowledge }: RedisPostgresContext<Client>,
  { key, asked, outcome, retention }: Writing,
  write: () => Promise<Fenced>,
): Promise<Fenced> {
  const seenAtMs = knowledge()?.time.earliestMs
  // A copy, made before the caller can change the bytes.
  const bytes = asked && seenAtMs !== undefined && outcome.length <= cachedBytesMax ? outcome.slice() : undefined
  const fenced = await write()
  if (fenced === 'done' && asked && bytes && seenAtMs !== undefined) {
    const { fingerprint, version, attempt } = asked
    const expiresAtMs = seenAtMs + retention.keepMs
    cache.keep(key, fingerprint, { version, attempt, outcome: bytes }, { seenAtMs, expiresAtMs })
  }
  return fenced
}

// A settled verdict does not say until when it holds, so the store reads the entry once more, after the caller has its verdict.
async function keepFromDatabase<Client>(
  context: RedisPostgresContext<Client>,
  key: Key,
  outcomeLength: number,
): Promise<void> {
  const { postgres, cache, knowledge, reading } = context
  const name = keyString(key)
  const seenAtMs = knowledge()?.time.earliestMs
  if (outcomeLength > cachedBytesMax || seenAtMs === undefined || !cache.keeps()) return
  if (reading.has(name) || reading.size >= readingsMax) return
  reading.add(name)
  try {
    const entry = await postgres.show(key)
    if (entry?.state !== 'settled' || !entry.outcome) return
    const { version, attempt, outcome, expiresAtMs } = entry
    cache.keep(key, entry.fingerprint, { version, attempt, outcome }, { seenAtMs, expiresAtMs })
  } catch {
    // The next replay may do it.
  } finally {
    reading.delete(name)
  }
}

async function begin<Client>(
  context: RedisPostgresContext<Client>,
  key: Key,
  request: ClaimRequest,
): Promise<Began<Client>> {
  const found = await context.cache.find(key, request.fingerprint)
  if (found) return { verdict: { is: 'settled', ...found } }
  const began = await context.postgres.begin(key, request)
  const { verdict, granted } = began
  if (verdict.is === 'settled') void keepFromDatabase(context, key, verdict.outcome.length)
  if (verdict.is !== 'granted' || !granted) return began
  const { fingerprint, version } = request
  let asked: AskedClaim | undefined = { fingerprint, version, attempt: verdict.claim.attempt }
  return {
    verdict,
    granted: {
      ...granted,
      // What is undone is claimed anew, perhaps as another attempt: then the first replay is remembered.
      undoEffect() {
        asked = undefined
        return granted.undoEffect()
      },
      commit: (outcome, retention) =>
        keepWritten(context, { key, asked, outcome, retention }, () => granted.commit(outcome, retention)),
    },
  }
}

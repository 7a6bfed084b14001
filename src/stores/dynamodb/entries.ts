// An entry as an item, and what a claim makes of it. Pure: nothing here talks to DynamoDB.
//
// DynamoDB has no clock that a condition could read, so every process goes by its own. A time is written as the writer's
// clock has it, and it has passed when it has passed by every clock (`sure`): clockSkewMs later by one's own. Waiting too long
// costs a moment; not long enough would run an effect under a living lease, or again within its retention.

import { OnceError } from '../../core/errors.ts'
import { describeKey, keyString } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { ClaimRequest, EntryState, Retention, Verdict } from '../../core/store.ts'
import type { AttributeValue, DynamodbGround, Item, StoredItem } from '../../clients/dynamodb.ts'

export interface StoredEntry extends Retention {
  readonly key: Key
  /** 'forget': nothing but the remains of an entry, kept until they are removed so that fences grow across lives. */
  readonly wrote: 'claim' | 'release' | 'settle' | 'forget'
  readonly how: 'fresh' | 'reopened' | 'taken-over'
  readonly token: string
  /** One more with every write: with token and fence, the condition that nobody has written since. */
  readonly revision: number
  readonly attempt: number
  readonly fence: number
  readonly fingerprint: string
  readonly version: number
  readonly firstClaimedAtMs: number
  readonly leaseUntilMs: number
  readonly outcome?: Uint8Array
  /** Where an outcome is that is too large for the entry, see dynamodb/outcomes.ts. */
  readonly outcomeApart?: string
  readonly input?: Uint8Array
}

export interface Moment {
  /** By our own clock: what we write. */
  readonly now: number
  /** What every clock has reached: what we judge by. */
  readonly sure: number
  readonly clockSkewMs: number
}

export function momentOf({ clock, clockSkewMs }: DynamodbGround): Moment {
  const now = Math.floor(clock.now())
  return { now, sure: now - clockSkewMs, clockSkewMs }
}

/** The sort key of the entry itself; an outcome that is apart and audit records lie beside it under the same key. */
export const entryPart = 'entry'

export function keyOfItem(key: Key, part: string = entryPart): Item {
  return { key: { S: keyString(key) }, part: { S: part } }
}

// DynamoDB's own removal (TTL) goes by Amazon's clock, and must not come before the last of ours has passed the time. An hour
// more costs nothing: the removal is late by up to days anyway, and is never what decides.
const removalSlackMs = 3_600_000

/** How many seconds after the end of the lease an entry may be removed. */
export function retainSeconds(retention: Retention, clockSkewMs: number): number {
  return removalSeconds(retention.keepMs + retention.tombstoneMs, clockSkewMs)
}

export function removalSeconds(timeMs: number, clockSkewMs: number): number {
  return Math.ceil((timeMs + 2 * clockSkewMs + removalSlackMs) / 1_000)
}

export function number(value: number): AttributeValue {
  return { N: String(value) }
}

/** The sums are stored because a condition cannot add. */
export function itemOf(entry: StoredEntry, { clockSkewMs }: Moment): Item {
  const expiresAtMs = entry.leaseUntilMs + entry.keepMs
  const remainSeconds = retainSeconds(entry, clockSkewMs)
  return {
    ...keyOfItem(entry.key),
    wrote: { S: entry.wrote },
    how: { S: entry.how },
    token: { S: entry.token },
    revision: number(entry.revision),
    attempt: number(entry.attempt),
    fence: number(entry.fence),
    fingerprint: { S: entry.fingerprint },
    version: number(entry.version),
    firstClaimedAtMs: number(entry.firstClaimedAtMs),
    leaseUntilMs: number(entry.leaseUntilMs),
    keepMs: number(entry.keepMs),
    retainMs: number(entry.keepMs + entry.tombstoneMs),
    retainSeconds: number(remainSeconds),
    expiresAtMs: number(expiresAtMs),
    forgottenAtMs: number(expiresAtMs + entry.tombstoneMs),
    removeAt: number(Math.ceil(entry.leaseUntilMs / 1_000) + remainSeconds),
    ...(entry.outcome && { outcome: { B: entry.outcome } }),
    ...(entry.outcomeApart !== undefined && { outcomeApart: { S: entry.outcomeApart } }),
    ...(entry.input && { input: { B: entry.input } }),
  }
}

export function keyFrom(item: StoredItem): Key {
  const [scope = '', id = ''] = (item['key']?.S ?? '').split('\n')
  return { scope, id }
}

export function entryOf(item: StoredItem): StoredEntry {
  const key = keyFrom(item)
  const text = (name: string): string => item[name]?.S ?? unreadable(key, name)
  const integer = (name: string): number => {
    const value = Number(item[name]?.N)
    return Number.isSafeInteger(value) ? value : unreadable(key, name)
  }
  const keepMs = integer('keepMs')
  const { outcome, outcomeApart, input } = item
  return {
    key,
    wrote: text('wrote') as StoredEntry['wrote'],
    how: text('how') as StoredEntry['how'],
    token: text('token'),
    revision: integer('revision'),
    attempt: integer('attempt'),
    fence: integer('fence'),
    fingerprint: text('fingerprint'),
    version: integer('version'),
    firstClaimedAtMs: integer('firstClaimedAtMs'),
    leaseUntilMs: integer('leaseUntilMs'),
    keepMs,
    tombstoneMs: integer('retainMs') - keepMs,
    ...(outcome?.B && { outcome: outcome.B }),
    ...(outcomeApart?.S !== undefined && { outcomeApart: outcomeApart.S }),
    ...(input?.B && { input: input.B }),
  }
}

function unreadable(key: Key, name: string): never {
  throw new OnceError('OUTCOME_UNREADABLE', {
    executed: 'unknown',
    message: `The item of ${describeKey(key)} in DynamoDB has no readable "${name}". Nothing was run. Find out who wrote it; forget the key by hand if its effect may run again.`,
  })
}

export function expiresAtMs(entry: StoredEntry): number {
  return entry.leaseUntilMs + entry.keepMs
}

export function forgottenAtMs(entry: StoredEntry): number {
  return expiresAtMs(entry) + entry.tombstoneMs
}

/** Undefined when the entry is over, as if it had never been, whether or not DynamoDB has removed it. */
export function stateOf(entry: StoredEntry, { sure }: Moment): EntryState | undefined {
  if (entry.wrote === 'forget' || sure >= forgottenAtMs(entry)) return undefined
  if (sure >= expiresAtMs(entry)) return 'tombstone'
  if (entry.wrote === 'settle') return 'settled'
  if (entry.wrote === 'release') return 'open'
  return sure < entry.leaseUntilMs ? 'running' : 'abandoned'
}

/** A claim is answered by what is there, or by writing an entry in its place, if it is still there. */
export type Decision =
  | { readonly replay: StoredEntry }
  | { readonly verdict: Verdict }
  | { readonly write: StoredEntry }

export function decide(key: Key, seen: StoredEntry | undefined, request: ClaimRequest, moment: Moment): Decision {
  const state = seen && stateOf(seen, moment)
  const isOwn = seen?.token === request.token
  if (!state) {
    // Whoever forgot the key with this token is gone.
    if (seen?.wrote === 'forget' && isOwn) return { verdict: { is: 'busy', retryAfterMs: 0 } }
    return { write: fresh(key, seen, request, moment) }
  }
  if (state === 'tombstone') {
    return request.onExpired === 'run' ? { write: fresh(key, seen, request, moment) } : { verdict: { is: 'expired' } }
  }
  if (seen.fingerprint !== request.fingerprint) return { verdict: { is: 'mismatch' } }
  if (state === 'settled') return { replay: seen }
  if (isOwn) return state === 'open' ? { verdict: { is: 'busy', retryAfterMs: 0 } } : again(seen, request, moment)
  if (state === 'running') return { verdict: { is: 'busy', retryAfterMs: retryAfterMs(seen, moment) } }
  if (state === 'open') return { write: nextAttempt(seen, request, moment, 'reopened') }
  if (request.onTakeover === 'refuse') return { verdict: { is: 'doubt', attempt: seen.attempt } }
  return { write: nextAttempt(seen, request, moment, 'taken-over') }
}

// When the lease may be over at the earliest; once that has passed, when it is over by every clock.
function retryAfterMs(entry: StoredEntry, { now, clockSkewMs }: Moment): number {
  const earliestMs = entry.leaseUntilMs - clockSkewMs - now
  return earliestMs > 0 ? earliestMs : entry.leaseUntilMs + clockSkewMs - now
}

function fresh(key: Key, seen: StoredEntry | undefined, request: ClaimRequest, moment: Moment): StoredEntry {
  return {
    key,
    wrote: 'claim',
    how: 'fresh',
    token: request.token,
    revision: 1 + (seen?.revision ?? 0),
    attempt: 1,
    fence: nextFence(seen, moment),
    fingerprint: request.fingerprint,
    version: request.version,
    firstClaimedAtMs: moment.now,
    leaseUntilMs: moment.now + request.leaseMs,
    keepMs: request.retention.keepMs,
    tombstoneMs: request.retention.tombstoneMs,
    ...(request.input && { input: request.input }),
  }
}

function nextAttempt(
  seen: StoredEntry,
  request: ClaimRequest,
  moment: Moment,
  how: 'reopened' | 'taken-over',
): StoredEntry {
  return {
    ...fresh(seen.key, seen, request, moment),
    how,
    attempt: seen.attempt + 1,
    // Another attempt of the same request: one that was given no input leaves the one that is there.
    ...(!request.input && seen.input && { input: seen.input }),
    firstClaimedAtMs: seen.firstClaimedAtMs,
  }
}

function again(seen: StoredEntry, request: ClaimRequest, { now }: Moment): Decision {
  return { write: { ...seen, revision: seen.revision + 1, leaseUntilMs: now + request.leaseMs } }
}

function nextFence(seen: StoredEntry | undefined, { now }: Moment): number {
  return Math.max(now * 1_000, 1 + (seen?.fence ?? 0))
}

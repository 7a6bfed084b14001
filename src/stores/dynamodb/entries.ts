// An entry as an item, and what a claim makes of it. Pure: nothing here talks to DynamoDB.
//
// DynamoDB has no clock that a condition could read, so every process uses its own. A writer writes a time by its own clock. The
// time has passed when it has passed by every clock (`sure`), which is clockSkewMs later by the reader's own. Waiting too long
// costs a moment. Not waiting long enough would run an effect under a living lease, or again within its retention.

import { attemptOf, expiresAtMs, fenceAfter, forgottenAtMs } from '../../core/entry.ts'
import type { ClaimDecision, EntryRecord } from '../../core/entry.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey, keyString } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { ClaimRequest, Retention, Verdict } from '../../core/store.ts'
import type { DynamodbValue, DynamodbItem, StoredDynamodbItem } from '../../clients/dynamodb.ts'
import type { DynamodbContext } from './requests.ts'

export interface DynamodbEntry extends EntryRecord {
  /** Grows by one with every write. With token and fence it is the condition that no other writer has written since. */
  readonly revision: number
  /** The place of an outcome that is too large for the entry, see dynamodb/outcomes.ts. */
  readonly outcomeApart?: string
}

export interface DynamodbMoment {
  /** By our own clock: what we write. */
  readonly now: number
  /** What every clock has reached: what we judge by. */
  readonly sure: number
  readonly clockSkewMs: number
}

export function momentOf({ clock, clockSkewMs }: DynamodbContext): DynamodbMoment {
  const now = Math.floor(clock.now())
  return { now, sure: now - clockSkewMs, clockSkewMs }
}

/** The sort key of the entry itself. Audit records and an outcome that lies apart have the same partition key. */
export const entryPart = 'entry'

export function keyOfItem(key: Key, part: string = entryPart): DynamodbItem {
  return { key: { S: keyString(key) }, part: { S: part } }
}

// DynamoDB's own removal (TTL) goes by Amazon's clock, and must not come before the last of our clocks has passed the time. An
// hour more costs nothing: the removal is late by up to days anyway, and never decides.
const removalSlackMs = 3_600_000

/** How many seconds after the end of the lease an entry may be removed. */
export function retainSeconds(retention: Retention, clockSkewMs: number): number {
  return removalSeconds(retention.keepMs + retention.tombstoneMs, clockSkewMs)
}

export function removalSeconds(timeMs: number, clockSkewMs: number): number {
  return Math.ceil((timeMs + 2 * clockSkewMs + removalSlackMs) / 1_000)
}

export function number(value: number): DynamodbValue {
  return { N: String(value) }
}

/** The sums are stored because a condition cannot add. */
export function itemOf(entry: DynamodbEntry, { clockSkewMs }: DynamodbMoment): DynamodbItem {
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
    expiresAtMs: number(expiresAtMs(entry)),
    forgottenAtMs: number(forgottenAtMs(entry)),
    removeAt: number(Math.ceil(entry.leaseUntilMs / 1_000) + remainSeconds),
    ...(entry.outcome && { outcome: { B: entry.outcome } }),
    ...(entry.outcomeApart !== undefined && { outcomeApart: { S: entry.outcomeApart } }),
    ...(entry.input && { input: { B: entry.input } }),
  }
}

export function keyFrom(item: StoredDynamodbItem): Key {
  const [scope = '', id = ''] = (item['key']?.S ?? '').split('\n')
  return { scope, id }
}

export function entryOf(item: StoredDynamodbItem): DynamodbEntry {
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
    wrote: text('wrote') as DynamodbEntry['wrote'],
    how: text('how') as DynamodbEntry['how'],
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

/** The entry that a claim writes, when it is granted or repeated. */
export function entryAfter(
  key: Key,
  seen: DynamodbEntry | undefined,
  decision: Exclude<ClaimDecision<DynamodbEntry>, { readonly is: 'refused' | 'replayed' }>,
  { request, moment }: { readonly request: ClaimRequest; readonly moment: DynamodbMoment },
): DynamodbEntry {
  const revision = 1 + (seen?.revision ?? 0)
  if (decision.is === 'repeated') {
    return { ...decision.entry, revision, leaseUntilMs: moment.now + request.leaseMs }
  }
  const fence = fenceAfter(seen?.fence ?? 0, moment.now)
  return { ...attemptOf(key, decision, request, { nowMs: moment.now, fence }), revision }
}

/**
 * `decide` says when the lease has ended by every clock. The caller gets the earliest time at which the lease may have ended, and
 * the later time once the earliest has passed.
 */
export function soonest(verdict: Verdict, { clockSkewMs }: DynamodbMoment): Verdict {
  if (verdict.is !== 'busy' || verdict.retryAfterMs <= 2 * clockSkewMs) return verdict
  return { is: 'busy', retryAfterMs: verdict.retryAfterMs - 2 * clockSkewMs }
}

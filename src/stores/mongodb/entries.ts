// An entry as a document, and what a claim makes of it. Pure: nothing here talks to MongoDB.
//
// Every time of an entry is the server's: `leaseFrom` and `claimedAt` are written by the server itself ($currentDate), all else
// is a duration that is counted from there. An entry that has ended has a lease of no length.

import { OnceError } from '../../core/errors.ts'
import { describeKey, keyString } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Claim, ClaimRequest, EntryState, Retention, Verdict } from '../../core/store.ts'
import type { Filter, StoredDocument } from './client.ts'

export interface StoredEntry extends Retention {
  readonly key: Key
  /** 'forget': nothing but the remains of an entry, kept until they are removed so that fences grow across lives. */
  readonly wrote: 'claim' | 'release' | 'settle' | 'forget'
  readonly how: 'fresh' | 'reopened' | 'taken-over'
  readonly token: string
  /** One more with every write: with the token, the condition that nobody has written since. */
  readonly revision: number
  readonly attempt: number
  readonly fence: number
  readonly fingerprint: string
  readonly version: number
  readonly firstClaimedAtMs: number
  readonly leaseFromMs: number
  readonly leaseMs: number
  readonly removeAtMs: number
  readonly outcome?: Uint8Array
  readonly input?: Uint8Array
}

/** An entry, and the server's time when it was read. */
export interface Seen {
  readonly entry: StoredEntry
  readonly now: number
}

/** Compared byte by byte, as no collation is allowed; a key has one line break, an audit record two (see the inspection). */
export function idOf(key: Key): string {
  return keyString(key)
}

export function keyFrom(id: unknown): Key {
  const [scope = '', name = ''] = String(id).split('\n')
  return { scope, id: name }
}

export function entryOf(document: StoredDocument): StoredEntry {
  const key = keyFrom(document['_id'])
  const text = (name: string): string => {
    const value = document[name]
    return typeof value === 'string' ? value : unreadable(key, name)
  }
  const integer = (name: string): number => {
    const value = document[name]
    return Number.isSafeInteger(value) ? (value as number) : unreadable(key, name)
  }
  const time = (name: string): number => timeOf(document[name]) ?? unreadable(key, name)
  const claimedAtMs = time('claimedAt')
  const [outcome, input] = [bytesFrom(document['outcome']), bytesFrom(document['input'])]
  return {
    key,
    wrote: text('wrote') as StoredEntry['wrote'],
    how: text('how') as StoredEntry['how'],
    token: text('token'),
    revision: integer('revision'),
    attempt: integer('attempt'),
    // The server's time is known when it is written and not before, so the fence is worked out by the reader.
    fence: Math.max(claimedAtMs * 1_000, integer('fenceMin')),
    fingerprint: text('fingerprint'),
    version: integer('version'),
    firstClaimedAtMs: timeOf(document['firstClaimedAt']) ?? claimedAtMs,
    leaseFromMs: time('leaseFrom'),
    leaseMs: integer('leaseMs'),
    keepMs: integer('keepMs'),
    tombstoneMs: integer('tombstoneMs'),
    removeAtMs: time('removeAt'),
    ...(outcome && { outcome }),
    ...(input && { input }),
  }
}

export function timeOf(value: unknown): number | undefined {
  return value instanceof Date && Number.isFinite(value.getTime()) ? value.getTime() : undefined
}

function bytesFrom(value: unknown): Uint8Array | undefined {
  return value instanceof Uint8Array ? new Uint8Array(value.buffer, value.byteOffset, value.byteLength) : undefined
}

function unreadable(key: Key, name: string): never {
  throw new OnceError('OUTCOME_UNREADABLE', {
    executed: 'unknown',
    message: `The document of ${describeKey(key)} in MongoDB has no readable "${name}". Nothing was run. Find out who wrote it; forget the key by hand if its effect may run again.`,
  })
}

export function leaseUntilMs({ leaseFromMs, leaseMs }: StoredEntry): number {
  return leaseFromMs + leaseMs
}

export function expiresAtMs(entry: StoredEntry): number {
  return leaseUntilMs(entry) + entry.keepMs
}

export function forgottenAtMs(entry: StoredEntry): number {
  return expiresAtMs(entry) + entry.tombstoneMs
}

/** Undefined when the entry is over, as if it had never been, whether or not MongoDB has removed it. */
export function stateOf({ entry, now }: Seen): EntryState | undefined {
  if (entry.wrote === 'forget' || now >= forgottenAtMs(entry)) return undefined
  if (now >= expiresAtMs(entry)) return 'tombstone'
  if (entry.wrote === 'settle') return 'settled'
  if (entry.wrote === 'release') return 'open'
  return now < leaseUntilMs(entry) ? 'running' : 'abandoned'
}

/** The same document, and nobody has written since. */
export function unchanged({ key, token, revision }: StoredEntry): Filter {
  return { _id: idOf(key), token, revision }
}

/** Held by this claim, by the server's time when the update is carried out: a holder whose entry has expired holds nothing. */
export function heldBy(claim: Claim): Filter {
  const held = heldByToken(claim)
  return { ...held, $expr: { $and: [held['$expr'], { $eq: [fenceOfDocument, claim.fence] }] } }
}

/** In whichever life of the key: for the release of a claim whose answer was never heard (fence 0). */
export function heldByToken({ key, token }: Claim): Filter {
  const expiresAt = { $add: ['$leaseFrom', '$leaseMs', '$keepMs'] }
  return { _id: idOf(key), token, wrote: 'claim', $expr: { $lt: ['$$NOW', expiresAt] } }
}

/** As `entryOf` works it out. */
const fenceOfDocument = {
  $max: [{ $multiply: [{ $subtract: ['$claimedAt', new Date(0)] }, 1_000] }, '$fenceMin'],
}

export function grantOf({ key, token, attempt, fence, how }: StoredEntry): Verdict {
  return { is: 'granted', claim: { key, token, attempt, fence }, how }
}

/** What a claim writes: the first entry of a key, the next attempt or a new life, or its own lease anew. */
export type Granting =
  | { readonly grant: 'first' }
  | { readonly grant: 'next'; readonly how: StoredEntry['how']; readonly over: StoredEntry }
  | { readonly grant: 'again'; readonly over: StoredEntry }

export function decide(seen: Seen | undefined, request: ClaimRequest): Verdict | Granting {
  if (!seen) return { grant: 'first' }
  const { entry, now } = seen
  const state = stateOf(seen)
  const isOwn = entry.token === request.token
  const next = (how: StoredEntry['how']): Granting => ({ grant: 'next', how, over: entry })
  if (!state) {
    // Whoever forgot the key with this token is gone.
    return entry.wrote === 'forget' && isOwn ? { is: 'busy', retryAfterMs: 0 } : next('fresh')
  }
  if (state === 'tombstone') return request.onExpired === 'run' ? next('fresh') : { is: 'expired' }
  if (entry.fingerprint !== request.fingerprint) return { is: 'mismatch' }
  if (state === 'settled') return replayOf(entry)
  if (isOwn) return state === 'open' ? { is: 'busy', retryAfterMs: 0 } : { grant: 'again', over: entry }
  if (state === 'running') return { is: 'busy', retryAfterMs: leaseUntilMs(entry) - now }
  if (state === 'open') return next('reopened')
  return request.onTakeover === 'refuse' ? { is: 'doubt', attempt: entry.attempt } : next('taken-over')
}

function replayOf({ key, outcome, version, attempt }: StoredEntry): Verdict {
  return { is: 'settled', outcome: outcome ?? unreadable(key, 'outcome'), version, attempt }
}

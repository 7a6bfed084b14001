// An entry as a document, and what a claim makes of it. Pure: nothing here talks to MongoDB.
//
// Every time of an entry is the server's. The server itself writes `leaseFrom` and `claimedAt` ($currentDate), and all else is a
// duration that is counted from there. An entry that has ended has a lease of no length.

import type { EntryRecord } from '../../core/entry.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey, keyString } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Claim } from '../../core/store.ts'
import type { MongodbFilter, MongodbDocument } from '../../clients/mongodb.ts'

export interface MongodbEntry extends EntryRecord {
  /** Grows by one with every write. With token and fence it is the condition that no other writer has written since. */
  readonly revision: number
  readonly leaseFromMs: number
  readonly removeAtMs: number
}

/** An entry, and the server's time when it was read. */
export interface SeenEntry {
  readonly entry: MongodbEntry
  readonly now: number
}

/** Compared byte by byte, as no collation is allowed. A key has one line break, an audit record two (see the inspection). */
export function idOf(key: Key): string {
  return keyString(key)
}

export function keyFrom(id: unknown): Key {
  const [scope = '', name = ''] = String(id).split('\n')
  return { scope, id: name }
}

export function entryOf(document: MongodbDocument): MongodbEntry {
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
    wrote: text('wrote') as MongodbEntry['wrote'],
    how: text('how') as MongodbEntry['how'],
    token: text('token'),
    revision: integer('revision'),
    attempt: integer('attempt'),
    // The server's time is known only once it is written, so the reader works out the fence.
    fence: Math.max(claimedAtMs * 1_000, integer('fenceMin')),
    fingerprint: text('fingerprint'),
    version: integer('version'),
    firstClaimedAtMs: timeOf(document['firstClaimedAt']) ?? claimedAtMs,
    leaseFromMs: time('leaseFrom'),
    leaseUntilMs: time('leaseFrom') + integer('leaseMs'),
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

export function unreadable(key: Key, name: string): never {
  throw new OnceError('OUTCOME_UNREADABLE', {
    executed: 'unknown',
    message: `The document of ${describeKey(key)} in MongoDB has no readable "${name}". Nothing was run. Find out who wrote it; forget the key by hand if its effect may run again.`,
  })
}

/**
 * The same document, and no other writer has written since. Revisions start again with a life: the fence tells two lives of a
 * token apart.
 */
export function unchanged({ key, token, revision, fence }: MongodbEntry): MongodbFilter {
  return { _id: idOf(key), token, revision, $expr: { $eq: [fenceOfDocument, fence] } }
}

/** Held by this claim, by the server's time when the update is carried out: a holder whose entry has expired holds nothing. */
export function heldBy(claim: Claim): MongodbFilter {
  const held = heldByToken(claim)
  return { ...held, $expr: { $and: [held['$expr'], { $eq: [fenceOfDocument, claim.fence] }] } }
}

/** In any life of the key: for the release of a claim whose reply never arrived (fence 0). */
export function heldByToken({ key, token }: Claim): MongodbFilter {
  const expiresAt = { $add: ['$leaseFrom', '$leaseMs', '$keepMs'] }
  return { _id: idOf(key), token, wrote: 'claim', $expr: { $lt: ['$$NOW', expiresAt] } }
}

/** As `entryOf` works it out. */
const fenceOfDocument = {
  $max: [{ $multiply: [{ $subtract: ['$claimedAt', new Date(0)] }, 1_000] }, '$fenceMin'],
}

// The numbers of a session as they lie in a key store. The record of a request lies there under its number, and its key is an id of its
// own with the caller's name of the operation:
//
//   till-7/holder             which client has the numbers: a token
//   till-7/EPOCH/0            the session, as the server gave it
//   till-7/EPOCH/SEQUENCE     a request, until it is settled
//
// - A number is on record, with its request, before the first attempt. A key store gives out a name once, so a number has one request.
// - The greatest number of a session is never removed. When it is settled it stays, marked by a window of 0, until a greater one is on
//   record. So a process that starts again never counts from below.
// - One client has the numbers: the one that took them last. A new number counts when its client still had them after it was on record.
//   Then whoever takes them later lists it, or a greater one. Only then is it marked as sent, and sent.
// - So what is not marked as sent and lies below a greater number is of a client that did not know that it had lost the numbers: the
//   number may have been used and settled since. It was never sent, and it never is.

import type { KeyStore, PendingRecord } from '../pending.ts'

/** What the server gave, and what the client sends with every request. */
export interface ServerSession {
  readonly session: string
  readonly epoch: number
  /** How many requests may be in flight or not settled. */
  readonly window: number
  /** How long the session lives without a request. */
  readonly leaseMs: number
}

/** What the records say. */
export interface NumberRecords {
  session: ServerSession | undefined
  /** The greatest number of the session. */
  last: number
  /** The greatest number that counts: every client that takes the numbers will find it, or a greater one. */
  sure: number
  /** Requests that are not settled, of this session and of ended ones, by their numbers. */
  readonly open: Map<string, PendingRecord>
  /** Sessions, what is settled, and what will never be sent. */
  readonly marks: Set<PendingRecord>
}

/** A record for which nothing is sent: it is settled, or its session has ended. */
export const over = { windowMs: 0 } as const

const nothing = { method: '', url: '', headers: [], body: null } as const

/** On record the number is the name, so that it is given out once. The id tells it from whatever else is ever written under this number. */
export function onRecord(asked: PendingRecord, number: string): PendingRecord {
  return { ...asked, operation: number, key: `${asked.key} ${asked.operation}`, sentAtMs: undefined }
}

/** For the client the number is the key of its operation. */
export function forClient(record: PendingRecord): PendingRecord {
  return { ...record, operation: operationOf(record), key: record.operation }
}

export function operationOf({ key }: PendingRecord): string {
  return key.slice(key.indexOf(' ') + 1)
}

export function epochOf(key: string): number {
  return Number(key.split('/').at(-2))
}

export function sequenceOf(key: string): number {
  return Number(key.split('/').at(-1))
}

export function keyOfNumber(client: string, epoch: number, sequence: number): string {
  return `${client}/${epoch}/${sequence}`
}

export function noRecords(): NumberRecords {
  return { session: undefined, last: 0, sure: 0, open: new Map(), marks: new Set() }
}

export async function readNumbers(client: string, keys: KeyStore): Promise<NumberRecords> {
  const found = noRecords()
  const numbered = (await keys.list()).filter(
    ({ operation }) => operation.startsWith(`${client}/`) && /^\/\d+\/\d+$/.test(operation.slice(client.length)),
  )
  for (const record of numbered.toSorted((one, other) => order(one.operation, other.operation))) {
    const { operation: key, key: said, windowMs } = record
    const isSession = sequenceOf(key) === 0
    if (isSession) found.session = JSON.parse(said) as ServerSession
    if (isSession || windowMs === 0) found.marks.add(record)
    else found.open.set(key, record)
    if (epochOf(key) === found.session?.epoch) found.last = sequenceOf(key)
  }
  for (const [key, record] of found.open) {
    const isUnsent = record.sentAtMs === undefined && epochOf(key) === found.session?.epoch
    if (!isUnsent || sequenceOf(key) === found.last) continue
    found.open.delete(key)
    found.marks.add(record)
  }
  return found
}

function order(one: string, other: string): number {
  return epochOf(one) - epochOf(other) || sequenceOf(one) - sequenceOf(other)
}

/** What is on record for its number only, when a greater number is. A failure leaves it to the next time. */
export async function removeMarks({ session, marks, sure }: NumberRecords, keys: KeyStore): Promise<void> {
  for (const mark of marks) {
    const sequence = sequenceOf(mark.operation)
    if (epochOf(mark.operation) === session?.epoch && (sequence === 0 || sequence >= sure)) continue
    marks.delete(mark)
    await keys.remove(mark.operation, mark.key).catch(() => marks.add(mark))
  }
}

export async function openSession(client: string, keys: KeyStore, session: ServerSession): Promise<PendingRecord> {
  const said = JSON.stringify(session)
  const mark = { operation: keyOfNumber(client, session.epoch, 0), key: said, request: nothing, createdAtMs: 0 }
  return keys.open(mark)
}

const holderOf = (client: string): string => `${client}/holder`

export async function takeNumbers(client: string, keys: KeyStore, token: string): Promise<void> {
  const mine = { operation: holderOf(client), key: token, request: nothing, createdAtMs: 0 }
  for (let standing = await keys.open(mine); standing.key !== token; standing = await keys.open(mine))
    await keys.remove(mine.operation, standing.key)
}

export async function hasNumbers(client: string, keys: KeyStore, token: string): Promise<boolean> {
  const standing = await keys.get(holderOf(client))
  return standing?.key === token
}

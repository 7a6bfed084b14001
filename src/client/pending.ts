// The life of an operation that a client has begun, and the port behind which its record is kept:
//
//   absent ──open──▶ waiting ──sent──▶ sent ──answered──▶ answered ──remove──▶ absent
//
// The record is durable before the first attempt, and leaves only when the caller has used the answer. Whatever happens in between
// (a crash, a reload, a second tab), the next attempt finds the key and the bytes of the request here. No Node module: browsers use it.

import { OnceError } from '../core/errors.ts'

/** Bytes are base64, so that a record is plain JSON in every key store. */
export interface KeptRequest {
  readonly method: string
  readonly url: string
  /** Without the key, and without credentials: those are not written to disk. */
  readonly headers: readonly (readonly [name: string, value: string])[]
  readonly body: string | null
  /** What `fetch` was told besides, as far as it is text: `credentials`, `mode`, `redirect`. */
  readonly init?: Readonly<Record<string, string>>
}

export interface KeptAnswer {
  readonly status: number
  readonly statusText: string
  readonly url: string
  readonly headers: readonly (readonly [name: string, value: string])[]
  readonly body: string | null
}

export interface PendingRecord {
  /** The caller's name for what it intends. */
  readonly operation: string
  readonly key: string
  readonly request: KeptRequest
  readonly createdAtMs: number
  /** When the first attempt began, or was about to. The server's window is counted from here: it cannot have begun earlier. */
  readonly sentAtMs?: number | undefined
  /** For how long the server remembers the key, as far as it is known. */
  readonly windowMs?: number | undefined
  readonly answer?: KeptAnswer | undefined
}

export type PendingState = 'waiting' | 'sent' | 'answered' | 'expired'

/** Where records are kept. `open`, `save` and `remove` are durable when they resolve, and atomic between tabs and processes. */
export interface KeyStore {
  /**
   * Keeps the record, unless the operation has one. Resolves to `record` itself if it was kept, and to the one that stands otherwise. A
   * store that waits stops when `signal` aborts.
   */
  open(record: PendingRecord, signal?: AbortSignal): Promise<PendingRecord>
  get(operation: string): Promise<PendingRecord | undefined>
  /** Writes what is new in the record (see `advance`). Does nothing when the operation has no record, or another key. */
  save(record: PendingRecord): Promise<void>
  /** Removes the record of this operation and this key, and no other. */
  remove(operation: string, key: string): Promise<void>
  list(): Promise<readonly PendingRecord[]>
}

/** A key store that can keep a record in a transaction of the caller. */
export interface TransactionalKeys<Tx> extends KeyStore {
  within(tx: Tx): Pick<KeyStore, 'open'>
}

/**
 * What `save` writes: what stands, with what `next` knows besides. The first answer stays, the earliest attempt counts, and the
 * shortest window holds. Undefined when there is nothing to write.
 */
export function advance(standing: PendingRecord | undefined, next: PendingRecord): PendingRecord | undefined {
  if (standing?.key !== next.key) return undefined
  const sentAtMs = least(standing.sentAtMs, next.sentAtMs)
  const windowMs = least(standing.windowMs, next.windowMs)
  const answer = standing.answer ?? next.answer
  if (sentAtMs === standing.sentAtMs && windowMs === standing.windowMs && answer === standing.answer) return undefined
  return { ...standing, sentAtMs, windowMs, answer }
}

function least(one: number | undefined, other: number | undefined): number | undefined {
  return one === undefined || other === undefined ? (one ?? other) : Math.min(one, other)
}

/** From this moment on a retry could run the effect a second time, because the server may have forgotten the key. */
export function lastRetryAtMs(record: PendingRecord, horizonMs: number): number {
  return record.sentAtMs === undefined ? Infinity : record.sentAtMs + Math.min(record.windowMs ?? Infinity, horizonMs)
}

export function stateOf(record: PendingRecord, horizonMs: number, nowMs: number): PendingState {
  if (record.answer) return 'answered'
  if (record.sentAtMs === undefined) return 'waiting'
  return nowMs < lastRetryAtMs(record, horizonMs) ? 'sent' : 'expired'
}

/** The same intention asks for the same. A form is the same under another boundary, which every serialisation draws anew. */
export function isSameRequest(one: KeptRequest, other: KeptRequest): boolean {
  return one.method === other.method && one.url === other.url && bodyOf(one) === bodyOf(other)
}

function bodyOf({ headers, body }: KeptRequest): string | null {
  const type = headers.find(([name]) => name === 'content-type')?.[1]
  const boundary = /^multipart\/.*boundary="?([^";]+)/i.exec(type ?? '')?.[1]
  return boundary && body !== null ? atob(body).replaceAll(boundary, '') : body
}

/** A record that cannot be read is an error. To treat it as absent would mean a new key for an operation that may have run. */
export function parseRecord(text: string, where: string): PendingRecord {
  try {
    const record = JSON.parse(text) as PendingRecord
    if (typeof record.operation === 'string' && typeof record.key === 'string' && record.request) return record
  } catch {
    // The message below says it.
  }
  throw new OnceError('OUTCOME_UNREADABLE', {
    executed: 'unknown',
    message: `The pending operation in ${where} cannot be read. Nothing was sent. Find out whether its effect took place, then remove it there.`,
  })
}

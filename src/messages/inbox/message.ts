// What the inbox reads in a message: its id, its fingerprint, its age, and its text for the day when a person looks at it.

import { fingerprint } from '../../core/fingerprint.ts'
import { key as keyFrom, keyOf } from '../../core/key.ts'
import type { Message } from '../broker.ts'

/** A message, and what the inbox knows it by. */
export interface Read<M> {
  readonly message: M
  readonly id: string
  readonly fingerprint: string
  readonly sentAtMs: number | undefined
  /** Messages of one key are handled in their order. */
  readonly key: string | undefined
  readonly version: EntityVersion | undefined
  /** Nobody named it. It cannot be told from others, so it is never run. */
  readonly isNameless: boolean
}

/** An entity that a message changes, and the version that the change leads to. Whole numbers, also beyond 2^53 as bigints. */
export interface EntityVersion {
  readonly entity: string
  readonly version: number | bigint
}

export interface Reading<M> {
  idOf(message: M): string | undefined
  bodyOf(message: M): unknown
  versionOf?: ((message: M) => EntityVersion | undefined) | undefined
}

/** A CloudEvent is known by its source and its id together. Everything else by the id that its sender or its broker gave it. */
export function idOfMessage({ id, headers }: Partial<Message>): string | undefined {
  const [source, event] = [headers?.['ce-source'], headers?.['ce-id']]
  return source !== undefined && event !== undefined ? `${source}#${event}` : id
}

export function bodyOfMessage(message: unknown): unknown {
  return (message as Partial<Message>).body ?? message
}

export function readMessage<M>(message: M, scope: string, reading: Reading<M>): Read<M> {
  const given = reading.idOf(message)
  const print = fingerprint(reading.bodyOf(message))
  const { sentAtMs, key } = message as Partial<Message>
  const isNameless = given === undefined || given === ''
  return {
    message,
    id: isNameless ? `nameless ${print}` : fitting(scope, given),
    fingerprint: print,
    sentAtMs: typeof sentAtMs === 'number' ? sentAtMs : undefined,
    key: typeof key === 'string' ? key : undefined,
    version: reading.versionOf?.(message),
    isNameless,
  }
}

/** An id that is too long for an index, or that a database could not hold, is known by its digest. */
export function fitting(scope: string, id: string): string {
  try {
    return keyFrom(scope, id).id
  } catch {
    return keyOf(scope, [Buffer.from(id, 'utf16le').toString('base64')]).id
  }
}

// `raw` is what a broker's client made of the message. It may hold sockets, and nothing that the message does not have.
export function encodeMessage(message: unknown): string {
  return JSON.stringify(message, (name, value: unknown) => {
    if (name === 'raw') return undefined
    // A Buffer becomes an object before it comes here.
    if (isBufferJson(value)) return { $bytes: Buffer.from(value.data).toString('base64') }
    if (value instanceof Uint8Array) return { $bytes: Buffer.from(value).toString('base64') }
    return typeof value === 'bigint' ? `${value}` : value
  })
}

export function decodeMessage(text: string): unknown {
  return JSON.parse(text, (_name, value: unknown) => {
    const bytes = (value as { readonly $bytes?: unknown } | null)?.$bytes
    return typeof bytes === 'string' ? new Uint8Array(Buffer.from(bytes, 'base64')) : value
  })
}

function isBufferJson(value: unknown): value is { readonly data: readonly number[] } {
  const { type, data } = (value ?? {}) as { type?: unknown; data?: unknown }
  return type === 'Buffer' && Array.isArray(data)
}

// An entry of a stream, and a message as inbox and relay have it. The fields `body` and `key` are ours, and every header is a field of
// its own name. A header that is called like one of ours travels as JSON in the field `headers`.

import type { RedisArgument } from '../../clients/redis.ts'
import type { Message, Outgoing } from '../broker.ts'
import { unpackedHeaders } from '../packed-headers.ts'

/** An entry as Redis has it. A field that comes twice has the last value. */
export interface StreamEntry {
  /** `1700000000000-0`: when it was added, by the server's clock, and a counter. */
  readonly id: string
  readonly fields: Readonly<Record<string, Buffer>>
}

export type StreamMessage = Message<StreamEntry>

const ours = ['body', 'key', 'headers']

export function messageOf(entry: StreamEntry, stream: string, delivery: number | undefined): StreamMessage {
  const { body, key, headers: packed, ...rest } = entry.fields
  const headers: Record<string, string> = {}
  for (const [name, value] of Object.entries(rest)) headers[name.toLowerCase()] = value.toString()
  Object.assign(headers, unpackedHeaders('headers', packed?.toString()))
  return {
    // The id of an entry names a send, not a message. It is better than none.
    id: headers['ce-id'] ?? entry.id,
    topic: stream,
    body: body ?? new Uint8Array(),
    headers,
    sentAtMs: Number(entry.id.split('-', 1)[0]),
    raw: entry,
    ...(key !== undefined && { key: key.toString() }),
    ...(delivery !== undefined && { delivery }),
  }
}

/** Names and values, one after another, as XADD takes them. */
export function fieldsOf({ id, key, body, headers }: Outgoing): RedisArgument[] {
  const all = { ...headers, 'ce-id': id }
  const own = Object.entries(all).filter(([name]) => !ours.includes(name))
  const packed = Object.entries(all).filter(([name]) => ours.includes(name))
  return [
    ...own.flat(),
    ...(packed.length === 0 ? [] : ['headers', JSON.stringify(Object.fromEntries(packed))]),
    ...(key === undefined ? [] : ['key', key]),
    'body',
    Buffer.from(body),
  ]
}

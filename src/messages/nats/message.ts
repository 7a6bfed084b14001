// A message of JetStream as the inbox reads it, and one of the relay as NATS carries it. The attributes of a CloudEvent are the headers
// `ce-…`, encoded as in HTTP: NATS trims values and ends them at a line break.

import type { NatsHeaders, NatsMessage } from '../../clients/nats.ts'
import type { Message, Outgoing } from '../broker.ts'

export type JetStreamMessage = Message<NatsMessage>

const keyHeader = 'ce-partitionkey'

export function messageOf(raw: NatsMessage): JetStreamMessage {
  const headers: Record<string, string> = {}
  for (const name of raw.headers?.keys() ?? []) {
    const lower = name.toLowerCase()
    const value = raw.headers!.values(name).join(', ')
    headers[lower] = lower.startsWith('ce-') ? decoded(value) : value
  }
  const id = headers['ce-id'] ?? headers['nats-msg-id']
  const key = headers[keyHeader]
  const timeMs = Date.parse(headers['ce-time'] ?? '')
  return {
    topic: raw.subject,
    body: raw.data,
    headers,
    sentAtMs: Number.isNaN(timeMs) ? raw.time.getTime() : timeMs,
    delivery: raw.info.deliveryCount,
    raw,
    ...(id !== undefined && { id }),
    ...(key !== undefined && { key }),
  }
}

export function writeHeaders({ id, key, headers }: Outgoing, to: NatsHeaders): void {
  const all = { ...headers, 'ce-id': id, ...(key !== undefined && { [keyHeader]: key }) }
  for (const [name, value] of Object.entries(all)) to.append(name, name.startsWith('ce-') ? encoded(value) : value)
}

/** Everything but the printable characters of ASCII, and of these the blank, the quote and the percent sign. */
const notPlain = /[^\x21\x23\x24\x26-\x7e]+/g

function encoded(value: string): string {
  return value.replace(notPlain, (text) =>
    Array.from(new TextEncoder().encode(text), (byte) => `%${byte.toString(16).padStart(2, '0').toUpperCase()}`).join(
      '',
    ),
  )
}

/** What is no valid encoding is from a sender that encodes nothing, and stays as it is. */
function decoded(value: string): string {
  try {
    return decodeURIComponent(value)
  } catch {
    return value
  }
}

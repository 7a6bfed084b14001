// A message of AMQP as the inbox reads it, and one of the relay as AMQP carries it. The attributes of a CloudEvent have the prefix
// `cloudEvents:` there (`cloudEvents_` is allowed too), and the key is the attribute `partitionkey`.

import type { AmqpMessage, AmqpProperties } from '../../clients/rabbitmq.ts'
import type { Message, Outgoing } from '../broker.ts'

export type RabbitmqMessage = Message<AmqpMessage>

const prefix = 'cloudEvents:'
const keyHeader = 'ce-partitionkey'

export function messageOf(raw: AmqpMessage, queue: string): RabbitmqMessage {
  const { messageId, contentType, timestamp, headers: given = {} } = raw.properties
  const headers: Record<string, string> = {}
  for (const [name, value] of Object.entries(given)) headers[nameOf(name)] = textOf(value)
  if (typeof contentType === 'string') headers['content-type'] = contentType
  const id = headers['ce-id'] ?? (typeof messageId === 'string' && messageId !== '' ? messageId : undefined)
  const key = headers[keyHeader]
  const sentAtMs = sentAt(headers['ce-time'], timestamp)
  const returned = Number(given['x-delivery-count'] ?? Number.NaN)
  return {
    topic: queue,
    body: raw.content,
    headers,
    raw,
    ...(id !== undefined && { id }),
    ...(key !== undefined && { key }),
    ...(sentAtMs !== undefined && { sentAtMs }),
    // Quorum queues count, from the second delivery on.
    ...(Number.isSafeInteger(returned) && { delivery: returned + 1 }),
  }
}

export function propertiesOf({ id, key, headers }: Outgoing, nowMs: number): AmqpProperties {
  const { 'content-type': contentType, ...rest } = headers
  const attributes = { ...rest, 'ce-id': id, ...(key !== undefined && { [keyHeader]: key }) }
  const named = Object.entries(attributes).map(([name, value]) => [
    name.startsWith('ce-') ? prefix + name.slice('ce-'.length) : name,
    value,
  ])
  return {
    messageId: id,
    timestamp: Math.floor(nowMs / 1_000),
    persistent: true,
    mandatory: true,
    ...(contentType !== undefined && { contentType }),
    headers: Object.fromEntries(named) as Record<string, string>,
  }
}

function nameOf(name: string): string {
  const lower = name.toLowerCase()
  return lower.startsWith('cloudevents:') || lower.startsWith('cloudevents_')
    ? `ce-${lower.slice(prefix.length)}`
    : lower
}

function textOf(value: unknown): string {
  if (typeof value === 'string') return value
  if (value instanceof Uint8Array) return new TextDecoder().decode(value)
  return typeof value === 'object' && value !== null ? JSON.stringify(value) : String(value)
}

// AMQP counts seconds. Some senders write milliseconds, and no message is from the year 5138.
const secondsMax = 1e11

function sentAt(time: string | undefined, timestamp: unknown): number | undefined {
  const timeMs = time === undefined ? Number.NaN : Date.parse(time)
  if (!Number.isNaN(timeMs)) return timeMs
  if (typeof timestamp !== 'number' || !(timestamp > 0)) return undefined
  return timestamp < secondsMax ? timestamp * 1_000 : timestamp
}

// A message as SQS has it, and as inbox and relay have it. SQS carries text of the characters that XML allows, at least one of it, and
// ten attributes that are not empty: what does not fit travels as base64, or as JSON in one attribute.

import { createHash } from 'node:crypto'
import type { SqsEntryToSend, SqsReceived } from '../../clients/sqs.ts'
import type { Message, Outgoing } from '../broker.ts'
import { unpackedHeaders } from '../packed-headers.ts'

export type SqsMessage = Message<SqsReceived>

const encodingHeader = 'content-transfer-encoding'
/** CloudEvents' own name for the key. Written where the message group does not say it. */
const keyHeader = 'ce-partitionkey'
/** The attribute for headers that cannot be attributes. */
const packedAttribute = 'headers'
const attributesMax = 10

export const isFifo = (queue: string): boolean => queue.endsWith('.fifo')

/** The end of a URL or an ARN is the queue's name. */
export const queueNameOf = (queue: string): string =>
  queue.slice(Math.max(queue.lastIndexOf('/'), queue.lastIndexOf(':')) + 1)

export function messageOf(received: SqsReceived, topic: string): SqsMessage {
  const { Body = '', Attributes = {} } = received
  const { [encodingHeader]: encoding, ...headers } = headersOf(received)
  const { SentTimestamp, ApproximateReceiveCount, MessageGroupId } = Attributes
  const id = headers['ce-id'] ?? namedBySender(Attributes['MessageDeduplicationId'], Body) ?? received.MessageId
  const key = headers[keyHeader] ?? MessageGroupId
  return {
    topic,
    body: encoding === 'base64' ? Buffer.from(Body, 'base64') : Buffer.from(Body),
    headers: encoding === undefined || encoding === 'base64' ? headers : { ...headers, [encodingHeader]: encoding },
    raw: received,
    ...(id !== undefined && { id }),
    ...(key !== undefined && { key }),
    ...(SentTimestamp !== undefined && { sentAtMs: Number(SentTimestamp) }),
    ...(ApproximateReceiveCount !== undefined && { delivery: Number(ApproximateReceiveCount) }),
  }
}

// A queue with content-based deduplication makes the id from the body. Two messages of an hour's distance with the same body are two
// messages, and such an id would make them one.
function namedBySender(deduplicationId: string | undefined, body: string): string | undefined {
  return deduplicationId === undefined || deduplicationId === sha256(body) ? undefined : deduplicationId
}

function headersOf({ MessageAttributes = {} }: SqsReceived): Record<string, string> {
  const headers: Record<string, string> = {}
  for (const [name, { StringValue }] of Object.entries(MessageAttributes)) {
    if (StringValue !== undefined && name !== packedAttribute) headers[name.toLowerCase()] = StringValue
  }
  return { ...headers, ...unpackedHeaders(packedAttribute, MessageAttributes[packedAttribute]?.StringValue) }
}

/** What a relay publishes, as one entry of a batch. `Id` is only for the reply. */
export function entryOf({ id, key, body, headers }: Outgoing, entryId: string, queueUrl: string): SqsEntryToSend {
  const text = textOf(body)
  const group = isFifo(queueUrl) ? (key === undefined ? fitting(id) : fitting(key)) : undefined
  // The id comes first, so that it is an attribute whatever there is beside it.
  const all: Record<string, string> = { 'ce-id': id, ...(text === undefined && { [encodingHeader]: 'base64' }) }
  if (key !== undefined && key !== group) all[keyHeader] = key
  for (const [name, value] of Object.entries(headers)) all[name] ??= value
  return {
    Id: entryId,
    // SQS takes no empty body, and '=' is what base64 pads with.
    MessageBody: text ?? (Buffer.from(body).toString('base64') || '='),
    MessageAttributes: attributesOf(all),
    ...(group !== undefined && { MessageGroupId: group, MessageDeduplicationId: fitting(id) }),
  }
}

function textOf(body: Uint8Array): string | undefined {
  try {
    const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(body)
    return isText(text) ? text : undefined
  } catch {
    return undefined
  }
}

const isText = (text: string): boolean => /^[\t\n\r\u0020-\uD7FF\uE000-\uFFFD\u{10000}-\u{10FFFF}]+$/u.test(text)

const isAttributeName = (name: string): boolean =>
  name !== packedAttribute && /^(?!(?:aws|amazon)\.)[\w-]+(?:\.[\w-]+)*$/i.test(name) && name.length <= 256

function attributesOf(headers: Readonly<Record<string, string>>): SqsEntryToSend['MessageAttributes'] {
  const entries = Object.entries(headers)
  const fit = entries.filter(([name, value]) => isAttributeName(name) && isText(value))
  // One of the ten is for the rest, if there is a rest.
  const own = fit.length === entries.length && fit.length <= attributesMax ? fit : fit.slice(0, attributesMax - 1)
  const rest = entries.filter((entry) => !own.includes(entry))
  const attributes =
    rest.length === 0 ? own : [...own, [packedAttribute, ascii(JSON.stringify(Object.fromEntries(rest)))] as const]
  return Object.fromEntries(attributes.map(([name, value]) => [name, { DataType: 'String', StringValue: value }]))
}

/** JSON escapes control characters by itself. This escapes all that is not ASCII, so that no character is left that SQS refuses. */
function ascii(json: string): string {
  return json.replaceAll(/[^\u0020-\u007E]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
}

/** Groups and deduplication ids are 1 to 128 letters, digits and punctuation marks of ASCII. */
function fitting(name: string): string {
  return /^[!-~]{1,128}$/.test(name) ? name : `sha256-${sha256(name)}`
}

function sha256(text: string): string {
  return createHash('sha256').update(text).digest('hex')
}

/** What SQS counts against its limit. */
export function bytesOf({ MessageBody, MessageAttributes }: SqsEntryToSend): number {
  const attributes = Object.entries(MessageAttributes)
  return attributes.reduce(
    (sum, [name, { DataType, StringValue }]) => sum + Buffer.byteLength(name + DataType + StringValue),
    Buffer.byteLength(MessageBody),
  )
}

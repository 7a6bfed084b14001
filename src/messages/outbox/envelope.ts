// An event becomes a row: what is published is made here, once, so that every attempt to publish it sends the same bytes. The envelope
// is CloudEvents 1.0, binary (attributes are headers, the body is the data) or structured (the body is all of it, as JSON).

import { invalidArgument } from '../../core/errors.ts'
import { aString, checkGiven, optional } from '../../core/options.ts'
import type { Rule } from '../../core/options.ts'
import { storableJson } from '../../core/outcome.ts'
import { laneOf } from './lanes.ts'

/** An event that is to leave with a transaction. */
export interface OutboxEvent {
  /** The topic, queue, subject or stream that it goes to. 1 to 255 bytes. */
  readonly topic: string
  /** What happened: 'order.placed'. The `type` of the CloudEvent. 1 to 255 bytes. */
  readonly type: string
  /** Events of one key are first delivered in the order in which their transactions commit. Without a key there is no order. 1 to 255 bytes. */
  readonly key?: string
  /** JSON, or bytes. The body of the message is empty without it. */
  readonly data?: unknown
  /** The media type of `data`. 'application/json' unless given, 'application/octet-stream' for bytes. */
  readonly contentType?: string
  /** The `subject` of the CloudEvent: what it is about, within its source. */
  readonly subject?: string
  /** Sent as they are. Names are lower-case, and do not begin with `ce-`. */
  readonly headers?: Readonly<Record<string, string>>
  /** The W3C trace context that it belongs to. */
  readonly traceparent?: string
}

export type EnvelopeMode = 'binary' | 'structured'

export interface EnvelopeContext {
  readonly mode: EnvelopeMode
  readonly source: string
  /** UUIDv7. */
  readonly id: string
  readonly atMs: number
  readonly traceparent: string | undefined
}

/** What the outbox keeps of an event. */
export interface OutboxRow {
  readonly id: string
  readonly lane: number
  readonly topic: string
  readonly key: string | null
  readonly type: string
  /** The body as it is sent: text, or base64. */
  readonly payload: string
  readonly encoding: 'text' | 'base64'
  readonly headers: Readonly<Record<string, string>>
}

const nameBytesMax = 255
const headerName = /^[a-z0-9!#$%&'*+.^_`|~-]{1,128}$/
const traceparentForm = /^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$/
// oxlint-disable-next-line no-control-regex
const controlCharacter = /[\u0000-\u001f\u007f-\u009f]/

/** A topic, a key, a type: what brokers and databases keep as a short line. */
export const shortLine: Rule = (value) =>
  typeof value === 'string' &&
  value !== '' &&
  Buffer.byteLength(value) <= nameBytesMax &&
  value.isWellFormed() &&
  !controlCharacter.test(value)
    ? undefined
    : `a string of 1 to ${nameBytesMax} bytes of UTF-8 without control characters`

const traceparentRule: Rule = (value) =>
  typeof value === 'string' && traceparentForm.test(value) ? undefined : 'a traceparent of W3C Trace Context'

const headersRule: Rule = (value) => {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return 'an object of strings'
  for (const [name, text] of Object.entries(value)) {
    if (!headerName.test(name) || name.startsWith('ce-')) {
      return `an object whose names are lower-case tokens that do not begin with "ce-" (the name ${JSON.stringify(name)} is not)`
    }
    if (typeof text !== 'string' || !text.isWellFormed() || controlCharacter.test(text)) {
      return `an object of strings without control characters (the value of "${name}" is not)`
    }
  }
  return undefined
}

const eventRules: Readonly<Record<string, Rule>> = {
  topic: shortLine,
  type: shortLine,
  key: optional(shortLine),
  data: () => undefined,
  contentType: optional(aString),
  subject: optional(shortLine),
  headers: optional(headersRule),
  traceparent: optional(traceparentRule),
}

export function checkEvent(event: OutboxEvent): void {
  checkGiven('outbox.add', event, eventRules)
  for (const name of ['topic', 'type'] as const) {
    if (event[name] === undefined) throw invalidArgument(`outbox.add: expected ${name} to be given, got undefined`)
  }
}

/** `lane` is given for an event without a key, which needs no order. */
export function rowOf(event: OutboxEvent, lane: number, context: EnvelopeContext): OutboxRow {
  const { topic, key = null, type } = event
  const attributes = attributesOf(event, context)
  const data = dataOf(event)
  const given = event.headers ?? {}
  const place = { id: context.id, lane: key === null ? lane : laneOf(key), topic, key, type }
  const trace = attributes['traceparent'] === undefined ? {} : { traceparent: attributes['traceparent'] }
  if (context.mode === 'binary') {
    const { datacontenttype, traceparent: _, ...rest } = attributes
    const headers = {
      ...given,
      ...prefixed(rest),
      ...trace,
      ...(datacontenttype && { 'content-type': datacontenttype }),
    }
    return { ...place, payload: data?.text ?? '', encoding: data?.encoding ?? 'text', headers }
  }
  const member = !data
    ? ''
    : data.encoding === 'base64'
      ? `,"data_base64":${JSON.stringify(data.text)}`
      : `,"data":${data.isJson ? data.text : JSON.stringify(data.text)}`
  const payload = `${JSON.stringify(attributes).slice(0, -1)}${member}}`
  const headers = {
    ...given,
    ...prefixed({ id: context.id, source: context.source, type, specversion: '1.0' }),
    ...trace,
    'content-type': 'application/cloudevents+json; charset=utf-8',
  }
  return { ...place, payload, encoding: 'text', headers }
}

function attributesOf(event: OutboxEvent, context: EnvelopeContext): Record<string, string> {
  const { type, subject, key, data } = event
  const traceparent = event.traceparent ?? context.traceparent
  const contentType =
    event.contentType ?? (data instanceof Uint8Array ? 'application/octet-stream' : 'application/json')
  return {
    specversion: '1.0',
    id: context.id,
    source: context.source,
    type,
    ...(subject !== undefined && { subject }),
    time: new Date(context.atMs).toISOString(),
    ...(data !== undefined && { datacontenttype: contentType }),
    ...(key !== undefined && { partitionkey: key }),
    ...(traceparent !== undefined && { traceparent }),
  }
}

function prefixed(attributes: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(Object.entries(attributes).map(([name, value]) => [`ce-${name}`, value]))
}

interface EventData {
  readonly text: string
  readonly encoding: 'text' | 'base64'
  readonly isJson: boolean
}

function dataOf({ data, contentType = 'application/json' }: OutboxEvent): EventData | undefined {
  if (data === undefined) return undefined
  if (data instanceof Uint8Array) {
    return {
      text: Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString('base64'),
      encoding: 'base64',
      isJson: false,
    }
  }
  // A text of another media type (XML, CSV) is sent as it is.
  const isJson = /^[^;]*[/+]json\b/i.test(contentType)
  if (!isJson && typeof data === 'string' && data.isWellFormed() && !data.includes('\0')) {
    return { text: data, encoding: 'text', isJson }
  }
  let text: string | undefined
  try {
    text = isJson ? storableJson(data) : undefined
  } catch (error) {
    throw invalidArgument(
      `outbox.add: expected data to be JSON or bytes: ${error instanceof Error ? error.message : String(error)}`,
    )
  }
  if (text !== undefined) return { text, encoding: 'text', isJson }
  const expected = isJson ? 'JSON or bytes' : `well-formed text or bytes, as contentType is "${contentType}"`
  throw invalidArgument(`outbox.add: expected data to be ${expected}, got a value of type ${typeof data}`)
}

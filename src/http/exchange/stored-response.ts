// An answer as bytes, and back: a replay is what was stored, octet for octet. Kept are the status, the end-to-end headers and
// the body. Left out is what belongs to one exchange or one connection and would be wrong, stale or another client's in a
// replay: hop-by-hop, Date, cookies, authentication, tracing and rate limits.

import { invalidArgument, OnceError } from '../../core/errors.ts'
import { versionNumber } from '../../core/options.ts'

export type HeaderLine = readonly [name: string, value: string]

/** A complete answer. A name that comes twice is two header lines. */
export interface Answer {
  readonly status: number
  /** The reason phrase, when it is not the usual one. */
  readonly message?: string
  readonly headers: readonly HeaderLine[]
  readonly body: Uint8Array
}

/** Of the code that wrote the answer. `any`: a person gave it, and it is replayed as it is by every version. */
export type ResponseVersion = number | 'any'

export type StoredAnswer =
  | { readonly is: 'answer'; readonly answer: Answer; readonly version: ResponseVersion }
  | { readonly is: 'not-stored' }

/** Of one connection (RFC 9110, 7.6.1): neither stored nor passed on. The gateway uses the same list. */
export const hopByHop: readonly string[] = [
  'connection',
  'keep-alive',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'proxy-authenticate',
  'proxy-authorization',
  'http2-settings',
]

const notKept = new Set([
  ...hopByHop,
  // The framing, which is new on every connection.
  'content-length',
  // Generated at the time of sending.
  'date',
  'age',
  // Credentials: the client of a replay has authenticated anew.
  'set-cookie2',
  'www-authenticate',
  'authentication-info',
  'proxy-authentication-info',
  'authorization',
  // Tracing: a replay is another request.
  'traceparent',
  'tracestate',
  'traceresponse',
  'baggage',
  'server-timing',
  'b3',
  'x-request-id',
  'request-id',
  'x-correlation-id',
  'x-amzn-trace-id',
  'x-amzn-requestid',
  'x-cloud-trace-context',
  'uber-trace-id',
  // Rate limits: what is left now is not what was left then.
  'ratelimit',
  'x-retry-after',
  // Our own, written anew on every answer.
  'idempotency-window',
  'idempotency-status',
])
const notKeptPrefixes = ['ratelimit-', 'x-ratelimit-', 'x-rate-limit-', 'x-b3-']

export interface KeepOptions {
  /** 0 when it is left out. */
  readonly version?: ResponseVersion
  readonly replaySetCookie: boolean
  readonly replayHeader: string
}

export function headersToKeep(answer: Answer, options: KeepOptions): readonly HeaderLine[] {
  const nominated = new Set<string>()
  for (const [name, value] of answer.headers) {
    if (name.toLowerCase() !== 'connection') continue
    for (const each of value.split(',')) nominated.add(each.trim().toLowerCase())
  }
  const replayHeader = options.replayHeader.toLowerCase()
  return answer.headers.filter(([name]) => {
    const lower = name.toLowerCase()
    if (lower === 'set-cookie') return options.replaySetCookie
    // Seconds from then on: by the time of a replay they have passed.
    if (lower === 'retry-after') return answer.status !== 429 && answer.status !== 503
    if (notKept.has(lower) || nominated.has(lower) || lower === replayHeader) return false
    return !notKeptPrefixes.some((prefix) => lower.startsWith(prefix))
  })
}

// One byte of format, four of length, the head as JSON, the body as it is.
const formats = { answer: 1, notStored: 2 } as const
const headStart = 5

export function encodeAnswer(answer: Answer, options: KeepOptions): Uint8Array {
  const { body } = answer
  const head = encodeHead(answer, options)
  const bytes = Buffer.allocUnsafe(headStart + head.length + body.length)
  bytes[0] = formats.answer
  bytes.writeUInt32BE(head.length, 1)
  bytes.set(head, headStart)
  bytes.set(body, headStart + head.length)
  return bytes
}

// A service answers with the same status and headers again and again, and to compare them costs a tenth of choosing and writing them.
let lastWritten:
  | { readonly head: Omit<Answer, 'body'>; readonly options: KeepOptions; readonly bytes: Uint8Array }
  | undefined

function encodeHead(answer: Answer, options: KeepOptions): Uint8Array {
  if (lastWritten?.options === options && isSameHead(lastWritten.head, answer)) return lastWritten.bytes
  const { status, message } = answer
  const line = { status, ...(message !== undefined && { message }) }
  const { version = 0 } = options
  const written = { ...line, headers: headersToKeep(answer, options), ...(version !== 0 && { version }) }
  const bytes = Buffer.from(JSON.stringify(written))
  // Without the body, which may be large.
  lastWritten = { head: { ...line, headers: answer.headers.map(([name, value]) => [name, value]) }, options, bytes }
  return bytes
}

function isSameHead(one: Omit<Answer, 'body'>, other: Omit<Answer, 'body'>): boolean {
  if (one.status !== other.status || one.message !== other.message || one.headers.length !== other.headers.length) {
    return false
  }
  for (let at = 0; at < one.headers.length; at++) {
    const [name, value] = one.headers[at]!
    const line = other.headers[at]!
    // The length is never kept.
    if (name !== line[0] || (value !== line[1] && name !== 'content-length')) return false
  }
  return true
}

/**
 * The value of an HTTP key with this response, for `once.resolve` and `once.reconcileKeys`: every retry gets the response. Name the
 * `version` of your middleware, and a later one brings it up to date. Without it every version replays it as it is.
 *
 * @example
 * ```ts
 * import { createOnce } from 'onceonly'
 * import { storedResponse } from 'onceonly/fetch'
 * import { memoryStore } from 'onceonly/memory'
 *
 * const once = createOnce({ store: memoryStore(), scope: 'shop' })
 * const key = { scope: 'shop/acme', id: 'order-42' }
 * const value = storedResponse({ status: 201, headers: { 'Content-Type': 'application/json' }, body: '{"receipt":"r1"}' })
 * await once.resolve(key, { value }, 'the bank confirmed the charge')
 * ```
 */
export function storedResponse(response: {
  readonly status: number
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: string | Uint8Array
  readonly version?: number
}): Uint8Array {
  const { status, headers = {}, body = '', version = 'any' } = response
  if (!Number.isInteger(status) || status < 200 || status > 599) {
    throw invalidArgument(`storedResponse: expected status to be an integer from 200 to 599, got ${String(status)}`)
  }
  const expected = version === 'any' ? undefined : versionNumber(version)
  if (expected !== undefined) {
    throw invalidArgument(`storedResponse: expected version to be ${expected}, got ${String(version)}`)
  }
  const lines = Object.entries(headers)
  for (const [name, value] of lines) {
    if (isSendable(name, value)) continue
    const got = `${JSON.stringify(name)}: ${JSON.stringify(value)}`
    throw invalidArgument(`storedResponse: expected headers to be names and values that HTTP can send, got ${got}`)
  }
  if (typeof body !== 'string' && !(body instanceof Uint8Array)) {
    throw invalidArgument(`storedResponse: expected body to be a string or bytes, got a value of type ${typeof body}`)
  }
  const bytes = typeof body === 'string' ? Buffer.from(body) : body
  return encodeAnswer({ status, headers: lines, body: bytes }, { ...foundOptions, version })
}

/** A header that Node refuses to send would make every replay a 500, for as long as the key is kept. */
function isSendable(name: string, value: unknown): boolean {
  const isName = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(name)
  return isName && typeof value === 'string' && /^[\t\x20-\x7e\x80-\xff]*$/.test(value)
}

// Cookies are of one session, and the replay header is written anew. A person does not know the version of the service.
export const foundOptions: KeepOptions = {
  replaySetCookie: false,
  replayHeader: 'idempotent-replayed',
  version: 'any',
}

export function encodeNotStored(): Uint8Array {
  return Uint8Array.of(formats.notStored)
}

interface StoredHead extends Omit<Answer, 'body'> {
  /** Left out when it is 0. */
  readonly version?: ResponseVersion
}

export function decodeStored(stored: unknown): StoredAnswer {
  if (!(stored instanceof Uint8Array)) throw unreadable(`it is no bytes but ${typeof stored}`)
  if (stored[0] === formats.notStored) return { is: 'not-stored' }
  if (stored[0] !== formats.answer) throw unreadable(`it begins with byte ${stored[0] ?? 'none'}`)
  const bytes = Buffer.from(stored.buffer, stored.byteOffset, stored.byteLength)
  try {
    const bodyStart = headStart + bytes.readUInt32BE(1)
    if (bodyStart > bytes.length) throw new Error('it is cut off')
    const { version = 0, status, message, headers } = decodeHead(bytes, bodyStart)
    const body = bytes.subarray(bodyStart)
    const answer = message === undefined ? { status, headers, body } : { status, message, headers, body }
    return { is: 'answer', answer, version }
  } catch (error) {
    throw unreadable(error instanceof Error ? error.message : String(error))
  }
}

// As on the way in: most heads are the one before. It is handed out again, so a reader must not change it.
let lastRead: { readonly bytes: Buffer; readonly head: StoredHead } | undefined

function decodeHead(bytes: Buffer, bodyStart: number): StoredHead {
  if (lastRead && lastRead.bytes.compare(bytes, headStart, bodyStart) === 0) return lastRead.head
  const head = JSON.parse(bytes.toString('utf8', headStart, bodyStart)) as StoredHead
  if (!Number.isInteger(head.status) || !Array.isArray(head.headers)) throw new Error('its head is damaged')
  lastRead = { bytes: Buffer.from(bytes.subarray(headStart, bodyStart)), head }
  return head
}

function unreadable(why: string): OnceError {
  return new OnceError('OUTCOME_UNREADABLE', {
    message: `The stored answer cannot be read as an HTTP response: ${why}. The effect has run and was not run again.`,
  })
}

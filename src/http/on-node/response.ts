// Holds what a handler writes to a Node response until it may leave, whichever way it writes: end, write, writeHead, pipes,
// files, streams. To the handler the response behaves as if it were sent. The client gets not a byte of it.

import { STATUS_CODES, validateHeaderName, validateHeaderValue } from 'node:http'
import type { OutgoingHttpHeader, OutgoingHttpHeaders, ServerResponse } from 'node:http'
import type { Answer, HeaderLine, Produced } from '../exchange.ts'
import { encodingOf, hasBody, sendAnswer, setHeaders, toBuffer } from './send.ts'

export interface ResponseLimits {
  readonly storedBytesMax: number
  /** `not-stored`: server-sent events are not held. */
  readonly stream: 'not-stored' | 'record'
}

export interface HeldResponse {
  readonly produced: Promise<Produced>
  /** Has the handler begun to answer? */
  began(): boolean
  /** Send the answer as the handler made it, with headers added. What the handler still writes goes straight out. */
  forward(headers: readonly HeaderLine[]): void
  /** Send another answer. What the handler wrote or still writes is dropped. */
  replace(answer: Answer): void
  /** The handler gives up its answer, unless the answer has ended already. */
  breakOff(): 'answered' | 'gave up'
}

/** Node's own marks of a response that is under way. Other packages (compression, for one) have read them for a decade. */
type Internals = ServerResponse & {
  _header: string | null
  finished: boolean
  _trailer: string
  getRawHeaderNames(): string[]
}
type Callback = (error?: Error | null) => void
type Headers = OutgoingHttpHeaders | OutgoingHttpHeader[]
type Head = [status: number, reason?: string | Headers, headers?: Headers]
type Written = [chunk?: unknown, encoding?: BufferEncoding | Callback, callback?: Callback]

/** A class: one object for each response, and no closures. */
class Hold implements HeldResponse {
  readonly res: Internals
  /** The methods as they were before us. */
  readonly own: Pick<Internals, 'writeHead' | 'write' | 'end' | 'flushHeaders' | 'destroy'>
  readonly limits: ResponseLimits
  /** The headers that were there before the handler. */
  readonly before: OutgoingHttpHeaders
  readonly chunks: Buffer[] = []
  readonly callbacks: Callback[] = []
  readonly produced: Promise<Produced>
  resolve!: (produced: Produced) => void
  /** The headers, when all of them were given with the head. None of them is on `res`. */
  head: Record<string, string> | undefined = undefined
  /** The body as it was given, when that was one string. */
  text: string | undefined = undefined
  encoding: BufferEncoding = 'utf8'
  phase: 'holding' | 'passing' | 'replaced' = 'holding'
  status = 0
  /** The reason phrase when the head was given. A phrase that is set later is not sent, as in Node itself. */
  message = ''
  bytes = 0
  is: 'whole' | 'stream' | 'broken' = 'whole'
  ended = false
  flushed = false

  constructor(res: Internals, limits: ResponseLimits, before: OutgoingHttpHeaders) {
    const { writeHead, write, end, flushHeaders, destroy } = res
    this.res = res
    this.own = { writeHead, write, end, flushHeaders, destroy }
    this.limits = limits
    this.before = before
    this.produced = new Promise((resolve) => (this.resolve = resolve))
  }

  began(): boolean {
    return this.res._header !== null
  }

  forward(headers: readonly HeaderLine[]): void {
    forward(this, headers)
  }

  replace(answer: Answer): void {
    replace(this, answer)
  }

  breakOff(): 'answered' | 'gave up' {
    return breakOff(this)
  }
}

export function holdResponse(
  response: ServerResponse,
  limits: ResponseLimits,
  before: OutgoingHttpHeaders,
): HeldResponse {
  const res = response as Internals
  const hold = new Hold(res, limits, before)
  const held = res as Held
  held[holdOf] = hold
  res.writeHead = shared.writeHead as Internals['writeHead']
  res.write = shared.write as Internals['write']
  res.end = shared.end as Internals['end']
  res.flushHeaders = shared.flushHeaders
  res.destroy = shared.destroy
  return hold
}

const holdOf = Symbol('onceonly: what is held of this response')
type Held = Internals & { [holdOf]: Hold }

// The same functions on every response, never closures. Measured: with one closure per request on the response, 7 MB outlive
// every scavenge (whole requests, seemingly kept by call sites that met the closure). With shared functions none do. The young
// generation then grows past the caches, and all code runs slower.
const shared = {
  writeHead(this: Held, ...head: Head): Internals {
    return heldWriteHead(this[holdOf], head)
  },
  write(this: Held, ...written: Written): boolean {
    return heldWrite(this[holdOf], written)
  },
  end(this: Held, ...written: Written): Internals {
    return heldEnd(this[holdOf], written)
  },
  flushHeaders(this: Internals): void {
    heldFlushHeaders((this as Held)[holdOf])
  },
  destroy(this: Internals, error?: Error): Internals {
    return heldDestroy((this as Held)[holdOf], error)
  },
}

function heldWriteHead(hold: Hold, head: Head): Internals {
  const { res, own, phase } = hold
  if (phase === 'replaced') return res
  // Node itself refuses a second head or an impossible status, with its own message.
  const refused = res._header !== null || !(head[0] >= 100 && head[0] <= 999)
  if (phase === 'passing' || refused) return Reflect.apply(own.writeHead, res, head) as Internals
  applyHead(hold, head)
  hold.status = res.statusCode
  hold.message = res.statusMessage
  // While it is set, Node says that the headers were sent and refuses to change them.
  res._header = 'held by onceonly'
  if (isEventStream(hold) || declaredLength(hold) > hold.limits.storedBytesMax) beginStream(hold)
  return res
}

function heldWrite(hold: Hold, written: Written): boolean {
  const { res, own, phase } = hold
  const [chunk, encoding] = written
  if (phase === 'replaced') return tell(written)
  if (phase === 'passing' || hold.ended || !isChunk(chunk)) return Reflect.apply(own.write, res, written) as boolean
  implicitHead(hold)
  // A copy: the caller may reuse its buffer as soon as the callback says that it was written.
  keep(hold, typeof chunk === 'string' ? toBuffer(chunk, encoding) : Buffer.from(chunk))
  tell(written)
  return hold.is === 'whole'
}

function heldEnd(hold: Hold, written: Written): Internals {
  const { res, own, phase } = hold
  const [chunk, encoding] = written
  if (phase === 'replaced') return (tell(written), res)
  const refused = chunk !== undefined && chunk !== null && typeof chunk !== 'function' && !isChunk(chunk)
  if (phase === 'passing' || hold.ended || refused) return Reflect.apply(own.end, res, written) as Internals
  implicitHead(hold)
  if (isChunk(chunk) && chunk.length > 0) {
    if (typeof chunk === 'string' && hold.chunks.length === 0) {
      hold.text = chunk
      hold.encoding = encodingOf(encoding)
    }
    keep(hold, toBuffer(chunk, encoding))
  }
  for (const each of written) if (typeof each === 'function') hold.callbacks.push(each as Callback)
  hold.ended = res.finished = true
  // A body whose length differs from Content-Length was cut off: it may pass, but it must not be replayed as complete.
  if (hold.is === 'whole' && declaredLength(hold, hold.bytes) !== hold.bytes) beginStream(hold)
  if (hold.is === 'whole') hold.resolve({ is: 'answer', answer: answerOf(hold) })
  return res
}

function heldFlushHeaders(hold: Hold): void {
  if (hold.phase === 'passing') return hold.own.flushHeaders.call(hold.res)
  if (hold.phase === 'replaced') return
  hold.flushed = true
  implicitHead(hold)
}

function heldDestroy(hold: Hold, error?: Error): Internals {
  if (hold.phase !== 'holding') return hold.own.destroy.call(hold.res, error) as Internals
  breakOff(hold)
  return hold.res
}

/** An answer that has ended is whole, whatever happens to the connection. */
function breakOff(hold: Hold): 'answered' | 'gave up' {
  if (hold.phase !== 'holding') return 'gave up'
  if (hold.ended) return 'answered'
  hold.is = 'broken'
  hold.resolve({ is: 'broken' })
  return 'gave up'
}

function beginStream(hold: Hold): void {
  if (hold.is !== 'whole') return
  hold.is = 'stream'
  hold.resolve({ is: 'stream', status: hold.status })
}

// Through the property: a package that wrapped writeHead inside us (compression, sessions) must be called.
function implicitHead({ res }: Hold): void {
  if (res._header === null) res.writeHead(res.statusCode)
}

function keep(hold: Hold, piece: Buffer): void {
  if (!hasBody(hold.status)) return
  hold.chunks.push(piece)
  hold.bytes += piece.length
  if (hold.bytes > hold.limits.storedBytesMax) beginStream(hold)
}

function forward(hold: Hold, headers: readonly HeaderLine[]): void {
  const { res, own } = hold
  if (hold.phase !== 'holding') return
  unhold(hold)
  if (hold.is === 'broken') return void own.destroy.call(res)
  res.statusCode = hold.status
  res.statusMessage = hold.message
  if (hold.head) {
    for (const [name, value] of headers) hold.head[name] = value
    own.writeHead.call(res, hold.status, hold.head)
  } else {
    setHeaders(res, headers)
  }
  if (hold.is === 'stream' || res._trailer) passOn(hold)
  else sendWhole(hold)
}

function sendWhole(hold: Hold): void {
  const { res, own, text, encoding, status, chunks } = hold
  // Text as text: Node then writes head and body in one piece.
  const body: readonly unknown[] = text !== undefined && hasBody(status) ? [text, encoding] : whole(chunks)
  Reflect.apply(own.end, res, hold.callbacks.length > 0 ? [...body, () => finished(hold)] : body)
}

/** What was held so far, and then what follows. */
function passOn(hold: Hold): void {
  const { res, own, chunks } = hold
  for (const chunk of chunks) Reflect.apply(own.write, res, [chunk])
  chunks.length = 0
  if (res._header === null) res.writeHead(hold.status)
  if (hold.flushed) own.flushHeaders.call(res)
  if (hold.ended) Reflect.apply(own.end, res, [() => finished(hold)])
  else res.emit('drain')
}

function replace(hold: Hold, answer: Answer): void {
  const { res, own, before } = hold
  if (hold.phase !== 'holding') return
  unhold(hold)
  const { sendDate } = res
  for (const name of res.getHeaderNames()) if (!(name in before)) res.removeHeader(name)
  // Node takes the removal of Date for the wish to send none.
  res.sendDate = sendDate
  res._trailer = ''
  sendAnswer(res, answer, before, (body) => void Reflect.apply(own.end, res, body))
  hold.phase = 'replaced'
}

/** Take our marks away, so that Node writes a head. */
function unhold(hold: Hold): void {
  hold.phase = 'passing'
  hold.res._header = null
  hold.res.finished = false
}

function finished(hold: Hold): void {
  for (const callback of hold.callbacks) callback()
}

/** What writeHead is given goes where setHeader puts it, as Node itself does when both are used. */
function applyHead(hold: Hold, [status, reason, headers]: Head): void {
  const { res } = hold
  const given = typeof reason === 'string' ? headers : (headers ?? reason)
  if (typeof reason === 'string') res.statusMessage = reason
  // Node would refuse it only when the head is written, after the answer has been stored.
  if (res.statusMessage) validateHeaderValue('status-message', res.statusMessage)
  res.statusCode = status | 0
  if (isPlainHead(res, given)) {
    hold.head = { ...given }
  } else if (Array.isArray(given)) {
    const flat = given.flat() as (string | number)[]
    for (let at = 0; at < flat.length; at += 2) res.removeHeader(String(flat[at]))
    for (let at = 0; at < flat.length; at += 2) res.appendHeader(String(flat[at]), String(flat[at + 1]))
  } else if (typeof given === 'object') {
    for (const [name, value] of Object.entries(given)) if (name) res.setHeader(name, value as OutgoingHttpHeader)
  }
}

/**
 * All the headers in one object, as Fastify gives them. Node then takes the object as it is, and nothing has to be set, looked
 * up and taken out again. Anything out of the ordinary goes through setHeader.
 */
function isPlainHead(res: Internals, given: Headers | undefined): given is Record<string, string> {
  if (typeof given !== 'object' || Array.isArray(given) || given['content-length'] === undefined) return false
  if (res.getHeaderNames().length > 0) return false
  for (const name of Object.keys(given)) {
    const value = given[name]
    if (typeof value !== 'string' || name !== name.toLowerCase() || ours.has(name)) return false
    validateHeaderName(name)
    validateHeaderValue(name, value)
  }
  return true
}

/** A header that is added when an answer leaves replaces the one that the handler may have set. */
const ours: ReadonlySet<string> = new Set(['idempotency-window', 'idempotency-status'])

function answerOf(hold: Hold): Answer {
  const { message, status, chunks } = hold
  const answer = { status, headers: headersOf(hold), body: whole(chunks)[0] ?? new Uint8Array() }
  return message && message !== STATUS_CODES[status] ? { ...answer, message } : answer
}

/** A header that was there before the handler is set anew on every attempt, by the middleware (CORS, request ids, limits). */
function headersOf({ res, before, head }: Hold): readonly HeaderLine[] {
  const headers: HeaderLine[] = []
  if (head) {
    for (const name of Object.keys(head)) if (before[name] !== head[name]) headers.push([name, head[name]!])
    return headers
  }
  for (const name of res.getRawHeaderNames()) {
    const value = res.getHeader(name)
    if (value === undefined || before[name.toLowerCase()] === value) continue
    if (Array.isArray(value)) for (const each of value) headers.push([name, String(each)])
    else headers.push([name, String(value)])
  }
  return headers
}

function whole(chunks: Buffer[]): readonly Buffer[] {
  if (chunks.length > 1) chunks.splice(0, chunks.length, Buffer.concat(chunks))
  return chunks
}

function isEventStream(hold: Hold): boolean {
  if (hold.limits.stream === 'record') return false
  return /^\s*text\/event-stream\b/i.test(String(headerOf(hold, 'content-type') ?? ''))
}

function headerOf({ res, head }: Hold, name: string): OutgoingHttpHeader | undefined {
  return head ? head[name] : res.getHeader(name)
}

function declaredLength(hold: Hold, otherwise = 0): number {
  const { status } = hold
  const declared = headerOf(hold, 'content-length')
  return declared === undefined || !hasBody(status) ? otherwise : Number(declared)
}

function isChunk(chunk: unknown): chunk is string | Uint8Array {
  return typeof chunk === 'string' || chunk instanceof Uint8Array
}

/** Calls the callback, if there is one: the chunk was taken. */
function tell(written: Written): true {
  for (const each of written) if (typeof each === 'function') process.nextTick(each as Callback)
  return true
}

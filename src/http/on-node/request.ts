// Reads the body of a Node request before the claim and puts it back, so that a body parser, a pipe or a handler behind us
// reads exactly the bytes that came. A body that is too large is not held. It streams on, and its digest is checked at its end.

import { IncomingMessage } from 'node:http'
import type { Readable } from 'node:stream'
import { checkDigest, DigestError, keptBytes } from '../exchange.ts'
import type { Body, BodyLimits } from '../exchange.ts'

const noBody: Body = { is: 'bytes', bytes: new Uint8Array() }

/** The client went away before its whole request was there: no client is left to answer. */
export class ClientGone extends Error {
  constructor() {
    super('The client went away while its request was read.')
  }
}

/** `kept` is what a parser before us kept of the raw bytes. */
export function readNodeBody(req: IncomingMessage, kept: unknown, limits: BodyLimits): Body | Promise<Body> {
  const bytes = typeof kept === 'string' ? Buffer.from(kept) : kept
  if (bytes instanceof Uint8Array) return keptBytes(bytes, limits)
  const length = req.headers['content-length']
  if (saysNoBody(req, length)) return noBody
  if (req.readableDidRead || req.readableEnded) return keptBytes(undefined, limits)
  if (Number(length) > limits.bytesMax) return tooLarge(req, limits, [])
  return collect(req, limits)
}

// The stream of fastify.inject has neither header, and may still have a body.
function saysNoBody(req: IncomingMessage, length: string | undefined): boolean {
  if (length !== undefined) return Number(length) === 0
  return req.headers['transfer-encoding'] === undefined && req instanceof IncomingMessage
}

/** Node buffers a body of this size whether or not it is read: it is far below the 64 KB at which a stream is full. */
const tappedBytesMax = 16_384

export interface Tap {
  /** The body, as soon as all of it has come in. */
  body(): Body | Promise<Body>
}

/**
 * Records a small body as it arrives, and leaves the reading to the next reader. Nothing waits and nothing is put back.
 * Undefined where readNodeBody is needed.
 */
export function tapNodeBody(req: IncomingMessage, bytesMax: number): Tap | undefined {
  const length = Number(req.headers['content-length'])
  // The request of fastify.inject is another kind of stream.
  if (!(length > 0 && length <= bytesMax && length <= tappedBytesMax) || !(req instanceof IncomingMessage)) return
  if (req.readableDidRead || req.readableLength > 0 || hasArrived(req) || req.destroyed) return
  return new BodyTap(req)
}

type Push = (chunk: Buffer | null) => boolean
const interceptor = Symbol('onceonly: what comes in passes here')
type Interceptor = { onPush(chunk: Buffer | null): boolean }
type Intercepted = IncomingMessage & { [interceptor]?: Interceptor }

// One function for all requests, never a closure: on-node/response.ts says why.
function interceptedPush(this: Intercepted, chunk: Buffer | null): boolean {
  return this[interceptor]!.onPush(chunk)
}

/** A class, with a promise only for a body that is waited for: mostly all of it is here by then. */
class BodyTap implements Tap, Interceptor {
  readonly #req: Intercepted
  readonly #push: Intercepted['push']
  readonly #earlier: Interceptor | undefined
  readonly #chunks: Buffer[] = []
  #whole: PromiseWithResolvers<Body> | undefined

  constructor(req: Intercepted) {
    this.#req = req
    this.#push = req.push
    this.#earlier = req[interceptor]
    req[interceptor] = this
    if (!this.#earlier) req.push = interceptedPush
  }

  onPush(chunk: Buffer | null): boolean {
    if (chunk) this.#chunks.push(chunk)
    const isRoom = this.#earlier ? this.#earlier.onPush(chunk) : this.#push.call(this.#req, chunk)
    if (!chunk) this.#whole?.resolve(bytesOf(this.#chunks))
    return isRoom
  }

  body(): Body | Promise<Body> {
    if (hasArrived(this.#req)) return bytesOf(this.#chunks)
    const { promise, reject } = (this.#whole ??= Promise.withResolvers<Body>())
    const onGone = (): void => reject(new ClientGone())
    if (this.#req.destroyed) onGone()
    else this.#req.on('error', onGone).on('close', onGone)
    return promise
  }
}

/** `onPush` gets what Node has received and hands it on with `pass`. The returned function ends that. */
function intercept(req: Intercepted, onPush: (chunk: Buffer | null, pass: Push) => boolean): () => void {
  const { push, [interceptor]: earlier } = req
  const pass: Push = (chunk) => (earlier ? earlier.onPush(chunk) : push.call(req, chunk))
  let stopped = false
  req[interceptor] = { onPush: (chunk) => (stopped ? pass(chunk) : onPush(chunk, pass)) }
  if (!earlier) req.push = interceptedPush
  return () => void (stopped = true)
}

/**
 * A small body is not read at all. Node buffers it up to its own limit whether or not it is read, so it is only watched as it
 * arrives. A body that fills that limit is read, and put back when all of it is there.
 */
function collect(req: IncomingMessage, limits: BodyLimits): Body | Promise<Body> {
  const chunks = readBuffered(req)
  if (req.destroyed && !hasArrived(req)) throw new ClientGone()
  putBack(req, chunks)
  if (sizeOf(chunks) > limits.bytesMax) return tooLarge(req, limits, [])
  if (hasArrived(req)) return bytesOf(chunks)
  // The request of fastify.inject is a stream that delivers only when it is read.
  return req instanceof IncomingMessage ? watch(req, chunks, limits) : readOn(req, limits)
}

function watch(req: IncomingMessage, chunks: Buffer[], limits: BodyLimits): Promise<Body> {
  return new Promise((resolve, reject) => {
    let size = sizeOf(chunks)
    const release = intercept(req, (chunk, pass) => {
      const isRoom = pass(chunk)
      if (chunk) size += chunks[chunks.push(chunk) - 1]!.length
      if (chunk && isRoom && size <= limits.bytesMax) return true
      stop()
      if (!chunk) resolve(bytesOf(chunks))
      else if (size > limits.bytesMax) resolve(tooLarge(req, limits, []))
      else readOn(req, limits).then(resolve, reject)
      return isRoom
    })
    const stop = (): void => {
      release()
      req.off('error', onGone).off('close', onGone)
    }
    const onGone = (): void => {
      stop()
      reject(new ClientGone())
    }
    req.on('error', onGone).on('close', onGone)
  })
}

function readOn(req: IncomingMessage, limits: BodyLimits): Promise<Body> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = []
    const stop = (): void => void req.off('readable', onReadable).off('error', onGone).off('close', onGone)
    const onGone = (): void => {
      stop()
      reject(new ClientGone())
    }
    const onReadable = (): void => {
      chunks.push(...readBuffered(req))
      const tooMuch = sizeOf(chunks) > limits.bytesMax
      if (!tooMuch && !hasArrived(req)) return
      stop()
      if (!tooMuch) putBack(req, chunks)
      resolve(tooMuch ? tooLarge(req, limits, chunks) : bytesOf(chunks))
    }
    req.on('readable', onReadable).on('error', onGone).on('close', onGone)
  })
}

/** Takes out what has come in so far. */
function readBuffered(req: Readable): Buffer[] {
  const chunks: Buffer[] = []
  // Reading an empty buffer would count as having read.
  while (req.readableLength > 0) {
    const chunk = req.read() as Buffer | null
    if (!chunk) break
    chunks.push(chunk)
  }
  return chunks
}

// In the same tick as the read that emptied the stream: Node emits 'end' on the next tick, unless there is something to read.
function putBack(req: Readable, chunks: readonly Buffer[]): void {
  for (const chunk of chunks.toReversed()) req.unshift(chunk)
}

function bytesOf(chunks: readonly Buffer[]): Body {
  return { is: 'bytes', bytes: chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks) }
}

function sizeOf(chunks: readonly Buffer[]): number {
  return chunks.reduce((sum, { length }) => sum + length, 0)
}

/** The whole body is here, though 'end' may not have been emitted yet. */
function hasArrived(req: IncomingMessage): boolean {
  return (req as unknown as { _readableState: { ended: boolean } })._readableState.ended
}

/** The chunks in `read` were taken out already. */
function tooLarge(req: IncomingMessage, { sha256 }: BodyLimits, read: readonly Buffer[]): Body {
  if (sha256 === undefined) {
    // The rest is dropped as it comes: a connection that is left full can carry neither the answer nor another request.
    req.resume()
    return { is: 'too-large' }
  }
  const check = checkDigest(sha256)
  const chunks = [...read, ...readBuffered(req)]
  for (const chunk of chunks) check.update(chunk)
  if (hasArrived(req) && !check.holds()) return { is: 'digest-mismatch' }
  const { promise: verified, resolve } = Promise.withResolvers<boolean>()
  intercept(req, (chunk, pass) => {
    if (chunk) check.update(chunk)
    else resolve(check.holds())
    if (chunk || check.holds()) return pass(chunk)
    whenRead(req, () => refuseEnd(req))
    return false
  })
  req.on('close', () => resolve(false))
  if (hasArrived(req)) resolve(check.holds())
  putBack(req, chunks)
  return {
    is: 'claimed',
    sha256,
    verify() {
      // A handler may answer without reading the whole body. The rest is read and dropped.
      req.resume()
      return verified
    },
  }
}

/**
 * Now, or as soon as the handler reads. To a body parser, a stream that fails before that looks like one without a body, and
 * the handler would run on nothing.
 */
function whenRead(req: IncomingMessage, then: () => void): void {
  if (req.readableFlowing !== null || req.listenerCount('readable') > 0) return then()
  const onListener = (event: string | symbol): void => {
    if (event !== 'data' && event !== 'readable') return
    req.off('newListener', onListener)
    // The reader has not added its error listener yet.
    process.nextTick(then)
  }
  req.on('newListener', onListener)
}

/** The handler must not take a body for complete that does not match its digest. The client must still get an answer. */
function refuseEnd(req: IncomingMessage): void {
  // Node's own `_destroy` would tear the connection down.
  req._destroy = (error, callback) => callback(req.listenerCount('error') > 0 ? error : null)
  const error = new DigestError()
  req.destroy(error)
  // A fastify.inject request that has given its whole payload does nothing then, and its reader would wait forever.
  if (!req.destroyed && req.listenerCount('error') > 0) req.emit('error', error)
}

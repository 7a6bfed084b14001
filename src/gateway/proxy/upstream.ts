// The one service behind the gateway. A request is written to it at most once: when its first byte may have left, the outcome
// of a failure is unknown. An answer that broke off is never passed on as a complete one.

import type { IncomingMessage } from 'node:http'
import type { Readable } from 'node:stream'
import { Pool } from 'undici'
import type { Dispatcher } from 'undici'
import type { HttpOptions } from '../../http/exchange.ts'
import { sendAnswer } from '../../http/on-node.ts'
import type { ProxiedCall } from './call.ts'
import { gatewayProblem, gatewayProblems } from './problem.ts'
import { requestHeaders, responseHead, responseTrailers, wantsTrailers } from './forwarded-headers.ts'
import type { ForwardingRules } from './forwarded-headers.ts'

export interface UpstreamOptions extends ForwardingRules {
  readonly origin: URL
  readonly timeoutMs: number
  readonly connectTimeoutMs: number
  readonly idleMs: number
  readonly profile: HttpOptions['profile']
}

export interface Upstream {
  /** Sends the request, and writes the upstream's answer to the response of the call. */
  forward(call: ProxiedCall): void
  /** Requests under way end as in doubt. */
  close(): Promise<void>
}

export function openUpstream(options: UpstreamOptions): Upstream {
  const pool = new Pool(options.origin, {
    headersTimeout: options.timeoutMs,
    bodyTimeout: options.timeoutMs,
    connect: { timeout: options.connectTimeoutMs },
    keepAliveTimeout: options.idleMs,
    // One request at a time on a connection: with more, one that breaks would break the others.
    pipelining: 1,
  })
  return {
    forward: (call) => forward(pool, options, call),
    close: () => pool.destroy(),
  }
}

function forward(pool: Pool, options: UpstreamOptions, call: ProxiedCall): void {
  const { req, target, body, context, derivedKey, remoteAddress } = call
  const streams = body === undefined && hasBody(req)
  const contentLength = streams ? req.headers['content-length'] : undefined
  pool.dispatch(
    {
      path: target,
      method: req.method!,
      headers: requestHeaders({ req, remoteAddress, attempt: context?.attempt, derivedKey, contentLength }, options),
      // Any iterable will do, though its types do not say so.
      body: streams ? (chunksOf(call) as unknown as Readable) : body && body.length > 0 ? body : null,
    },
    createExchangeHandler(options, call),
  )
}

function hasBody({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0
}

/** Not the request itself: an upstream that answers early would destroy it, and with it the connection to the client. */
async function* chunksOf({ req, context }: ProxiedCall): AsyncGenerator<Buffer> {
  let last: Buffer | undefined
  for await (const chunk of req.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    if (last) yield last
    // A body with a key and a digest must be complete for the upstream only when the digest matched. Until then its last chunk
    // is held back.
    if (context) last = chunk
    else yield chunk
  }
  if (last) yield last
}

function createExchangeHandler(options: UpstreamOptions, call: ProxiedCall): Dispatcher.DispatchHandler {
  const { req, res } = call
  let sent = false
  let over = false
  let last: Buffer | undefined
  let left: number | undefined
  return {
    onRequestStart(controller) {
      // undici may try to write the same request again, which must not happen.
      if (sent) return controller.abort(new Error('A request was about to be sent twice.'))
      sent = true
      call.abort = () => controller.abort(new ClientLeft())
      res.on('drain', () => controller.resume())
    },
    onResponseStart(controller, status, _headers, message) {
      // 100 and 103 are interim, not answers.
      if (status < 200) return
      const head = responseHead(controller.rawHeaders as Buffer[], options)
      if (head.isCoded) return controller.abort(new UnknownCoding())
      left = head.contentLength
      call.unframed = !head.isFramed && !endsWithHead(status) && req.method !== 'HEAD'
      wish(call, head.wish)
      // The client is still sending, so no other request can come over this connection.
      if (!req.complete && !call.context) res.shouldKeepAlive = false
      over = endsWithHead(status)
      res.writeHead(status, reasonOf(message), status === 204 ? withoutLength(head.headers) : head.headers)
      if (over) res.end()
    },
    onResponseData(controller, chunk) {
      if (isDeaf(call)) return controller.abort(new ClientLeft())
      // The last chunk waits for the end, so that both are one write. Without a length the last chunk is not known.
      if (left !== undefined && (left -= chunk.length) === 0) last = chunk
      else if (!res.write(chunk)) controller.pause()
    },
    onResponseEnd(controller) {
      call.abort = undefined
      if (over) return
      const trailers = controller.rawTrailers as Buffer[] | null | undefined
      if (trailers?.length && wantsTrailers(req)) res.addTrailers(responseTrailers(trailers))
      if (last) res.end(last)
      else res.end()
    },
    onResponseError(_controller, error) {
      call.abort = undefined
      if (over) return
      if (sent) breakOff(options, call, error)
      else unreachable(options, call, error)
    },
  }
}

/** Whatever its Content-Length: a 304 may carry the length of the full body. undici would wait for those octets in vain. */
function endsWithHead(status: number): boolean {
  return status === 204 || status === 304
}

function withoutLength(headers: readonly string[]): string[] {
  return headers.filter((_, at) => headers[at - (at % 2)]!.toLowerCase() !== 'content-length')
}

/** Words for people, which undici has decoded as UTF-8. What Node would not write is left out, and the answer is not lost for it. */
function reasonOf(message: string | undefined): string {
  return message !== undefined && /^[\t\x20-\x7e\x80-\xff]*$/.test(message) ? message : ''
}

/** As a handler in the same process would say to its context. */
function wish({ context }: ProxiedCall, said: string | undefined): void {
  if (said === 'store') context?.store()
  else if (said === 'release') context?.release()
  else if (said === 'not-begun') context?.notBegun()
}

/** The client has gone, and the rest of the upstream's answer is of no use. */
class ClientLeft extends Error {
  readonly code = 'CLIENT_LEFT'
}

class UnknownCoding extends Error {
  readonly code = 'UNKNOWN_TRANSFER_CODING'
}

function isDeaf({ context, decided, req }: ProxiedCall): boolean {
  return (!context || decided) && req.socket.destroyed
}

/** Nothing was sent, so nothing is stored: the key is as free as before. */
function unreachable({ profile }: UpstreamOptions, call: ProxiedCall, error: Error): void {
  call.result = 'unreachable'
  call.cause = codeOf(error)
  call.context?.notBegun()
  sendAnswer(call.res, gatewayProblem(gatewayProblems.unreachable, { profile }))
}

const timeouts = new Set(['UND_ERR_HEADERS_TIMEOUT', 'UND_ERR_BODY_TIMEOUT'])

function breakOff({ profile }: UpstreamOptions, call: ProxiedCall, error: Error): void {
  const { req, res, context } = call
  call.cause = codeOf(error)
  if (error instanceof ClientLeft) return void res.destroy()
  const problem = timeouts.has(call.cause) ? gatewayProblems.timedOut : gatewayProblems.broken
  // A body that did not match its digest never reached the upstream as a whole. The exchange has an answer for it.
  const isBodyWrong = context !== undefined && call.body === undefined && req.errored !== null
  if (context && !isBodyWrong) {
    call.doubt = problem
    return call.decided ? cut(call) : void res.destroy()
  }
  if (!context) call.result = 'failed'
  if (res.headersSent) return cut(call)
  // A head that could not be written may have left its length behind: the next answer would begin in the middle of this one.
  for (const name of res.getHeaderNames()) if (name !== 'via') res.removeHeader(name)
  sendAnswer(res, gatewayProblem(problem, { profile }))
}

/**
 * Half an answer must not pass for a whole one. To an HTTP/1.0 client the end of the connection is the end of the answer, so
 * only a reset says that the answer is incomplete.
 */
function cut({ req, res }: ProxiedCall): void {
  if (req.httpVersion === '1.0') req.socket.resetAndDestroy()
  else res.destroy()
}

/** Several addresses of one name fail with an AggregateError that has the code of one of them. */
function codeOf(error: Error): string {
  const { code } = error as { code?: unknown }
  return typeof code === 'string' ? code : error.name
}

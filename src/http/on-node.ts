// An exchange on Node's own request and response, for every adapter that has them underneath. Under every framework the stored
// bytes are the ones that would have gone to the client.

import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http'
import { OnceError } from '../core/errors.ts'
import { internalError, numberedBy } from './exchange.ts'
import type { AskedRequest, Body, Delivery, Exchange, IdempotencyContext, Produced } from './exchange.ts'
import { holdConnection } from './on-node/connection.ts'
import type { HeldConnection } from './on-node/connection.ts'
import { ClientGone, readNodeBody } from './on-node/request.ts'
import type { Tap } from './on-node/request.ts'
import { holdResponse } from './on-node/response.ts'
import type { HeldResponse } from './on-node/response.ts'
import { sendAnswer } from './on-node/send.ts'

export { ClientGone, readNodeBody, tapNodeBody } from './on-node/request.ts'
export type { Tap } from './on-node/request.ts'
export { sendAnswer } from './on-node/send.ts'

export interface NodeStage<Asked> {
  /** The framework's own request. */
  readonly request: Asked
  readonly req: IncomingMessage
  readonly res: ServerResponse
  /** Path and query as the client sent them, mount path included. */
  readonly target: string
  /** The raw body, where a parser before us kept it. */
  readonly rawBody?: unknown
  /** The body, when it was read already or is being recorded. */
  readonly body?: Body | Tap | undefined
  /** Headers that the framework will write besides those already on `res`. */
  headersBefore?(): OutgoingHttpHeaders
  /** Start the handler. */
  proceed(context: IdempotencyContext): void
  /** An answer is about to be sent without the handler. */
  beforeAnswer?(): void
}

/**
 * Serves one request: the exchange handles it if it concerns it, published rules are sent, and everything else goes to
 * `otherwise`, whose result is returned.
 */
export function serveNode<Asked, Passed>(
  exchange: Exchange<Asked>,
  stage: NodeStage<Asked>,
  otherwise: () => Passed,
): Promise<void> | Passed {
  if (concernsNode(exchange, stage.req, stage.target)) return exchangeOnNode(exchange, stage)
  return serveRules(exchange, stage) ? Promise.resolve() : otherwise()
}

/** What is served at the paths of the exchange itself, for an adapter that sees no request to them: rules and sessions. */
export function servePublished<Asked>(exchange: Exchange<Asked>, stage: NodeStage<Asked>): Promise<void> | boolean {
  if (exchange.managesSession(stage.req.method ?? '', stage.target)) return exchangeOnNode(exchange, stage)
  return serveRules(exchange, stage)
}

/** Sends the published rules if the request asks for them. */
function serveRules<Asked>(
  exchange: Exchange<Asked>,
  { req, res, target, beforeAnswer }: Pick<NodeStage<Asked>, 'req' | 'res' | 'target' | 'beforeAnswer'>,
): boolean {
  const rules = exchange.rules(req.method ?? '', target, req.headers.accept)
  if (!rules) return false
  beforeAnswer?.()
  sendAnswer(res, rules)
  return true
}

/** False for the requests that pass untouched. Costs two look-ups for a request with a key, and four without. */
export function concernsNode(exchange: Exchange<never>, req: IncomingMessage, target: string): boolean {
  const { method = '', headers } = req
  const isNamed =
    headers[exchange.settings.keyHeader] !== undefined || numberedBy[0] in headers || numberedBy[1] in headers
  return (exchange.concerns(method, isNamed) || exchange.managesSession(method, target)) && !(req as Taken)[underway]
}

// A mark on the request itself, not a WeakSet of requests: the bookkeeping of such a table was 1 to 2 % of a request.
const underway = Symbol('onceonly: the exchange is under way')

/** A request may pass two of our adapters. The first that accepted the request holds its key. */
type Taken = IncomingMessage & { [underway]?: true }

/**
 * Resolves when the answer has been given to Node, or the client has gone. Rejects when the exchange cannot begin (a user's
 * function threw, the body is gone). Then nothing was claimed and the handler was not started.
 */
export async function exchangeOnNode<Asked>(exchange: Exchange<Asked>, stage: NodeStage<Asked>): Promise<void> {
  const { req, res } = stage
  if (req.httpVersionMajor > 1) {
    if ('stream' in req) throw notOverHttp2()
    return refuseVersion(stage)
  }
  ;(req as Taken)[underway] = true
  let held: HeldResponse | undefined
  let connection: HeldConnection | undefined
  const hold = (body: 'here' | 'coming'): void => {
    connection = holdConnection(req, res, {
      body,
      // A handler that has not begun to answer may want to stop its work. A handler that has would only lose its answer.
      tellAtOnce: () => held !== undefined && !held.began(),
      onTornDown: () => held?.breakOff() ?? 'gave up',
    })
  }
  const run = async (context: IdempotencyContext): Promise<Produced> => {
    // A time-out has answered in the meantime, or the client broke off its upload: there is nothing left to run for.
    if (res.headersSent || isCutOff(req)) return (context.notBegun(), { is: 'broken' })
    held = holdResponse(res, exchange.settings, headersBefore(stage))
    stage.proceed(context)
    return await held.produced
  }
  try {
    const delivery = await exchange.handle(askedOf(exchange, stage, hold), run)
    connection?.reveal()
    deliver(stage, delivery, held)
  } catch (error) {
    if (!(error instanceof ClientGone)) throw error
  } finally {
    connection?.release()
  }
}

/** A body parser would take this for a request without a body, and the handler would run on nothing. */
function isCutOff(req: IncomingMessage): boolean {
  // The request of fastify.inject does not say whether it is complete, and it always is.
  return req.destroyed && req.complete === false
}

function askedOf<Asked>(
  { settings }: Exchange<Asked>,
  stage: NodeStage<Asked>,
  hold: (body: 'here' | 'coming') => void,
): AskedRequest<Asked> {
  const { req, request, target, rawBody } = stage
  const here = (body: Body): Body => {
    if (body.is === 'bytes' || body.is === 'claimed') hold(body.is === 'bytes' ? 'here' : 'coming')
    return body
  }
  return {
    request,
    method: req.method ?? '',
    target,
    keyLines: keyLines(req, settings.keyHeader),
    header: (name) => headerOf(req, name),
    body(limits) {
      const given = stage.body ?? readNodeBody(req, rawBody, limits)
      const body = 'body' in given ? given.body() : given
      return body instanceof Promise ? body.then(here) : here(body)
    },
  }
}

// Node joins lines of the same name with a comma, so no comma means no second line.
function keyLines(req: IncomingMessage, keyHeader: string): readonly string[] {
  const joined = req.headers[keyHeader]
  if (joined === undefined) return []
  if (typeof joined === 'string' && !joined.includes(',')) return [joined]
  return req.rawHeaders.filter((_, at) => at % 2 === 1 && req.rawHeaders[at - 1]!.toLowerCase() === keyHeader)
}

function headerOf(req: IncomingMessage, name: string): string | undefined {
  const value = req.headers[name.toLowerCase()]
  return Array.isArray(value) ? value.join(', ') : value
}

function headersBefore<Asked>({ res, headersBefore: framework }: NodeStage<Asked>): OutgoingHttpHeaders {
  return framework ? framework() : res.getHeaders()
}

function deliver<Asked>(stage: NodeStage<Asked>, delivery: Delivery, held: HeldResponse | undefined): void {
  if (delivery.is === 'handler') return held?.forward(delivery.headers)
  if (delivery.is === 'thrown') {
    if (!held) throw delivery.error
    return held.replace(internalError())
  }
  if (held) return held.replace(delivery.answer)
  // The rest of a large request will not be read, and a client that is still sending does not listen.
  if (!stage.req.complete) stage.req.resume()
  if (stage.res.headersSent) return
  stage.beforeAnswer?.()
  sendAnswer(stage.res, delivery.answer, stage.headersBefore?.())
}

/** A request line that names another version of HTTP than the one it is written in. Nothing was claimed. */
function refuseVersion<Asked>({ req, res, beforeAnswer }: NodeStage<Asked>): void {
  const body = { type: 'about:blank', title: 'HTTP Version Not Supported', status: 505 }
  req.resume()
  beforeAnswer?.()
  sendAnswer(res, {
    status: 505,
    headers: [['Content-Type', 'application/problem+json']],
    body: Buffer.from(JSON.stringify(body)),
  })
}

// The compatibility API of HTTP/2 looks like HTTP/1 and shares none of its inside: a response could leave before it is settled.
function notOverHttp2(): OnceError {
  return new OnceError('UNSUPPORTED', {
    message:
      'A request with an Idempotency-Key came over HTTP/2, which this adapter cannot hold back. Serve HTTP/2 in a proxy in ' +
      'front of it, or use the fetch or Hono adapter.',
  })
}

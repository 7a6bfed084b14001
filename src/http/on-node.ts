// An exchange on Node's own request and response, for every adapter that has them underneath. Under every framework the stored
// bytes are the ones that would have gone to the client.

import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http'
import { OnceError } from '../core/errors.ts'
import { internalError, numberedBy } from './exchange.ts'
import type { Key } from '../core/key.ts'
import type { AskedRequest, Body, BodyLimits, Delivery, Exchange, IdempotencyContext, Produced } from './exchange.ts'
import { holdConnection } from './on-node/connection.ts'
import type { ConnectionWatch, HeldConnection } from './on-node/connection.ts'
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
  /** Called with the key in the store before the body is read. */
  onKey?(key: Key): void
  /** Called with the body, before the claim. */
  onBody?(body: Body): void
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
function serveRules<Asked>(exchange: Exchange<Asked>, stage: NodeStage<Asked>): boolean {
  const { req, res, target } = stage
  const rules = exchange.rules(req.method ?? '', target, req.headers.accept)
  if (!rules) return false
  stage.beforeAnswer?.()
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
  const { req } = stage
  if (req.httpVersionMajor > 1) {
    if ('stream' in req) throw notOverHttp2()
    return refuseVersion(stage)
  }
  ;(req as Taken)[underway] = true
  const asked = new AskedOnNode(exchange, stage)
  try {
    const delivery = await exchange.handle(asked, (context) => asked.run(context))
    asked.connection?.reveal()
    deliver(stage, delivery, asked.held)
  } catch (error) {
    if (!(error instanceof ClientGone)) throw error
  } finally {
    asked.connection?.release()
  }
}

/** One request during its exchange: what the exchange reads of it, and what its connection asks. A class, so that no request has closures of its own. */
class AskedOnNode<Asked> implements AskedRequest<Asked>, ConnectionWatch {
  readonly request: Asked
  readonly method: string
  readonly target: string
  readonly keyLines: readonly string[]
  held: HeldResponse | undefined = undefined
  connection: HeldConnection | undefined = undefined
  /** Of the request's body, for the connection. */
  arrival: ConnectionWatch['arrival'] = 'here'
  readonly #settings: Exchange<Asked>['settings']
  readonly #stage: NodeStage<Asked>

  constructor({ settings }: Exchange<Asked>, stage: NodeStage<Asked>) {
    const { req, request, target } = stage
    this.#settings = settings
    this.#stage = stage
    this.request = request
    this.method = req.method ?? ''
    this.target = target
    this.keyLines = keyLines(req, settings.keyHeader)
  }

  header(name: string): string | undefined {
    const value = this.#stage.req.headers[name.toLowerCase()]
    return Array.isArray(value) ? value.join(', ') : value
  }

  onKey(key: Key): void {
    this.#stage.onKey?.(key)
  }

  body(limits: BodyLimits): Body | Promise<Body> {
    const { req, rawBody, body: known } = this.#stage
    const given = known ?? readNodeBody(req, rawBody, limits)
    const body = 'body' in given ? given.body() : given
    return body instanceof Promise ? body.then((each) => this.#here(each)) : this.#here(body)
  }

  #here(body: Body): Body {
    if (body.is !== 'bytes' && body.is !== 'claimed') return body
    this.arrival = body.is === 'bytes' ? 'here' : 'coming'
    this.connection = holdConnection(this.#stage.req, this.#stage.res, this)
    this.#stage.onBody?.(body)
    return body
  }

  /** Starts the handler. */
  run(context: IdempotencyContext): Promise<Produced> {
    const { req, res } = this.#stage
    // A time-out has answered in the meantime, or the client broke off its upload: there is nothing left to run for.
    if (res.headersSent || isCutOff(req)) {
      context.notBegun()
      return Promise.resolve({ is: 'broken' })
    }
    const held = (this.held = holdResponse(res, this.#settings, headersBefore(this.#stage)))
    this.#stage.proceed(context)
    return held.produced
  }

  // A handler that has not begun to answer may want to stop its work. A handler that has would only lose its answer.
  tellAtOnce(): boolean {
    return this.held !== undefined && !this.held.began()
  }

  onTornDown(): 'answered' | 'gave up' {
    return this.held?.breakOff() ?? 'gave up'
  }
}

/** A body parser would take this for a request without a body, and the handler would run on nothing. */
function isCutOff(req: IncomingMessage): boolean {
  // The request of fastify.inject does not say whether it is complete, and it always is.
  return req.destroyed && req.complete === false
}

// Node joins lines of the same name with a comma, so no comma means no second line.
function keyLines(req: IncomingMessage, keyHeader: string): readonly string[] {
  const joined = req.headers[keyHeader]
  if (joined === undefined) return []
  if (typeof joined === 'string' && !joined.includes(',')) return [joined]
  return req.rawHeaders.filter((_, at) => at % 2 === 1 && req.rawHeaders[at - 1]!.toLowerCase() === keyHeader)
}

function headersBefore<Asked>(stage: NodeStage<Asked>): OutgoingHttpHeaders {
  return stage.headersBefore ? stage.headersBefore() : stage.res.getHeaders()
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
function refuseVersion<Asked>(stage: NodeStage<Asked>): void {
  const body = { type: 'about:blank', title: 'HTTP Version Not Supported', status: 505 }
  stage.req.resume()
  stage.beforeAnswer?.()
  sendAnswer(stage.res, {
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

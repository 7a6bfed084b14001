// A request arrives: it is refused, protected by the exchange of src/http, or passed on. The exchange has all the rules. Added
// here is what only a proxy can know of an answer: that it broke off, or that its end cannot be distinguished from a cut.

import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Clock } from '../../core/clock.ts'
import { InDoubtError } from '../../core/errors.ts'
import type { Once } from '../../core/once.ts'
import { createExchange, internalError } from '../../http/exchange.ts'
import type { AlsoPublished, Delivery, Exchange, HttpOptions, Produced } from '../../http/exchange.ts'
import { concernsNode, exchangeOnNode, sendAnswer } from '../../http/on-node.ts'
import type { NodeStage } from '../../http/on-node.ts'
import { createCall } from './call.ts'
import type { ProxiedCall } from './call.ts'
import { gatewayProblem, gatewayProblems } from './problem.ts'
import { readRequest } from './requests.ts'
import { pathPattern, withEscapedSlashes } from './routes.ts'
import type { PathCase, PathPattern } from './routes.ts'
import type { Upstream } from './upstream.ts'

/** Undefined is a route that is not protected. */
export type Protection = Exchange<ProxiedCall> | undefined

export interface ListenerOptions {
  readonly clock: Clock
  readonly upstream: Upstream
  /** 'ambiguous': the path is on one route or on another one, depending on who reads it. */
  readonly protectionOf: (method: string, path: string) => Protection | 'ambiguous'
  /** The rules that are published. */
  readonly published: Exchange<ProxiedCall>
  readonly pseudonym: string
  readonly profile: HttpOptions['profile']
  /** Headers that a Connection header must not name. */
  readonly essential: ReadonlySet<string>
  /** A client that reads nothing of its answer for this long is cut off. */
  readonly patienceMs: number
  /** Called when a call has ended: its answer has left, and its key is decided. */
  readonly onEnd: (call: ProxiedCall) => void
}

export interface RouteProtection {
  readonly path: string
  readonly methods: readonly string[] | undefined
  readonly protection: Protection
}

/** The first route that fits decides. */
export function protectionBy(
  routes: readonly RouteProtection[],
  otherwise: Protection,
  pathCase: PathCase,
): ListenerOptions['protectionOf'] {
  if (routes.length === 0) return () => otherwise
  const compiled = routes.map(
    ({ path, methods, protection }): readonly [PathPattern, ReadonlySet<string> | undefined, Protection] => [
      pathPattern(path, pathCase),
      methods && new Set(methods),
      protection,
    ],
  )
  const pick = (method: string, path: string): Protection => {
    const found = compiled.find(([fits, methods]) => (!methods || methods.has(method)) && fits(path))
    return found ? found[2] : otherwise
  }
  return (method, path) => {
    const found = pick(method, path)
    const asSlashes = withEscapedSlashes(path)
    return asSlashes === path || pick(method, asSlashes) === found ? found : 'ambiguous'
  }
}

export function createProtection(
  once: Once,
  options: HttpOptions<ProxiedCall>,
  also?: AlsoPublished,
): Exchange<ProxiedCall> {
  return proxied(createExchange<ProxiedCall>(once, options, also), options.leaseMs ?? once.settings.leaseMs)
}

/** The listener returns the call that it began. */
export function createListener(options: ListenerOptions): (req: IncomingMessage, res: ServerResponse) => ProxiedCall {
  return (req, res) => {
    const read = readRequest(req, options)
    const target = 'refused' in read ? (req.url ?? '') : read.target
    const call = createCall(req, res, target, options.clock.elapsed())
    res.on('close', () => {
      call.closed = true
      // Without a key, or once a stream was sent, the upstream's work ends with the client's connection.
      if (!call.context || call.decided) call.abort?.()
      end(options, call)
    })
    // Of this connection, as on every answer: it is not stored under the key.
    res.setHeader('Via', `1.1 ${options.pseudonym}`)
    if ('refused' in read) answer(call, gatewayProblem(read.refused, options))
    else serve(options, call, read.path)
    return call
  }
}

function serve(options: ListenerOptions, call: ProxiedCall, path: string): void {
  const { req, res, target } = call
  const manages = options.published.managesSession(req.method!, target)
  const exchange = manages ? options.published : options.protectionOf(req.method!, path)
  if (exchange === 'ambiguous') return answer(call, gatewayProblem(gatewayProblems.badRequest, options))
  if (exchange && concernsNode(exchange, req, target)) {
    return void exchangeOnNode(exchange, stageOf(options, call))
      .catch(() => failed(res))
      .then(() => decide(options, call))
  }
  const rules = options.published.rules(req.method!, target, req.headers.accept)
  if (rules) return answer(call, rules)
  call.decided = true
  beImpatient(options, call)
  options.upstream.forward(call)
}

function stageOf({ upstream }: ListenerOptions, call: ProxiedCall): NodeStage<ProxiedCall> {
  const { req, res, target } = call
  return {
    request: call,
    req,
    res,
    target,
    onKey: (key) => void (call.key = key),
    onBody: (body) => void (call.body = body.is === 'bytes' ? body.bytes : undefined),
    proceed: () => upstream.forward(call),
  }
}

function answer(call: ProxiedCall, given: Parameters<typeof sendAnswer>[1]): void {
  call.decided = true
  // The rest of the request is dropped, and its connection is not reused.
  if (!call.req.complete) call.res.shouldKeepAlive = false
  call.req.resume()
  sendAnswer(call.res, given)
}

function failed(res: ServerResponse): void {
  // Half an answer must not pass for a whole one.
  if (res.headersSent) res.destroy()
  else sendAnswer(res, internalError())
}

/** A client that does not read would keep its place and its held answer without a limit. Node ends a socket that times out. */
function beImpatient({ patienceMs }: ListenerOptions, { req, closed }: ProxiedCall): void {
  if (!closed) req.socket.setTimeout(patienceMs)
}

/** The key is decided, and an answer is on its way unless the client has gone. */
function decide(options: ListenerOptions, call: ProxiedCall): void {
  call.decided = true
  const isGone = call.req.socket.destroyed
  // No client reads what the upstream still sends: the client has left, or was given another answer.
  if (isGone || call.res.writableEnded) call.abort?.()
  if (isGone) call.closed = true
  if (!call.res.writableFinished) beImpatient(options, call)
  end(options, call)
}

function end({ onEnd }: ListenerOptions, call: ProxiedCall): void {
  if (call.closed && call.decided) onEnd(call)
}

function proxied(exchange: Exchange<ProxiedCall>, leaseMs: number): Exchange<ProxiedCall> {
  return {
    ...exchange,
    async handle(asked, run) {
      const call = asked.request
      const judged = async (context: Parameters<typeof run>[0]): Promise<Produced> => {
        call.context = context
        // Without a key only a request with a number runs.
        if (asked.keyLines.length === 0) call.derivedKey = context.keyFor('upstream')
        return judge(call, await run(context))
      }
      try {
        const delivery = await exchange.handle(asked, judged)
        return call.doubt ? inDoubt(exchange, call, leaseMs) : conclude(exchange, call, delivery)
      } catch (error) {
        // Without a store (onStoreDown: 'run') the handler's throw arrives here directly.
        if (call.doubt) return inDoubt(exchange, call, leaseMs)
        throw error
      }
    },
  }
}

/** What an answer means for its key. The throw leaves the key claimed until its lease ends. Then onTakeover decides. */
function judge(call: ProxiedCall, produced: Produced): Produced {
  if (call.doubt) throw new InDoubtError('The upstream was asked, and its answer did not come or broke off.')
  return call.unframed && produced.is === 'answer' ? { is: 'stream', status: produced.answer.status } : produced
}

/** Replaces the part of the answer that had arrived. The key can be claimed again when its lease has expired, at the latest. */
function inDoubt({ settings }: Exchange<ProxiedCall>, call: ProxiedCall, leaseMs: number): Delivery {
  call.result = 'in-doubt'
  const answer = gatewayProblem(call.doubt!, { profile: settings.profile, retryAfterMs: leaseMs })
  const window = ['Idempotency-Window', String(settings.windowSeconds)] as const
  return { is: 'answer', answer: { ...answer, headers: [...answer.headers, window] } }
}

/** The store was down, and `onStoreDown` is 'run': the exchange says so in a header. */
function isUnprotected(headers: Extract<Delivery, { is: 'handler' }>['headers']): boolean {
  return headers.some(([name, value]) => name === 'Idempotency-Status' && value === 'unprotected')
}

function conclude(exchange: Exchange<ProxiedCall>, call: ProxiedCall, delivery: Delivery): Delivery {
  if (delivery.is === 'handler') {
    if (call.result === 'passed') call.result = isUnprotected(delivery.headers) ? 'unprotected' : 'executed'
    return delivery
  }
  const mark = exchange.settings.replayHeader
  const isReplay = delivery.is === 'answer' && delivery.answer.headers.some(([name]) => name === mark)
  // A registration, and what else is served here for sessions, is like the published rules.
  const isServed = delivery.is === 'answer' && delivery.answer.status < 400 && call.key === undefined
  call.result = isReplay ? 'replayed' : isServed ? 'passed' : 'refused'
  return delivery
}

// Idempotency for Fastify 5. The context of a request is `request.idempotency`. The plugin applies to the routes of the
// instance it is registered on and below. `config: { idempotency: … }` sets the options of one route. The body is kept before
// it is parsed. The key is claimed in preHandler, after authentication and validation. A store that only a person can mend ends the
// start of the app (onReady).

import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http'
import type { FastifyInstance, FastifyPluginCallback, FastifyReply, FastifyRequest } from 'fastify'
import type { Store } from '../core/store.ts'
import { claimedSha256, contextOf, createExchange, numberedBy, rulesPath, sessionsPath } from './exchange.ts'
import type {
  Body,
  ContextWith,
  Exchange,
  HttpOptions,
  IdempotencyContext,
  OnceOn,
  TransactionsOf,
} from './exchange.ts'
import { ClientGone, concernsNode, exchangeOnNode, readNodeBody, tapNodeBody } from './on-node.ts'
import type { NodeStage, Tap } from './on-node.ts'

export type { HttpOptions, IdempotencyContext } from './exchange.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /**
     * Set while a request with an Idempotency-Key is handled, undefined on a request without one. `tx` is unknown here: this member is
     * declared once for all apps and stores. `of` of the plugin returns it with the type of its store.
     */
    idempotency?: IdempotencyContext
  }
  interface FastifyContextConfig {
    /** Other options for this route, or no protection at all. */
    idempotency?: Partial<HttpOptions<FastifyRequest>> | false
  }
}

export interface FastifyIdempotency<S = Store, InTransaction extends boolean = boolean> extends FastifyPluginCallback {
  /** The context of a request to a route of this plugin. `tx` has the type of the store's transactions. */
  of(request: FastifyRequest): ContextWith<S, InTransaction>
}

type Done = (error?: Error) => void
type Taken = { readonly exchange: Exchange<FastifyRequest>; readonly body: Body | Tap }
// Between parsing and handler, on the request itself: http/on-node.ts says why.
const taken = Symbol('onceonly: taken')
type Marked = IncomingMessage & { [taken]?: Taken | undefined }

/**
 * Returns a plugin that runs the handler of a request with an Idempotency-Key once, and replays its response to retries.
 * Register it on the instance whose routes it protects, after authentication.
 *
 * @example
 * ```ts
 * import fastify from 'fastify'
 * import { createOnce } from 'onceonly'
 * import { idempotency } from 'onceonly/fastify'
 * import { memoryStore } from 'onceonly/memory'
 *
 * const once = createOnce({ store: memoryStore(), scope: 'shop' })
 * const app = fastify()
 * await app.register(idempotency(once, { tenant: (request) => request.headers.authorization }))
 * app.post('/orders', (request) => ({ charge: request.idempotency?.keyFor('charge') }))
 * ```
 */
export function idempotency<S extends Store, InTransaction extends boolean = false>(
  once: OnceOn<S>,
  options: HttpOptions<FastifyRequest, InTransaction> & TransactionsOf<S, InTransaction>,
): FastifyIdempotency<S, InTransaction> {
  const exchange = createExchange(once, options)
  const exchanges = new Map<unknown, Exchange<FastifyRequest>>([[undefined, exchange]])
  let someRequired = exchange.settings.required
  const keyHeaders = new Set([exchange.settings.keyHeader, ...numberedBy])

  function exchangeOf(own: Partial<HttpOptions<FastifyRequest>> | false | undefined) {
    let found = exchanges.get(own)
    if (!found && own) exchanges.set(own, (found = createExchange(once, { ...options, ...own })))
    someRequired ||= found?.settings.required === true
    if (found) keyHeaders.add(found.settings.keyHeader)
    return found
  }

  function preParsing(request: FastifyRequest, reply: FastifyReply, _payload: unknown, done: Done): void {
    const { raw } = request
    // Looking up a route's config costs more than all the rest: most requests end here.
    if (!someRequired && !hasKey(raw, keyHeaders) && !managesSession(exchange, request)) return done()
    const found = exchangeOf(request.routeOptions.config.idempotency)
    // A route may be reached through two of us: the first one takes the request.
    if (!found || !concernsNode(found, raw, request.originalUrl) || (raw as Marked)[taken]) return done()
    const tap = managesSession(found, request) ? undefined : tapNodeBody(raw, found.settings.bodyBytesMax)
    if (!tap) return void keepBody(found, request, reply, done)
    ;(raw as Marked)[taken] = { exchange: found, body: tap }
    done()
  }

  async function keepBody(found: Exchange<FastifyRequest>, request: FastifyRequest, reply: FastifyReply, done: Done) {
    const sha256 = claimedSha256(request.headers['content-digest'] as string | undefined)
    try {
      const body = await readNodeBody(request.raw, undefined, { bytesMax: found.settings.bodyBytesMax, sha256 })
      // What was read of an unusable body is gone, so the request can only be refused, and at once.
      if (body.is === 'too-large' || body.is === 'digest-mismatch')
        return await handle({ exchange: found, body }, request, reply, done)
      ;(request.raw as Marked)[taken] = { exchange: found, body }
      if (managesSession(found, request)) passParsers(request.raw)
      done()
    } catch (error) {
      if (error instanceof ClientGone) reply.hijack()
      else done(error as Error)
    }
  }

  function preHandler(request: FastifyRequest, reply: FastifyReply, done: Done): void {
    const { [taken]: found } = request.raw as Marked
    if (found) (request.raw as Marked)[taken] = undefined
    if (found) void handle(found, request, reply, done)
    else done()
  }

  const plugin: FastifyPluginCallback = (instance, _options, done) => {
    if (!instance.hasRequestDecorator('idempotency')) instance.decorateRequest('idempotency')
    instance.addHook('onRoute', ({ config }) => void exchangeOf(config?.idempotency))
    instance.addHook('preParsing', preParsing).addHook('preHandler', preHandler)
    instance.addHook('onReady', () => exchange.checkStore())
    if (instance.prefix === '') publishRules(instance, exchange)
    if (instance.prefix === '' && exchange.settings.sessions) publishSessions(instance)
    done()
  }
  // Without it Fastify would give the hooks their own context, with no routes in it.
  return Object.assign(plugin, {
    [Symbol.for('skip-override')]: true,
    of: (request: FastifyRequest) => contextOf<S, InTransaction>(request.idempotency, exchange.settings),
  })
}

function managesSession(exchange: Exchange<FastifyRequest>, { method, originalUrl }: FastifyRequest): boolean {
  return exchange.managesSession(method, originalUrl)
}

function hasKey({ headers }: IncomingMessage, names: ReadonlySet<string>): boolean {
  for (const name of names) if (headers[name] !== undefined) return true
  return false
}

function handle({ exchange, body }: Taken, request: FastifyRequest, reply: FastifyReply, goOn: Done): Promise<void> {
  return exchangeOnNode(exchange, new FastifyStage(request, reply, body, goOn)).catch(goOn)
}

class FastifyStage implements NodeStage<FastifyRequest> {
  readonly request: FastifyRequest
  readonly req: IncomingMessage
  readonly res: ServerResponse
  readonly target: string
  readonly body: Body | Tap
  readonly #reply: FastifyReply
  readonly #goOn: Done

  constructor(request: FastifyRequest, reply: FastifyReply, body: Body | Tap, goOn: Done) {
    this.request = request
    this.req = request.raw
    this.res = reply.raw
    this.target = request.originalUrl
    this.body = body
    this.#reply = reply
    this.#goOn = goOn
  }

  headersBefore(): OutgoingHttpHeaders {
    return this.#reply.getHeaders() as OutgoingHttpHeaders
  }

  beforeAnswer(): void {
    this.#reply.hijack()
  }

  proceed(context: IdempotencyContext): void {
    this.request.idempotency = context
    this.#goOn()
  }
}

/** Fastify parses no body that these do not announce. Any parser, or none, may be there, and the exchange reads the body itself. */
function passParsers({ headers }: IncomingMessage): void {
  headers['content-length'] = '0'
  delete headers['content-type']
  delete headers['transfer-encoding']
}

/** On the instance itself, so that its hooks authenticate these routes as all others, whenever they are added. */
function publishSessions(instance: FastifyInstance): void {
  // preHandler answers.
  const handler = (_request: FastifyRequest, reply: FastifyReply): void => reply.callNotFound()
  const routes = [
    { method: 'POST', url: sessionsPath },
    { method: ['PUT', 'DELETE'], url: `${sessionsPath}/:session` },
  ]
  for (const route of routes)
    if (!instance.hasRoute({ ...route, method: [route.method].flat()[0]! })) instance.route({ ...route, handler })
}

function publishRules(instance: FastifyInstance, exchange: Exchange<FastifyRequest>): void {
  const handler = (request: FastifyRequest, reply: FastifyReply): FastifyReply => {
    const rules = exchange.rules('GET', request.originalUrl, request.headers.accept)!
    return reply.headers(Object.fromEntries(rules.headers)).send(rules.body)
  }
  for (const url of [rulesPath, `${rulesPath}/problems/:code`]) {
    if (!instance.hasRoute({ method: 'GET', url })) instance.route({ method: 'GET', url, handler })
  }
}

// Idempotency for Fastify 5: `await app.register(idempotency(once, options))`; the context is `request.once`. It applies to the
// routes of the instance it is registered on and below; a route says otherwise with `config: { idempotency: … }`. The body is
// kept before it is parsed, the key is claimed in preHandler: after authentication and validation.

import type { IncomingMessage, OutgoingHttpHeaders } from 'node:http'
import type { FastifyInstance, FastifyPluginCallback, FastifyReply, FastifyRequest, RouteOptions } from 'fastify'
import type { Once } from '../core/once.ts'
import { claimedSha256 } from './content-digest.ts'
import type { OnceContext } from './context.ts'
import { createExchange } from './exchange.ts'
import type { Body, Exchange } from './exchange.ts'
import { concernsNode, exchangeOnNode } from './node-exchange.ts'
import { ClientGone, readNodeBody } from './node-request.ts'
import { rulesPath } from './options.ts'
import type { HttpOptions } from './options.ts'

export type { OnceContext } from './context.ts'
export type { HttpOptions } from './options.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** Set while a request with an Idempotency-Key is handled. */
    once?: OnceContext
  }
  interface FastifyContextConfig {
    /** Other options for this route, or none of it at all. */
    idempotency?: Partial<HttpOptions<FastifyRequest>> | false
  }
}

type Done = (error?: Error) => void
interface Taken {
  readonly exchange: Exchange<FastifyRequest>
  readonly body: Body
}

export function idempotency(once: Once, options: HttpOptions<FastifyRequest>): FastifyPluginCallback {
  const exchange = createExchange(once, options)
  const exchanges = new Map<unknown, Exchange<FastifyRequest>>([[undefined, exchange]])
  let someRequired = exchange.settings.required
  /** Requests with a key, between parsing and handler. */
  const taken = new WeakMap<IncomingMessage, Taken>()

  function onRoute({ config }: RouteOptions): void {
    const own = config?.idempotency
    if (!own || exchanges.has(own)) return
    const found = createExchange(once, { ...options, ...own })
    someRequired ||= found.settings.required
    exchanges.set(own, found)
  }

  function preParsing(request: FastifyRequest, reply: FastifyReply, _payload: unknown, done: Done): void {
    const { raw } = request
    // Looking up a route's config costs more than all the rest: most requests end here.
    if (!someRequired && raw.headers['idempotency-key'] === undefined) return done()
    const found = exchanges.get(request.routeOptions.config.idempotency)
    if (found && concernsNode(found, raw)) void keepBody(found, request, reply, done)
    else done()
  }

  async function keepBody(found: Exchange<FastifyRequest>, request: FastifyRequest, reply: FastifyReply, done: Done) {
    const sha256 = claimedSha256(request.headers['content-digest'] as string | undefined)
    const limits = { bytesMax: found.settings.bodyBytesMax, sha256 }
    try {
      const body = await readNodeBody(request.raw, undefined, limits)
      // What was read of a body that is too large is gone: it can only be refused, and at once.
      if (body.is === 'too-large') return await handle({ exchange: found, body }, request, reply, done)
      taken.set(request.raw, { exchange: found, body })
      done()
    } catch (error) {
      if (error instanceof ClientGone) reply.hijack()
      else done(error as Error)
    }
  }

  function preHandler(request: FastifyRequest, reply: FastifyReply, done: Done): void {
    const found = taken.get(request.raw)
    if (found) void handle(found, request, reply, done)
    else done()
  }

  const plugin: FastifyPluginCallback = (instance, _options, done) => {
    if (!instance.hasRequestDecorator('once')) instance.decorateRequest('once')
    instance.addHook('onRoute', onRoute).addHook('preParsing', preParsing).addHook('preHandler', preHandler)
    if (instance.prefix === '') publishRules(instance, exchange)
    done()
  }
  // Without it Fastify would give the hooks a context of their own, with no routes in it.
  return Object.assign(plugin, { [Symbol.for('skip-override')]: true })
}

async function handle({ exchange, body }: Taken, request: FastifyRequest, reply: FastifyReply, done: Done) {
  try {
    await exchangeOnNode(exchange, {
      request,
      req: request.raw,
      res: reply.raw,
      target: request.originalUrl,
      body,
      headersBefore: () => reply.getHeaders() as OutgoingHttpHeaders,
      beforeAnswer: () => void reply.hijack(),
      proceed(context) {
        request.once = context
        done()
      },
    })
  } catch (error) {
    done(error as Error)
  }
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

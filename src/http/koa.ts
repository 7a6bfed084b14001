// Idempotency for Koa 3. The context of a request is `ctx.idempotency`.

import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Context } from 'koa'
import type { Once } from '../core/once.ts'
import { createExchange } from './exchange.ts'
import type { HttpOptions, IdempotencyContext } from './exchange.ts'
import { serveNode } from './on-node.ts'

export type { HttpOptions, IdempotencyContext } from './exchange.ts'

declare module 'koa' {
  interface ExtendableContext {
    /** Set while a request with an Idempotency-Key is handled, undefined on a request without one. */
    idempotency?: IdempotencyContext
  }
}

/** The part of Koa's context that the middleware uses. `tenant` is given the whole context. */
export interface KoaContext {
  readonly req: IncomingMessage
  readonly res: ServerResponse
  readonly originalUrl: string
  respond?: boolean | undefined
  idempotency?: IdempotencyContext | undefined
}

export type KoaMiddleware<Asked> = (ctx: Asked, next: () => Promise<unknown>) => Promise<unknown>

/**
 * Returns middleware that runs the handler of a request with an Idempotency-Key once, and replays its response to retries.
 * Mount it after authentication and before the body parser.
 *
 * @example
 * ```ts
 * import Koa from 'koa'
 * import { createOnce } from 'onceonly'
 * import { idempotency } from 'onceonly/koa'
 * import { memoryStore } from 'onceonly/memory'
 *
 * const once = createOnce({ store: memoryStore(), scope: 'shop' })
 * const app = new Koa()
 * app.use(idempotency(once, { tenant: (ctx) => ctx.get('x-account') }))
 * app.use((ctx) => {
 *   ctx.body = { charge: ctx.idempotency?.keyFor('charge') }
 * })
 * ```
 */
export function idempotency<Asked extends KoaContext = Context>(
  once: Once,
  options: HttpOptions<Asked>,
): KoaMiddleware<Asked> {
  const exchange = createExchange<Asked>(once, options)
  // Koa writes the response when the middleware above has returned, so this middleware returns before the key is settled.
  return (ctx, next) =>
    new Promise((resolve, reject) => {
      const { req, res, originalUrl: target } = ctx
      const { rawBody } = req as { rawBody?: unknown }
      const proceed = (context: IdempotencyContext): void => {
        ctx.idempotency = context
        next().then(resolve, reject)
      }
      const beforeAnswer = (): void => void (ctx.respond = false)
      serveNode(exchange, { request: ctx, req, res, target, rawBody, proceed, beforeAnswer }, next).then(
        resolve,
        reject,
      )
    })
}

// Idempotency for Koa 3. The context of a request is `ctx.idempotency`.

import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Context } from 'koa'
import type { Store } from '../core/store.ts'
import { contextOf, createExchange } from './exchange.ts'
import type { ContextWith, HttpOptions, IdempotencyContext, OnceOn, TransactionsOf } from './exchange.ts'
import { serveNode } from './on-node.ts'

export type { HttpOptions, IdempotencyContext } from './exchange.ts'

declare module 'koa' {
  interface ExtendableContext {
    /**
     * Set while a request with an Idempotency-Key is handled, undefined on a request without one. `tx` is unknown here: this member is
     * declared once for all apps and stores. `of` of the middleware returns it with the type of its store.
     */
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

export interface KoaMiddleware<Asked, S = Store, InTransaction extends boolean = boolean> {
  (ctx: Asked, next: () => Promise<unknown>): Promise<unknown>
  /** The context of a request that passed this middleware. `tx` has the type of the store's transactions. */
  of(ctx: Asked): ContextWith<S, InTransaction>
}

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
export function idempotency<
  Asked extends KoaContext = Context,
  S extends Store = Store,
  InTransaction extends boolean = boolean,
>(
  once: OnceOn<S>,
  options: HttpOptions<Asked, InTransaction> & TransactionsOf<S, InTransaction>,
): KoaMiddleware<Asked, S, InTransaction> {
  const exchange = createExchange<Asked>(once, options)
  // Koa writes the response when the middleware above has returned, so this middleware returns before the key is settled.
  const middleware = (ctx: Asked, next: () => Promise<unknown>): Promise<unknown> =>
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
  return Object.assign(middleware, {
    of: (ctx: Asked) => contextOf<S, InTransaction>(ctx.idempotency, exchange.settings),
  })
}

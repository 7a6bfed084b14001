// Idempotency for Express 4 and 5. The context of a request is `req.idempotency`.

import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Request } from 'express'
import type { Store } from '../core/store.ts'
import { contextOf, createExchange } from './exchange.ts'
import type { ContextWith, HttpOptions, IdempotencyContext, OnceOn, TransactionsOf } from './exchange.ts'
import { serveNode } from './on-node.ts'

export type { HttpOptions, IdempotencyContext } from './exchange.ts'

declare global {
  namespace Express {
    interface Request {
      /**
       * Set while a request with an Idempotency-Key is handled, undefined on a request without one. `tx` is unknown here: this member is
       * declared once for all apps and stores. `of` of the middleware returns it with the type of its store.
       */
      idempotency?: IdempotencyContext
    }
  }
}

/** The part of Express's request that the middleware uses. `tenant` is given the whole request. */
export interface ExpressRequest extends IncomingMessage {
  /** With the mount path, which Express takes off `url`. */
  readonly originalUrl: string
  idempotency?: IdempotencyContext
}

export interface ExpressMiddleware<Asked, S = Store, InTransaction extends boolean = boolean> {
  (req: Asked, res: ServerResponse, next: (error?: unknown) => void): void
  /** The context of a request that passed this middleware. `tx` has the type of the store's transactions. */
  of(req: Asked): ContextWith<S, InTransaction>
}

/**
 * Returns middleware that runs the handler of a request with an Idempotency-Key once, and replays its response to retries.
 * Mount it after authentication and before the body parser, for the whole app or on single routes.
 *
 * @example
 * ```ts
 * import express from 'express'
 * import { createOnce } from 'onceonly'
 * import { idempotency } from 'onceonly/express'
 * import { memoryStore } from 'onceonly/memory'
 *
 * const once = createOnce({ store: memoryStore(), scope: 'shop' })
 * const app = express()
 * app.use(idempotency(once, { tenant: (req) => req.get('x-account') }), express.json())
 * app.post('/orders', (req, res) => {
 *   res.status(201).json({ charge: req.idempotency?.keyFor('charge') })
 * })
 * ```
 */
export function idempotency<
  Asked extends ExpressRequest = Request,
  S extends Store = Store,
  InTransaction extends boolean = boolean,
>(
  once: OnceOn<S>,
  options: HttpOptions<Asked, InTransaction> & TransactionsOf<S, InTransaction>,
): ExpressMiddleware<Asked, S, InTransaction> {
  const exchange = createExchange<Asked>(once, options)
  const middleware = (req: Asked, res: ServerResponse, next: (error?: unknown) => void): void => {
    const { originalUrl: target, rawBody } = req as Asked & { readonly rawBody?: unknown }
    const proceed = (context: IdempotencyContext): void => {
      req.idempotency = context
      next()
    }
    const stage = { request: req, req, res, target, rawBody, proceed }
    const fail = (error: unknown): void => next(error)
    serveNode(exchange, stage, next)?.catch(fail)
  }
  return Object.assign(middleware, {
    of: (req: Asked) => contextOf<S, InTransaction>(req.idempotency, exchange.settings),
  })
}

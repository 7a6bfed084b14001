// Idempotency for Koa 3: `app.use(idempotency(once, options))`; the context is `ctx.once`.

import type { IncomingMessage, ServerResponse } from 'node:http'
import type {} from 'koa'
import type { Once } from '../core/once.ts'
import type { OnceContext } from './exchange/context.ts'
import { createExchange } from './exchange.ts'
import { concernsNode, exchangeOnNode } from './on-node.ts'
import { sendAnswer } from './on-node/response.ts'
import type { HttpOptions } from './exchange/options.ts'

export type { OnceContext } from './exchange/context.ts'
export type { HttpOptions } from './exchange/options.ts'

declare module 'koa' {
  interface ExtendableContext {
    /** Set while a request with an Idempotency-Key is handled. */
    once?: OnceContext
  }
}

/** The slice of Koa's context that is used; `scope` is given the whole one. */
export interface KoaContext {
  readonly req: IncomingMessage
  readonly res: ServerResponse
  readonly originalUrl: string
  respond?: boolean | undefined
  once?: OnceContext | undefined
}

export type Middleware<Context> = (ctx: Context, next: () => Promise<unknown>) => Promise<unknown>

export function idempotency<Context extends KoaContext = KoaContext>(
  once: Once,
  options: HttpOptions<Context>,
): Middleware<Context> {
  const exchange = createExchange<Context>(once, options)
  return (ctx, next) => {
    const { req, res, originalUrl } = ctx
    if (concernsNode(exchange, req)) return handle(ctx, next)
    const rules = exchange.rules(req.method ?? '', originalUrl, req.headers.accept)
    if (!rules) return next()
    ctx.respond = false
    return Promise.resolve(sendAnswer(res, rules))
  }

  /** Koa writes the answer when the middleware above us has returned, so we return before it is settled. */
  function handle(ctx: Context, next: () => Promise<unknown>): Promise<unknown> {
    const { req, res, originalUrl: target } = ctx
    const { rawBody } = req as { rawBody?: unknown }
    return new Promise((resolve, reject) => {
      const proceed = (context: OnceContext): void => {
        ctx.once = context
        next().then(resolve, reject)
      }
      const beforeAnswer = (): void => void (ctx.respond = false)
      exchangeOnNode(exchange, { request: ctx, req, res, target, rawBody, proceed, beforeAnswer }).then(resolve, reject)
    })
  }
}

// Idempotency for Express 4 and 5: `app.use(idempotency(once, options))`, or on single routes.

import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Once } from '../core/once.ts'
import { showOnRequest } from './exchange/context.ts'
import type { ListenOnce, OnceContext } from './exchange/context.ts'
import { createExchange } from './exchange.ts'
import { concernsNode, exchangeOnNode } from './on-node.ts'
import { sendAnswer } from './on-node/response.ts'
import type { HttpOptions } from './exchange/options.ts'

export type { OnceContext } from './exchange/context.ts'
export type { HttpOptions } from './exchange/options.ts'

declare module 'node:http' {
  interface IncomingMessage {
    /** Has the context while a request with an Idempotency-Key is handled. */
    once: ListenOnce<this> & Partial<OnceContext>
  }
}

/** The slice of Express's request that is used; `scope` is given the whole one. */
export interface ExpressRequest extends IncomingMessage {
  /** With the mount path, which Express takes off `url`. */
  readonly originalUrl: string
  /** Kept by `express.json({ verify: (req, res, bytes) => { req.rawBody = bytes } })`. */
  readonly rawBody?: unknown
}

export type Middleware<Request> = (req: Request, res: ServerResponse, next: (error?: unknown) => void) => void

export function idempotency<Request extends ExpressRequest = ExpressRequest>(
  once: Once,
  options: HttpOptions<Request>,
): Middleware<Request> {
  const exchange = createExchange<Request>(once, options)
  return (req, res, next) => {
    if (!concernsNode(exchange, req)) {
      const rules = exchange.rules(req.method ?? '', req.originalUrl, req.headers.accept)
      return rules ? sendAnswer(res, rules) : next()
    }
    const proceed = (context: OnceContext): void => {
      showOnRequest(req, context)
      next()
    }
    void handle(req, res, proceed, next)
  }

  async function handle(
    req: Request,
    res: ServerResponse,
    proceed: (context: OnceContext) => void,
    next: (error: unknown) => void,
  ): Promise<void> {
    const { originalUrl: target, rawBody } = req
    try {
      await exchangeOnNode(exchange, { request: req, req, res, target, rawBody, proceed })
    } catch (error) {
      next(error)
    }
  }
}

// Idempotency for http.createServer, without a framework.

import { channel } from 'node:diagnostics_channel'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Once } from '../core/once.ts'
import { showOnRequest } from './exchange/context.ts'
import type { ListenOnce, OnceContext } from './exchange/context.ts'
import { createExchange, internalError } from './exchange.ts'
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

export type Listener = (req: IncomingMessage, res: ServerResponse) => unknown

// The library never logs; what a listener threw is published here.
const handlerFailed = channel('onceonly:handler-failed')

/** `createServer(idempotency(once, options)(listener))`. A listener that throws is answered 500. */
export function idempotency(once: Once, options: HttpOptions<IncomingMessage>): (listener: Listener) => Listener {
  const exchange = createExchange<IncomingMessage>(once, options)
  return (listener) => (req, res) => {
    const target = (req as { originalUrl?: string }).originalUrl ?? req.url ?? ''
    if (!concernsNode(exchange, req)) {
      const rules = exchange.rules(req.method ?? '', target, req.headers.accept)
      return rules ? sendAnswer(res, rules) : listener(req, res)
    }
    const failed = (error: unknown): void => {
      handlerFailed.publish({ error })
      // Half an answer must not pass for a whole one.
      if (res.headersSent) res.destroy()
      else sendAnswer(res, internalError())
    }
    const proceed = (context: OnceContext): void => {
      showOnRequest(req, context)
      void (async () => listener(req, res))().catch(failed)
    }
    const rawBody = (req as { rawBody?: unknown }).rawBody
    return exchangeOnNode(exchange, { request: req, req, res, target, rawBody, proceed }).catch(failed)
  }
}

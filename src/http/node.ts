// Idempotency for http.createServer, without a framework. The context of a request is `req.idempotency`.

import { channel } from 'node:diagnostics_channel'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Store } from '../core/store.ts'
import { createExchange, internalError } from './exchange.ts'
import type { HttpOptions, IdempotencyContext, OnceOn, TransactionsOf, TxWith } from './exchange.ts'
import { sendAnswer, serveNode } from './on-node.ts'

export { storedResponse } from './exchange.ts'
export type { HttpOptions, IdempotencyContext } from './exchange.ts'

/** Node's request, with the context on it while a request with an Idempotency-Key is handled. */
export type NodeRequest<Tx = unknown> = IncomingMessage & { idempotency?: IdempotencyContext<Tx> }
export type NodeListener<Tx = unknown> = (req: NodeRequest<Tx>, res: ServerResponse) => unknown

// The library never logs. It publishes what a listener threw on this channel.
const handlerFailed = channel('onceonly:handler-failed')

/**
 * Returns a function that wraps a request listener: the listener runs once per Idempotency-Key, and retries are given the stored
 * response. A listener that throws is answered 500.
 *
 * @example
 * ```ts
 * import { createServer } from 'node:http'
 * import { createOnce } from 'onceonly'
 * import { memoryStore } from 'onceonly/memory'
 * import { idempotency } from 'onceonly/node'
 *
 * const once = createOnce({ store: memoryStore(), scope: 'shop' })
 * const guard = idempotency(once, { tenant: (req) => req.headers.authorization })
 * createServer(guard((req, res) => {
 *   res.end(req.idempotency?.keyFor('charge'))
 * }))
 * ```
 */
export function idempotency<S extends Store, InTransaction extends boolean = false>(
  once: OnceOn<S>,
  options: HttpOptions<IncomingMessage, InTransaction> & TransactionsOf<S, InTransaction>,
): (listener: NodeListener<TxWith<S, InTransaction>>) => (req: IncomingMessage, res: ServerResponse) => unknown {
  const exchange = createExchange<IncomingMessage>(once, options)
  return (listener) =>
    (req: NodeRequest<TxWith<S, InTransaction>> & { originalUrl?: string; rawBody?: unknown }, res) => {
      const { originalUrl: target = req.url ?? '', rawBody } = req
      const failed = (error: unknown): void => {
        handlerFailed.publish({ error })
        // Half an answer must not pass for a whole one.
        if (res.headersSent) res.destroy()
        else sendAnswer(res, internalError())
      }
      const proceed = (context: IdempotencyContext): void => {
        req.idempotency = context as IdempotencyContext<TxWith<S, InTransaction>>
        void (async () => listener(req, res))().catch(failed)
      }
      let passed: unknown
      const served = serveNode(exchange, { request: req, req, res, target, rawBody, proceed }, () => {
        passed = listener(req, res)
      })
      return served ? served.catch(failed) : passed
    }
}

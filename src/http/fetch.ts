// Idempotency for handlers from Request to Response: Next.js route handlers, Bun, Deno, workers.

import type { Store } from '../core/store.ts'
import { createExchange } from './exchange.ts'
import type { HttpOptions, IdempotencyContext, OnceOn, TransactionsOf, TxWith } from './exchange.ts'
import { concernsWeb, exchangeOnWeb, rulesOnWeb } from './on-web.ts'

export { storedResponse } from './exchange.ts'
export type { HttpOptions, IdempotencyContext } from './exchange.ts'

/** The platform's own second argument (the `params` of Next.js), with `idempotency` when the request has a key. */
export type WithIdempotency<Given, Tx = unknown> = Given & { readonly idempotency?: IdempotencyContext<Tx> }
export type FetchHandler<Given, Tx = unknown> = (
  request: Request,
  context: WithIdempotency<Given, Tx>,
) => Response | Promise<Response>
export type ProtectedFetchHandler<Given> = (request: Request, given?: Given) => Promise<Response>

/**
 * Returns a function that wraps a fetch handler: the handler runs once per Idempotency-Key, and retries are given the stored
 * response. An error that the handler throws is thrown on, after its key was released.
 *
 * @example
 * ```ts
 * import { createOnce } from 'onceonly'
 * import { idempotency } from 'onceonly/fetch'
 * import { memoryStore } from 'onceonly/memory'
 *
 * const once = createOnce({ store: memoryStore(), scope: 'shop' })
 * const guard = idempotency(once, { tenant: (request) => request.headers.get('x-account') })
 * export const POST = guard(async (request, { idempotency }) => {
 *   return Response.json({ charge: idempotency?.keyFor('charge'), order: await request.json() }, { status: 201 })
 * })
 * ```
 */
export function idempotency<S extends Store, InTransaction extends boolean = false>(
  once: OnceOn<S>,
  options: HttpOptions<Request, InTransaction> & TransactionsOf<S, InTransaction>,
): <Given = unknown>(handler: FetchHandler<Given, TxWith<S, InTransaction>>) => ProtectedFetchHandler<Given> {
  const exchange = createExchange<Request>(once, options)
  return (handler) => async (request, given) => {
    const context = given ?? ({} as NonNullable<typeof given>)
    if (!concernsWeb(exchange, request)) return rulesOnWeb(exchange, request) ?? handler(request, context)
    return exchangeOnWeb(exchange, {
      asked: request,
      request,
      handle: (handed, held) =>
        handler(handed, { ...context, idempotency: held as IdempotencyContext<TxWith<S, InTransaction>> }),
    })
  }
}

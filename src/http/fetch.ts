// Idempotency for handlers from Request to Response: Next.js route handlers, Bun, Deno, workers.

import type { Once, TxOf } from '../core/once.ts'
import type { Store } from '../core/store.ts'
import type { OnceContext } from './exchange/context.ts'
import { createExchange } from './exchange.ts'
import type { HttpOptions } from './exchange/options.ts'
import { concernsWeb, exchangeOnWeb, rulesOnWeb } from './on-web.ts'

export type { OnceContext } from './exchange/context.ts'
export type { HttpOptions } from './exchange/options.ts'

/** The platform's own second argument (the `params` of Next.js), with `once` when the request has a key. */
export type WithOnce<Given, Tx = unknown> = Given & { readonly once?: OnceContext<Tx> }
export type Handler<Given, Tx = unknown> = (
  request: Request,
  context: WithOnce<Given, Tx>,
) => Response | Promise<Response>
export type Protected<Given> = (request: Request, given?: Given) => Promise<Response>

/** `export const POST = idempotency(once, options)(handler)`. What the handler throws is thrown on, after its key was given back. */
export function idempotency<S extends Store>(
  once: Once<S>,
  options: HttpOptions<Request>,
): <Given = unknown>(handler: Handler<Given, TxOf<S>>) => Protected<Given> {
  const exchange = createExchange<Request>(once as Once, options)
  return (handler) => async (request, given) => {
    const context = given ?? ({} as NonNullable<typeof given>)
    if (!concernsWeb(exchange, request)) return rulesOnWeb(exchange, request) ?? handler(request, context)
    return exchangeOnWeb(exchange, {
      asked: request,
      request,
      handle: (handed, held) => handler(handed, { ...context, once: held as OnceContext<TxOf<S>> }),
    })
  }
}

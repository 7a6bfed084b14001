// Idempotency for Hono 4. The context of a request is `c.get('idempotency')`.

import type { Context } from 'hono'
import type { Store } from '../core/store.ts'
import { contextOf, createExchange } from './exchange.ts'
import type { ContextWith, Exchange, HttpOptions, IdempotencyContext, OnceOn, TransactionsOf } from './exchange.ts'
import { concernsWeb, exchangeOnWeb, rulesOnWeb } from './on-web.ts'

export type { HttpOptions, IdempotencyContext } from './exchange.ts'

declare module 'hono' {
  interface ContextVariableMap {
    /**
     * Set while a request with an Idempotency-Key is handled, undefined on a request without one. `tx` is unknown here: this member is
     * declared once for all apps and stores. `of` of the middleware returns it with the type of its store.
     */
    idempotency: IdempotencyContext | undefined
  }
}

/** The part of Hono's context that the middleware uses. `tenant` is given the whole context. */
export interface HonoContext {
  readonly req: { raw: Request; bodyCache: object; arrayBuffer(): Promise<ArrayBuffer> }
  readonly env: unknown
  res: Response
  get(name: 'idempotency'): IdempotencyContext | undefined
  set(name: 'idempotency', context: IdempotencyContext): void
}

export interface HonoMiddleware<Asked, S = Store, InTransaction extends boolean = boolean> {
  (c: Asked, next: () => Promise<void>): Promise<Response | void>
  /** The context of a request that passed this middleware. `tx` has the type of the store's transactions. */
  of(c: Asked): ContextWith<S, InTransaction>
}

/**
 * Returns middleware that runs the handler of a request with an Idempotency-Key once, and replays its response to retries.
 * Mount it after authentication.
 *
 * @example
 * ```ts
 * import { Hono } from 'hono'
 * import { createOnce } from 'onceonly'
 * import { idempotency } from 'onceonly/hono'
 * import { memoryStore } from 'onceonly/memory'
 *
 * const once = createOnce({ store: memoryStore(), scope: 'shop' })
 * const app = new Hono()
 * app.use(idempotency(once, { tenant: (c) => c.req.header('x-account') }))
 * app.post('/orders', (c) => c.json({ charge: c.get('idempotency')?.keyFor('charge') }, 201))
 * ```
 */
export function idempotency<
  Asked extends HonoContext = Context,
  S extends Store = Store,
  InTransaction extends boolean = boolean,
>(
  once: OnceOn<S>,
  options: HttpOptions<Asked, InTransaction> & TransactionsOf<S, InTransaction>,
): HonoMiddleware<Asked, S, InTransaction> {
  const exchange = createExchange<Asked>(once, options)
  const middleware = (c: Asked, next: () => Promise<void>): Promise<Response | void> => {
    const { raw } = c.req
    if (concernsWeb(exchange, raw) && !c.get('idempotency')) return handleKeyed(exchange, c, next)
    const rules = rulesOnWeb(exchange, raw)
    return rules ? Promise.resolve(rules) : next()
  }
  return Object.assign(middleware, {
    of: (c: Asked) => contextOf<S, InTransaction>(c.get('idempotency'), exchange.settings),
  })
}

async function handleKeyed<Asked extends HonoContext>(
  exchange: Exchange<Asked>,
  c: Asked,
  next: () => Promise<void>,
): Promise<Response | void> {
  let handled = false
  const handle = async (request: Request, context: IdempotencyContext): Promise<Response> => {
    handled = true
    c.req.raw = request
    if (!request.bodyUsed) c.req.bodyCache = {}
    c.set('idempotency', context)
    // Hono turns what a handler throws into a response, so there is always one.
    await next()
    return c.res
  }
  const stage = {
    asked: c,
    request: c.req.raw,
    keyLines: keyLines(c.env, exchange.settings.keyHeader),
    keptBody: () => keptBody(c),
    handle,
  }
  const response = await exchangeOnWeb(exchange, stage)
  if (!handled) return response
  // Without this Hono would put the headers of the response that was replaced on top of ours.
  c.res = undefined as unknown as Response
  c.res = response
}

/** On Node the raw lines are there. Elsewhere the platform has joined them. */
function keyLines(env: unknown, keyHeader: string): readonly string[] | undefined {
  const incoming = (env as { incoming?: { rawHeaders?: readonly string[] } } | undefined)?.incoming
  return incoming?.rawHeaders?.filter((_, at, all) => at % 2 === 1 && all[at - 1]!.toLowerCase() === keyHeader)
}

/** What a validator before us read, as Hono keeps it. Undefined when that is no longer byte for byte what came. */
async function keptBody({ req }: HonoContext): Promise<Uint8Array | undefined> {
  const { text, arrayBuffer, blob } = req.bodyCache as Record<string, Promise<unknown> | undefined>
  if (!arrayBuffer && !blob && (!text || String(await text).includes('\ufffd'))) return undefined
  return new Uint8Array(await req.arrayBuffer())
}

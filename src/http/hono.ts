// Idempotency for Hono 4: `app.use(idempotency(once, options))`; the context is `c.get('once')`.

import type {} from 'hono'
import type { Once } from '../core/once.ts'
import type { OnceContext } from './exchange/context.ts'
import { createExchange } from './exchange.ts'
import type { Exchange } from './exchange.ts'
import type { HttpOptions } from './exchange/options.ts'
import { concernsWeb, exchangeOnWeb, rulesOnWeb } from './on-web.ts'

export type { OnceContext } from './exchange/context.ts'
export type { HttpOptions } from './exchange/options.ts'

declare module 'hono' {
  interface ContextVariableMap {
    /** Set while a request with an Idempotency-Key is handled. */
    once: OnceContext | undefined
  }
}

/** The slice of Hono's context that is used; `scope` is given the whole one. */
export interface HonoContext {
  readonly req: { raw: Request; bodyCache: object; arrayBuffer(): Promise<ArrayBuffer> }
  readonly env: unknown
  res: Response
  get(name: 'once'): OnceContext | undefined
  set(name: 'once', context: OnceContext): void
}

export type Middleware<Context> = (c: Context, next: () => Promise<void>) => Promise<Response | void>

export function idempotency<Context extends HonoContext = HonoContext>(
  once: Once,
  options: HttpOptions<Context>,
): Middleware<Context> {
  const exchange = createExchange<Context>(once, options)
  return (c, next) => {
    const { raw } = c.req
    if (concernsWeb(exchange, raw) && !c.get('once')) return handleKeyed(exchange, c, next)
    const rules = rulesOnWeb(exchange, raw)
    return rules ? Promise.resolve(rules) : next()
  }
}

async function handleKeyed<Context extends HonoContext>(
  exchange: Exchange<Context>,
  c: Context,
  next: () => Promise<void>,
): Promise<Response | void> {
  let handled = false
  const handle = async (request: Request, context: OnceContext): Promise<Response> => {
    handled = true
    c.req.raw = request
    if (!request.bodyUsed) c.req.bodyCache = {}
    c.set('once', context)
    // Hono turns what a handler throws into a response, so there is always one.
    await next()
    return c.res
  }
  const stage = { asked: c, request: c.req.raw, keyLines: keyLines(c.env), keptBody: () => keptBody(c), handle }
  const response = await exchangeOnWeb(exchange, stage)
  if (!handled) return response
  // Without this Hono would put the headers of the response that was replaced on top of ours.
  c.res = undefined as unknown as Response
  c.res = response
}

/** On Node the raw lines are there; elsewhere the platform has joined them. */
function keyLines(env: unknown): readonly string[] | undefined {
  const incoming = (env as { incoming?: { rawHeaders?: readonly string[] } } | undefined)?.incoming
  return incoming?.rawHeaders?.filter((_, at, all) => at % 2 === 1 && all[at - 1]!.toLowerCase() === 'idempotency-key')
}

/** What a validator before us read, as Hono keeps it; undefined when that is no longer byte for byte what came. */
async function keptBody({ req }: HonoContext): Promise<Uint8Array | undefined> {
  const { text, arrayBuffer, blob } = req.bodyCache as Record<string, Promise<unknown> | undefined>
  if (!arrayBuffer && !blob && (!text || String(await text).includes('\ufffd'))) return undefined
  return new Uint8Array(await req.arrayBuffer())
}

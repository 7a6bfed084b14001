// Idempotency for Nest, on Express and on Fastify: an interceptor, global or on single controllers and handlers. Guards run
// before it, so authentication comes first. An interceptor does not see the final bytes, so the raw response is held back.
// The raw body must be kept: `NestFactory.create(AppModule, { rawBody: true })`.

import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http'
import type { CallHandler, ExecutionContext, NestInterceptor } from '@nestjs/common'
import type { Store } from '../core/store.ts'
import { contextOf, createExchange } from './exchange.ts'
import type { ContextWith, HttpOptions, IdempotencyContext, OnceOn, TransactionsOf } from './exchange.ts'
import { serveNode, servePublished } from './on-node.ts'

export type { HttpOptions, IdempotencyContext } from './exchange.ts'

/** The request of either platform. `tenant` is given the whole request. */
export interface NestRequest {
  readonly raw?: IncomingMessage
  readonly originalUrl?: string
  readonly rawBody?: unknown
  readonly headers: IncomingMessage['headers']
  /**
   * Set while a request with an Idempotency-Key is handled, undefined on a request without one. `tx` is unknown here: this member is
   * declared once for all apps and stores. `of` of the interceptor returns it with the type of its store.
   */
  idempotency?: IdempotencyContext
}
interface NestReply {
  readonly raw?: ServerResponse
  hijack?(): unknown
  getHeaders(): OutgoingHttpHeaders
}

export interface IdempotencyInterceptor<S = Store, InTransaction extends boolean = boolean> {
  intercept(context: ExecutionContext, next: CallHandler): ReturnType<NestInterceptor['intercept']>
  /**
   * Nest calls it at the start of the app when the interceptor is a provider (`APP_INTERCEPTOR`). It throws if only a person can mend the
   * store. With `useGlobalInterceptors`, call `await once.ready()` before `listen`.
   */
  onModuleInit(): Promise<void>
  /**
   * Publishes the rules where no controller would, and serves the registration of sessions: `app.use(interceptor.rules)`. Guards do not run
   * for it, so mount it behind middleware that authenticates.
   */
  rules(req: IncomingMessage, res: ServerResponse, next: (error?: unknown) => void): void
  /** The context of a request that passed this interceptor. `tx` has the type of the store's transactions. */
  of(request: { readonly idempotency?: IdempotencyContext }): ContextWith<S, InTransaction>
}

/**
 * Returns an interceptor that runs the handler of a request with an Idempotency-Key once, and replays its response to retries.
 * Use it with `app.useGlobalInterceptors(interceptor)` or `@UseInterceptors(interceptor)`.
 *
 * @example
 * ```ts
 * import { createOnce } from 'onceonly'
 * import { memoryStore } from 'onceonly/memory'
 * import { idempotency } from 'onceonly/nest'
 *
 * const once = createOnce({ store: memoryStore(), scope: 'shop' })
 * const interceptor = idempotency(once, { tenant: (request) => request.headers.authorization })
 * ```
 */
export function idempotency<Asked = NestRequest, S extends Store = Store, InTransaction extends boolean = boolean>(
  once: OnceOn<S>,
  options: HttpOptions<Asked, InTransaction> & TransactionsOf<S, InTransaction>,
): IdempotencyInterceptor<S, InTransaction> {
  const exchange = createExchange<Asked & NestRequest>(once, options as HttpOptions<Asked & NestRequest>)

  function intercept(context: ExecutionContext, next: CallHandler): ReturnType<IdempotencyInterceptor['intercept']> {
    if (context.getType() !== 'http') return next.handle()
    const http = context.switchToHttp()
    const request = http.getRequest<Asked & NestRequest>()
    const reply = http.getResponse<NestReply>()
    const req = request.raw ?? (request as unknown as IncomingMessage)
    // Where the response is not the handler's, Nest waits for a result that never comes, and itself writes nothing.
    return new Promise((resolve, reject) => {
      const proceed = (held: IdempotencyContext): void => {
        request.idempotency = held
        resolve(next.handle())
      }
      const stage = {
        request,
        req,
        res: reply.raw ?? (reply as unknown as ServerResponse),
        target: request.originalUrl ?? req.url ?? '',
        rawBody: request.rawBody,
        headersBefore: () => reply.getHeaders(),
        beforeAnswer: () => void reply.hijack?.(),
        proceed,
      }
      serveNode(exchange, stage, () => resolve(next.handle()))?.catch(reject)
    })
  }

  return {
    intercept,
    onModuleInit: () => exchange.checkStore(),
    rules(req: IncomingMessage & { originalUrl?: string; rawBody?: unknown }, res, next) {
      const request = req as unknown as Asked & NestRequest
      const { originalUrl: target = req.url ?? '', rawBody } = req
      const served = servePublished(exchange, { request, req, res, target, rawBody, proceed: () => next() })
      const fail = (error: unknown): void => next(error)
      if (served instanceof Promise) served.catch(fail)
      else if (!served) next()
    },
    of: (request) => contextOf<S, InTransaction>(request.idempotency, exchange.settings),
  }
}

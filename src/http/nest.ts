// Idempotency for Nest, on Express and on Fastify: an interceptor, global or on single controllers and handlers. Guards run
// before it, so authentication comes first. An interceptor does not see the final bytes, so the raw response is held.
// The raw body must be kept: `NestFactory.create(AppModule, { rawBody: true })`.

import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http'
import type { CallHandler, ExecutionContext, NestInterceptor } from '@nestjs/common'
import type { Once } from '../core/once.ts'
import { showOnRequest } from './exchange/context.ts'
import type { OnceContext } from './exchange/context.ts'
import { createExchange } from './exchange.ts'
import { concernsNode, exchangeOnNode } from './on-node.ts'
import { sendAnswer } from './on-node/response.ts'
import type { HttpOptions } from './exchange/options.ts'

export type { OnceContext } from './exchange/context.ts'
export type { HttpOptions } from './exchange/options.ts'

/** The request of either platform; `scope` is given the whole one. */
export interface NestRequest {
  readonly raw?: IncomingMessage
  readonly originalUrl?: string
  readonly rawBody?: unknown
}
interface NestReply {
  readonly raw?: ServerResponse
  hijack?(): unknown
  getHeaders(): OutgoingHttpHeaders
}

export interface Interceptor {
  intercept(context: ExecutionContext, next: CallHandler): ReturnType<NestInterceptor['intercept']>
  /** Publishes the rules where no controller would: `app.use(interceptor.rules)`. */
  rules(req: IncomingMessage, res: ServerResponse, next: () => void): void
}

export function idempotency<Request = NestRequest>(once: Once, options: HttpOptions<Request>): Interceptor {
  const exchange = createExchange<Request & NestRequest>(once, options as HttpOptions<Request & NestRequest>)

  function rules(req: IncomingMessage & { originalUrl?: string }, res: ServerResponse, next: () => void): void {
    const found = exchange.rules(req.method ?? '', req.originalUrl ?? req.url ?? '', req.headers.accept)
    if (found) sendAnswer(res, found)
    else next()
  }

  function intercept(context: ExecutionContext, next: CallHandler): ReturnType<Interceptor['intercept']> {
    if (context.getType() !== 'http') return next.handle()
    const http = context.switchToHttp()
    const request = http.getRequest<Request & NestRequest>()
    const reply = http.getResponse<NestReply>()
    const req = request.raw ?? (request as unknown as IncomingMessage)
    const res = reply.raw ?? (reply as unknown as ServerResponse)
    const target = request.originalUrl ?? req.url ?? ''
    const beforeAnswer = (): void => void reply.hijack?.()
    const found = concernsNode(exchange, req)
    const published = found ? undefined : exchange.rules(req.method ?? '', target, req.headers.accept)
    if (!found && !published) return next.handle()
    // Where the answer is not the handler's, Nest waits for a result that never comes, and writes nothing of its own.
    return new Promise((resolve, reject) => {
      if (published) {
        beforeAnswer()
        return sendAnswer(res, published)
      }
      const proceed = (held: OnceContext): void => {
        if (request.raw) Object.assign(request, { once: held })
        else showOnRequest(req, held)
        resolve(next.handle())
      }
      const headersBefore = (): OutgoingHttpHeaders => reply.getHeaders()
      const { rawBody } = request
      exchangeOnNode(exchange, { request, req, res, target, rawBody, headersBefore, beforeAnswer, proceed }).catch(
        reject,
      )
    })
  }

  return { intercept, rules }
}

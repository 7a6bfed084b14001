// A receiver behind Node's own request and response (node:http, Express, Nest), behind Koa and behind Fastify. The bytes are read as the
// HTTP adapters read them: from the socket, or from what a parser in front kept.

import type { IncomingMessage, ServerResponse } from 'node:http'
import { channel } from 'node:diagnostics_channel'
import { internalError } from '../../http/exchange.ts'
import type { Answer } from '../../http/exchange.ts'
import { ClientGone, readNodeBody, sendAnswer } from '../../http/on-node.ts'
import { rawBody } from '../request.ts'
import type { WebhookHeaderSource, WebhookRequest } from '../request.ts'
import { notPosted, tooLarge } from './answers.ts'

/** What an adapter needs of a receiver. */
export interface Responding {
  readonly bodyBytesMax: number
  respond(request: WebhookRequest): Promise<Answer>
}

/** Node's request, with what Express, Nest and body parsers put on it. */
export interface NodeWebhookRequest extends IncomingMessage {
  readonly rawBody?: unknown
  readonly body?: unknown
}

export type NodeWebhookListener = (
  req: NodeWebhookRequest,
  res: ServerResponse,
  next?: (error?: unknown) => void,
) => void

// The library never logs. It publishes what was thrown on this channel.
const handlerFailed = channel('onceonly:handler-failed')

export function onNode(receiver: Responding): NodeWebhookListener {
  return (req, res, next) => void serve(receiver, { req, res, next })
}

interface NodeWebhookStage {
  readonly req: NodeWebhookRequest
  readonly res: ServerResponse
  readonly next: ((error?: unknown) => void) | undefined
}

async function serve(receiver: Responding, { req, res, next }: NodeWebhookStage): Promise<void> {
  try {
    sendAnswer(res, await answerOnNode(receiver, req, keptBy(req)))
  } catch (error) {
    if (error instanceof ClientGone) return
    if (next) return next(error)
    handlerFailed.publish({ error })
    if (!res.headersSent) sendAnswer(res, internalError())
  }
}

function keptBy({ rawBody: kept, body }: NodeWebhookRequest): unknown {
  return kept ?? (body instanceof Uint8Array ? body : undefined)
}

async function answerOnNode(receiver: Responding, req: IncomingMessage, kept: unknown): Promise<Answer> {
  const { bodyBytesMax } = receiver
  if (req.method !== 'POST') return notPosted()
  const isGone = kept === undefined && (req.readableDidRead || req.readableEnded)
  // Throws, and says what to do.
  if (isGone) rawBody({ headers: {}, body: (req as NodeWebhookRequest).body as Uint8Array })
  const body = await readNodeBody(req, kept, { bytesMax: bodyBytesMax, sha256: undefined })
  if (body.is !== 'bytes') return tooLarge(bodyBytesMax)
  return receiver.respond({ headers: headersOf(req), body: body.bytes })
}

/** With each line by itself: Node joins the lines of a name, and two would pass for one. */
function headersOf(req: IncomingMessage): WebhookHeaderSource {
  // The request of fastify.inject has only the joined ones.
  return (req.headersDistinct as NodeJS.Dict<string[]> | undefined) ?? req.headers
}

/** The part of Koa's context that is used. */
export interface KoaWebhookContext {
  readonly req: IncomingMessage
  readonly request: object
  status: number
  body: unknown
  set(name: string, value: string): void
}

export function onKoa(receiver: Responding): (ctx: KoaWebhookContext) => Promise<void> {
  return async (ctx) => {
    try {
      const { rawBody: kept } = ctx.request as { rawBody?: unknown }
      const { status, headers, body } = await answerOnNode(receiver, ctx.req, kept)
      ctx.status = status
      ctx.body = Buffer.from(body)
      for (const [name, value] of headers) ctx.set(name, value)
    } catch (error) {
      if (!(error instanceof ClientGone)) throw error
    }
  }
}

/** The part of a Fastify instance that is used. */
export interface FastifyWebhookInstance {
  removeAllContentTypeParsers(): void
  addContentTypeParser(
    type: string,
    options: { parseAs: 'buffer'; bodyLimit: number },
    parser: (request: unknown, body: Buffer, done: (error: Error | null, body?: Buffer) => void) => void,
  ): unknown
  post(path: string, handler: (request: FastifyWebhookRequest, reply: FastifyWebhookReply) => Promise<unknown>): unknown
}

export interface FastifyWebhookRequest {
  readonly raw: IncomingMessage
  readonly body: unknown
}

export interface FastifyWebhookReply {
  code(status: number): unknown
  header(name: string, value: string): unknown
  send(body: Buffer): unknown
}

export type FastifyWebhookPlugin = (
  instance: FastifyWebhookInstance,
  options: { readonly url?: string },
  done: (error?: Error) => void,
) => void

export function onFastify(receiver: Responding): FastifyWebhookPlugin {
  // Not with skip-override: the parsers are those of this plugin's own context, and of no other route.
  return (instance, { url = '/' }, done) => {
    instance.removeAllContentTypeParsers()
    instance.addContentTypeParser(
      '*',
      { parseAs: 'buffer', bodyLimit: receiver.bodyBytesMax },
      (_request, body, parsed) => parsed(null, body),
    )
    instance.post(url, async ({ raw, body: bytes }, reply) => {
      const { status, headers, body } = await receiver.respond({
        headers: headersOf(raw),
        body: (bytes as Buffer | null | undefined) ?? Buffer.alloc(0),
      })
      reply.code(status)
      for (const [name, value] of headers) reply.header(name, value)
      return reply.send(Buffer.from(body))
    })
    done()
  }
}

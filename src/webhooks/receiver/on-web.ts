// A receiver behind the web's Request and Response: Next.js, Bun, Deno, workers, and Hono.

import type { Answer } from '../../http/exchange.ts'
import { rawBody } from '../request.ts'
import { notPosted, tooLarge } from './answers.ts'
import type { Responding } from './on-node.ts'

export function onFetch(receiver: Responding): (request: Request) => Promise<Response> {
  return async (request) => toResponse(await answerOnWeb(receiver, request))
}

/** The part of Hono's context that is used. */
export interface HonoWebhookContext {
  readonly req: { readonly raw: Request }
}

export function onHono(receiver: Responding): (c: HonoWebhookContext) => Promise<Response> {
  const handle = onFetch(receiver)
  return ({ req }) => handle(req.raw)
}

async function answerOnWeb(receiver: Responding, request: Request): Promise<Answer> {
  const { bodyBytesMax } = receiver
  if (request.method !== 'POST') return notPosted()
  // Throws, and says what to do.
  if (request.bodyUsed) rawBody({ headers: {}, body: undefined as unknown as Uint8Array })
  const body = await bytesOf(request, bodyBytesMax)
  return body ? receiver.respond({ headers: request.headers, body }) : tooLarge(bodyBytesMax)
}

/** Undefined when it has more than `bytesMax`, and no more than that is read. */
async function bytesOf({ body, headers }: Request, bytesMax: number): Promise<Uint8Array | undefined> {
  if (!body) return new Uint8Array()
  if (Number(headers.get('content-length') ?? 0) > bytesMax) return undefined
  const chunks: Uint8Array[] = []
  let size = 0
  for await (const chunk of body) {
    chunks.push(chunk)
    size += chunk.length
    if (size > bytesMax) return undefined
  }
  return Buffer.concat(chunks)
}

function toResponse({ status, headers, body }: Answer): Response {
  return new Response(Buffer.from(body), {
    status,
    headers: headers.map(([name, value]): [string, string] => [name, value]),
  })
}

// What the sender of a webhook is told. A 2xx says "it is ours now", and is given only when that is durable. Everything else makes the
// sender keep the event and send it again. Never 410: senders take it as a wish to be disabled.

import { OnceError } from '../../core/errors.ts'
import { problemAnswer } from '../../http/exchange.ts'
import type { Answer } from '../../http/exchange.ts'
import type { Handled } from '../../messages/inbox.ts'

/** What became of a webhook. */
export type WebhookReceived =
  | Extract<Handled, { readonly is: 'handled' | 'duplicate' }>
  /** It is stored, and a worker handles it. */
  | { readonly is: 'queued' }
  /** The sender only asked whether this endpoint is ours. */
  | { readonly is: 'handshake'; readonly body: string }
  /** It was not run, and never will be unless a person redrives it. `isKept` when it is parked, or a dead-letter function took it. */
  | (Extract<Handled, { readonly is: 'refused' }> & { readonly isKept: boolean })
  /** It has come before, and is being handled now. */
  | Extract<Handled, { readonly is: 'busy' }>
  | { readonly is: 'failed'; readonly error: unknown }

export function answerTo(received: WebhookReceived): Answer {
  switch (received.is) {
    case 'handshake':
      return { status: 200, headers: [['Content-Type', 'text/plain']], body: Buffer.from(received.body) }
    case 'queued':
      return told(202, { is: 'queued' })
    case 'handled':
    case 'duplicate':
      return told(200, { is: received.is })
    case 'refused':
      // Parked is kept, and no retry would help: the sender is done with it. What is not kept here must be kept there.
      if (received.isKept) return told(200, { is: 'refused', code: received.code })
      return problem(500, { code: 'webhook-refused', detail: `${received.code}: ${received.detail}` })
    case 'busy':
      return problem(503, {
        code: 'webhook-in-progress',
        detail: 'This event is being handled. Send it again.',
        retryAfterMs: received.retryAfterMs,
      })
    case 'failed':
      return failure(received.error)
  }
}

function failure(error: unknown): Answer {
  if (error instanceof OnceError && error.code === 'UNAUTHENTICATED') return unauthenticatedAnswer(error)
  if (error instanceof OnceError && (error.code === 'STORE_UNAVAILABLE' || error.code === 'TRANSACTION_CONFLICT')) {
    return problem(503, {
      code: 'webhook-store-unavailable',
      detail: 'Nothing was kept of this event. Send it again.',
      retryAfterMs: error.retryAfterMs ?? 0,
    })
  }
  // What a handler threw is its own business, and no stranger's.
  return problem(500, { code: 'webhook-failed', detail: 'Handling this event failed. Send it again.' })
}

function unauthenticatedAnswer({ message }: OnceError): Answer {
  const answer = problem(401, { code: 'webhook-unauthenticated', detail: message })
  return { ...answer, headers: [...answer.headers, ['WWW-Authenticate', 'Webhook-Signature']] }
}

export const notPosted = (): Answer => {
  const answer = problem(405, { code: 'webhook-not-posted', detail: 'Webhooks are sent with POST.' })
  return { ...answer, headers: [...answer.headers, ['Allow', 'POST']] }
}

export const tooLarge = (bytesMax: number): Answer =>
  problem(413, { code: 'webhook-too-large', detail: `At most ${bytesMax} bytes are read.` })

const titles: Readonly<Record<number, string>> = {
  401: 'This webhook is not authenticated',
  405: 'This webhook was not posted',
  413: 'This webhook is too large',
  500: 'This webhook could not be handled',
  503: 'This webhook cannot be handled at the moment',
}

interface Told {
  readonly code: string
  readonly detail: string
  /** Given where a retry is worth it. */
  readonly retryAfterMs?: number
}

function problem(status: number, { code, detail, retryAfterMs }: Told): Answer {
  const retryable = retryAfterMs !== undefined
  return problemAnswer({
    kind: { code, status, title: titles[status]!, detail, retryable, executed: status === 503 ? 'unknown' : 'no' },
    base: 'urn:onceonly:webhooks',
    retryAfterSeconds: Math.max(1, Math.ceil((retryAfterMs ?? 0) / 1_000)),
    stripe: undefined,
  })
}

function told(status: number, body: object): Answer {
  return {
    status,
    headers: [['Content-Type', 'application/json']],
    body: Buffer.from(JSON.stringify(body)),
  }
}

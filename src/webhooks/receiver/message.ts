// A verified webhook as a message of the inbox. Its id is the verified one, whatever other headers say.

import type { Message } from '../../messages/inbox.ts'
import type { VerifiedWebhook, WebhookHeaderSource, WebhookRequest } from '../request.ts'

/** The event that a handler is given. */
export interface WebhookEvent extends Message {
  readonly id: string
  /** The body as JSON. */
  json(): unknown
}

export interface ReceivedMessage extends Message {
  readonly id: string
  /** What must be the same each time, where that is not the body. */
  readonly content?: string
}

export function messageOf(consumer: string, request: WebhookRequest, verified: VerifiedWebhook): ReceivedMessage {
  const { id, occurredAtMs, content } = verified
  return {
    id,
    topic: consumer,
    body: request.body,
    headers: plainHeaders(request.headers),
    raw: undefined,
    // Not the time of the attempt: each attempt has a fresh one, and an old event would never look old.
    ...(occurredAtMs !== undefined && { sentAtMs: occurredAtMs }),
    ...(content !== undefined && { content }),
  }
}

export function eventOf(message: ReceivedMessage): WebhookEvent {
  const { body } = message
  return {
    ...message,
    json: () => JSON.parse(Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString('utf8')) as unknown,
  }
}

/** Credentials that a proxy adds are no part of the event, and are not stored with it. */
const notKept = new Set(['authorization', 'cookie', 'proxy-authorization'])

function plainHeaders(headers: WebhookHeaderSource): Record<string, string> {
  const entries: Iterable<readonly [string, unknown]> =
    typeof headers.get === 'function' ? (headers as Headers).entries() : Object.entries(headers)
  const plain: Record<string, string> = {}
  for (const [name, value] of entries) {
    const lower = name.toLowerCase()
    if (value !== undefined && !notKept.has(lower))
      plain[lower] = Array.isArray(value) ? value.join(', ') : String(value)
  }
  return plain
}

// Webhooks as a sender signs them, for a receiver that knows the secret.
import { createWebhookSigner, standardWebhooks } from '../../src/webhooks.ts'
import type { WebhookRequest } from '../../src/webhooks.ts'

export const secret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'

export const signer = createWebhookSigner({ secrets: secret })

export const scheme = standardWebhooks({ secrets: secret })

/** One attempt to deliver an event: the id is the event's, the time its own. */
export function sent(id: string, body = `{"event":"${id}"}`): WebhookRequest {
  return { headers: { ...signer.sign({ id, sentAtMs: Date.now(), body }) }, body: Buffer.from(body) }
}

// Webhooks: signatures over raw bytes, and receivers that give an event one effect.

export { createWebhookSigner, newWebhookKeyPair, newWebhookSecret, standardWebhooks } from './webhooks/signatures.ts'
export type {
  SignedWebhookHeaders,
  StandardWebhooksOptions,
  WebhookKeyPair,
  WebhookSecret,
  WebhookSigner,
  WebhookToSign,
} from './webhooks/signatures.ts'
export type { VerifiedWebhook, WebhookHeaderSource, WebhookRequest, WebhookScheme } from './webhooks/request.ts'

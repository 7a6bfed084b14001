// Webhooks: signatures over raw bytes, receivers that give an event one effect, and a sender that delivers the events of an outbox.

export { createWebhookSigner, newWebhookKeyPair, newWebhookSecret, standardWebhooks } from './webhooks/signatures.ts'
export type {
  SignedWebhookHeaders,
  StandardWebhooksOptions,
  WebhookKeyPair,
  WebhookSecret,
  WebhookSigner,
  WebhookToSign,
} from './webhooks/signatures.ts'
export { onlyHeader } from './webhooks/request.ts'
export type { VerifiedWebhook, WebhookHeaderSource, WebhookRequest, WebhookScheme } from './webhooks/request.ts'
export { createWebhookSender, webhooksByHand } from './webhooks/sender.ts'
export type {
  DeliveryCalls,
  DeliveryFilter,
  DeliveryState,
  EndpointCalls,
  EndpointFilter,
  EndpointOrder,
  EndpointSecret,
  NewWebhookEndpoint,
  WebhookAttempt,
  WebhookDelivery,
  WebhookEndpoint,
  WebhookEndpointChange,
  WebhookRun,
  WebhooksByHand,
  WebhookSender,
  WebhookSenderOptions,
} from './webhooks/sender.ts'
export { githubWebhooks, hmacWebhooks, shopifyWebhooks, slackWebhooks, stripeWebhooks } from './webhooks/schemes.ts'
export type { HmacWebhooksOptions, TimedSchemeOptions, WebhookSchemeOptions } from './webhooks/schemes.ts'
export { createWebhookReceiver } from './webhooks/receiver.ts'
export type {
  FastifyWebhookPlugin,
  HonoWebhookContext,
  KoaWebhookContext,
  NodeWebhookListener,
  NodeWebhookRequest,
  WebhookEvent,
  WebhookHandler,
  WebhookReceived,
  WebhookReceiver,
  WebhookReceiverOptions,
} from './webhooks/receiver.ts'

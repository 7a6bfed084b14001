// The signatures of well-known senders, each a small scheme. A scheme is an object with `name` and `verify`, so that any other sender
// is a function away.

export { githubWebhooks } from './schemes/github.ts'
export { hmacWebhooks } from './schemes/hmac.ts'
export type { HmacWebhooksOptions, WebhookSchemeOptions } from './schemes/hmac.ts'
export { shopifyWebhooks } from './schemes/shopify.ts'
export { slackWebhooks } from './schemes/slack.ts'
export { stripeWebhooks } from './schemes/stripe.ts'
export type { TimedSchemeOptions } from './schemes/timed.ts'

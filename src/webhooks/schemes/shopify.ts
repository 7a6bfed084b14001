// Shopify: HMAC-SHA256 of the body in `X-Shopify-Hmac-Sha256`. One event id can come under several topics, so both are the id.

import { checkOptions } from '../../core/options.ts'
import { onlyHeader } from '../request.ts'
import type { WebhookScheme } from '../request.ts'
import { hmacWebhooks, schemeRules } from './hmac.ts'
import type { WebhookSchemeOptions } from './hmac.ts'

/**
 * The scheme of Shopify, with the client secret of the app. Its signature covers the body alone: neither the id nor a time.
 *
 * @example
 * import { shopifyWebhooks } from 'onceonly/webhooks'
 *
 * const scheme = shopifyWebhooks({ secrets: 'the client secret of the app' })
 */
export function shopifyWebhooks(options: WebhookSchemeOptions): WebhookScheme {
  checkOptions('shopifyWebhooks', options, schemeRules)
  return hmacWebhooks({
    idOf: (request) => `${onlyHeader(request, 'x-shopify-topic')}/${onlyHeader(request, 'x-shopify-event-id')}`,
    ...options,
    name: 'shopify',
    header: 'x-shopify-hmac-sha256',
    encoding: 'base64',
  })
}

// What well-known servers document about their keys. A window that a provider does not publish is not guessed: then `retry.horizonMs`
// is the only limit.

import { keyInBody } from './key-in-body.ts'
import type { ServerRules } from './settings.ts'

const [minuteMs, hourMs, dayMs] = [60_000, 3_600_000, 86_400_000]

/** For the option `server`: `createClient({ keys, server: providers.stripe })`. */
export const providers: Readonly<
  Record<'stripe' | 'adyen' | 'paypal' | 'square' | 'trueLayer' | 'ppro' | 'qonto' | 'nuvei' | 'helcim', ServerRules>
> = {
  stripe: { windowMs: dayMs, source: 'https://docs.stripe.com/api/idempotent_requests' },
  adyen: { windowMs: 7 * dayMs, source: 'https://docs.adyen.com/development-resources/api-idempotency' },
  /** The window differs by API, and is in the reference of each. */
  paypal: {
    header: 'PayPal-Request-Id',
    source: 'https://developer.paypal.com/api/rest/reference/idempotency/',
  },
  /** Publishes no window. */
  square: {
    ...keyInBody((body, key) => JSON.stringify({ ...(JSON.parse(body) as object), idempotency_key: key })),
    source: 'https://developer.squareup.com/docs/working-with-apis/idempotency',
  },
  trueLayer: { windowMs: 30 * dayMs, source: 'https://docs.truelayer.com/docs/idempotency-for-payment-requests' },
  ppro: {
    header: 'Request-Idempotency-Key',
    windowMs: 24 * hourMs,
    source: 'https://developerhub.ppro.com/global-api/reference/api-requests-idempotency',
  },
  qonto: {
    header: 'X-Qonto-Idempotency-Key',
    windowMs: 30 * minuteMs,
    source: 'https://docs.qonto.com/get-started/general/idempotent-requests',
  },
  nuvei: {
    windowMs: 15 * minuteMs,
    source: 'https://docs.nuvei.com/documentation/additional-links/rest-2-0/features/idempotency-support',
  },
  helcim: { windowMs: 5 * minuteMs, source: 'https://devdocs.helcim.com/v2.2/docs/idempotency-keys-for-payments' },
}

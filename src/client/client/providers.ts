// What well-known servers document about their keys. A window that a provider does not publish is not guessed: then `retry.horizonMs`
// is the only limit.

import { keyInBody } from './key-in-body.ts'
import type { ServerRules } from './settings.ts'

const [minuteMs, hourMs, dayMs] = [60_000, 3_600_000, 86_400_000]

/** For the option `server`: `createClient({ keys, server: providers.stripe })`. */
export const providers: Readonly<
  Record<
    'stripe' | 'adyen' | 'checkoutCom' | 'paypal' | 'square' | 'trueLayer' | 'ppro' | 'qonto' | 'helcim',
    ServerRules
  >
> = {
  /** API v1. API v2 has rules of its own. */
  stripe: { windowMs: dayMs, source: 'https://docs.stripe.com/api/idempotent_requests' },
  /** Its page says more (a minimum of 31 days where it was last read). What is shorter is safe. */
  adyen: { windowMs: 7 * dayMs, source: 'https://docs.adyen.com/development-resources/api-idempotency' },
  checkoutCom: {
    header: 'Cko-Idempotency-Key',
    windowMs: dayMs,
    source: 'https://www.checkout.com/docs/payments/manage-payments/idempotency',
  },
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
  /** One page says 30 days, another 6 hours. The shorter one is safe. */
  trueLayer: { windowMs: 6 * hourMs, source: 'https://docs.truelayer.com/docs/idempotency' },
  ppro: {
    header: 'Request-Idempotency-Key',
    windowMs: dayMs,
    replayHeader: 'Request-Idempotency',
    source: 'https://developerhub.ppro.com/global-api/reference/api-requests-idempotency',
  },
  qonto: {
    header: 'X-Qonto-Idempotency-Key',
    windowMs: 30 * minuteMs,
    source: 'https://docs.qonto.com/get-started/general/idempotent-requests',
  },
  helcim: { windowMs: 5 * minuteMs, source: 'https://devdocs.helcim.com/docs/idempotency' },
}

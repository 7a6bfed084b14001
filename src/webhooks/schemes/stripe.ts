// Stripe: `Stripe-Signature: t=SECONDS,v1=HEX` signs the time and the body. The id is the `id` of the event in the body.

import { checkOptions } from '../../core/options.ts'
import { onlyHeader, rawBody, unauthenticated } from '../request.ts'
import type { WebhookScheme } from '../request.ts'
import { bodyMember, idIn, isHmacSigned, notSigned, occurredAt, parsedBody, textSecrets } from './hmac.ts'
import { momentBy, timedRules } from './timed.ts'
import type { TimedSchemeOptions } from './timed.ts'

// One signature per secret while the secret is rolled, and one of another version for test events.
const partsMax = 20

/**
 * The scheme of Stripe, with the signing secret of the endpoint (`whsec_…`, as Stripe shows it).
 *
 * @example
 * import { stripeWebhooks } from 'onceonly/webhooks'
 *
 * const scheme = stripeWebhooks({ secrets: 'whsec_the secret of the endpoint' })
 */
export function stripeWebhooks(options: TimedSchemeOptions): WebhookScheme {
  checkOptions('stripeWebhooks', options, timedRules)
  const secrets = textSecrets('stripeWebhooks', options.secrets)
  const { idOf = (request) => bodyMember(request, 'id') } = options
  const momentOf = momentBy(options)
  return {
    name: 'stripe',
    verify(request) {
      const body = rawBody(request)
      const { seconds, signatures } = partsOf(onlyHeader(request, 'stripe-signature'))
      const sentAtMs = momentOf(seconds, 't of stripe-signature')
      if (!isHmacSigned(secrets, signatures, { head: `${seconds}.`, body, encoding: 'hex' })) {
        throw notSigned('stripe', secrets)
      }
      const id = idIn(request, 'stripe', idOf)
      // The body of a retry is not the first one: `pending_webhooks` counts the endpoints that are still to be told.
      return { id, sentAtMs, content: id, ...occurredAt(parsedBody(body)?.['created']) }
    },
  }
}

function partsOf(header: string): { readonly seconds: string; readonly signatures: readonly string[] } {
  const parts = header.split(',')
  if (parts.length > partsMax) {
    throw unauthenticated(`stripe-signature has ${parts.length} parts, and at most ${partsMax} are read`)
  }
  // A blank stands where two headers were made one.
  if (!parts.every((part) => /^\w+=\S*$/.test(part))) throw unauthenticated('stripe-signature is malformed')
  const valuesOf = (name: string): readonly string[] =>
    parts.filter((part) => part.startsWith(`${name}=`)).map((part) => part.slice(name.length + 1))
  const times = valuesOf('t')
  if (times.length !== 1) throw unauthenticated(`stripe-signature has ${times.length} times (t=), and must have one`)
  return { seconds: times[0]!, signatures: valuesOf('v1') }
}

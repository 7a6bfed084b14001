// Standard Webhooks: an id, a time and the raw bytes of the body, signed together with every active secret. Invariant: what is verified
// is what was signed, byte for byte. Neither side decodes the body, and a header has one way to be written.

import { generateKeyPairSync } from 'node:crypto'
import { systemClock, systemRandom } from '../core/clock.ts'
import type { Clock, Random } from '../core/clock.ts'
import { invalidArgument } from '../core/errors.ts'
import { checkOptions, oneOf, optional, positiveMs, withMethods } from '../core/options.ts'
import { checkedMoment, onlyHeader, rawBody, toleranceMsDefault, unauthenticated } from './request.ts'
import type { WebhookScheme } from './request.ts'
import { privateBytesOf, publicBytesOf, webhookKeys } from './signatures/keys.ts'
import type { WebhookKey, WebhookSecret } from './signatures/keys.ts'

export type { WebhookSecret } from './signatures/keys.ts'

/** The id and the time must not have the full stop that separates them from the body: a moved one would be another message. */
const webhookId = /^[\x21-\x2d\x2f-\x7e]{1,256}$/

export interface WebhookToSign {
  /** The same for every attempt. Printable ASCII without blanks and full stops. */
  readonly id: string
  /** When this attempt is sent: fresh for each. It is signed in whole seconds. */
  readonly sentAtMs: number
  /** The bytes that are sent. A string is sent as UTF-8. */
  readonly body: Uint8Array | string
}

export interface SignedWebhookHeaders {
  readonly 'webhook-id': string
  readonly 'webhook-timestamp': string
  readonly 'webhook-signature': string
}

export interface WebhookSigner {
  /** The headers of one attempt, with a signature of each secret. */
  sign(webhook: WebhookToSign): SignedWebhookHeaders
}

/**
 * Signs webhooks as Standard Webhooks asks for it, with every secret it is given: the old and the new one while an endpoint changes over.
 *
 * @example
 * import { createWebhookSigner, newWebhookSecret } from 'onceonly/webhooks'
 *
 * const signer = createWebhookSigner({ secrets: [newWebhookSecret()] })
 * const body = JSON.stringify({ type: 'order.paid', data: { order: 42 } })
 * const headers = signer.sign({ id: 'evt_42', sentAtMs: 1_700_000_000_000, body })
 * await fetch('https://example.com/hooks', { method: 'POST', headers: { ...headers }, body })
 */
export function createWebhookSigner(options: {
  readonly secrets: WebhookSecret | readonly WebhookSecret[]
}): WebhookSigner {
  checkOptions('createWebhookSigner', options, { secrets: () => undefined })
  const keys = webhookKeys('createWebhookSigner', options.secrets)
  if (keys.some((key) => !key.sign)) {
    throw invalidArgument('createWebhookSigner: a public key (whpk_) cannot sign. Give the private one (whsk_).')
  }
  return {
    sign({ id, sentAtMs, body }) {
      if (!webhookId.test(id)) {
        throw invalidArgument(
          `webhook: expected id to be 1 to 256 printable ASCII characters without blanks and full stops, got ${JSON.stringify(id)}`,
        )
      }
      if (!Number.isFinite(sentAtMs) || sentAtMs < 1_000 || sentAtMs >= 1e14) {
        throw invalidArgument(`webhook: expected sentAtMs to be milliseconds since 1970, got ${sentAtMs}`)
      }
      const bytes = typeof body === 'string' ? utf8(body) : body
      const seconds = String(Math.floor(sentAtMs / 1_000))
      const head = `${id}.${seconds}.`
      const signatures = keys.map((key) => `${key.version},${key.sign!(head, bytes)}`)
      return { 'webhook-id': id, 'webhook-timestamp': seconds, 'webhook-signature': signatures.join(' ') }
    },
  }
}

function utf8(text: string): Uint8Array {
  if (text.isWellFormed()) return Buffer.from(text, 'utf8')
  throw invalidArgument(
    'webhook: the body has half a surrogate pair, which UTF-8 cannot carry. Give the bytes that are sent.',
  )
}

export interface StandardWebhooksOptions {
  /** One secret, or several while the sender changes over: a signature of any of them is enough. */
  readonly secrets: WebhookSecret | readonly WebhookSecret[]
  /** How far the time of a webhook may be from ours, in the past or in the future. 5 minutes unless given. */
  readonly toleranceMs?: number
  /** What the names of the three headers begin with: `webhook` unless given, `svix` for senders that still use those. */
  readonly prefix?: 'webhook' | 'svix'
  readonly clock?: Pick<Clock, 'now'>
}

// A sender signs with every active secret, so there are two of them, or three. Each costs a comparison, and a verification with ed25519,
// before anything is proven.
const signaturesMax = 20

/**
 * The scheme of Standard Webhooks: verifies `webhook-id`, `webhook-timestamp` and `webhook-signature` (HMAC-SHA256 and ed25519).
 *
 * @example
 * import { standardWebhooks } from 'onceonly/webhooks'
 *
 * const scheme = standardWebhooks({ secrets: 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw' })
 * export async function POST(request: Request): Promise<Response> {
 *   const { id } = scheme.verify({ headers: request.headers, body: new Uint8Array(await request.arrayBuffer()) })
 *   return Response.json({ id })
 * }
 */
export function standardWebhooks(options: StandardWebhooksOptions): WebhookScheme {
  checkOptions('standardWebhooks', options, {
    secrets: () => undefined,
    toleranceMs: optional(positiveMs),
    prefix: optional(oneOf('webhook', 'svix')),
    clock: optional(withMethods('now')),
  })
  const { toleranceMs = toleranceMsDefault, prefix = 'webhook', clock = systemClock } = options
  const keys = webhookKeys('standardWebhooks', options.secrets)
  return {
    name: 'standard-webhooks',
    verify(request) {
      const body = rawBody(request)
      const id = onlyHeader(request, `${prefix}-id`)
      const seconds = onlyHeader(request, `${prefix}-timestamp`)
      const signatures = signaturesIn(onlyHeader(request, `${prefix}-signature`))
      if (!webhookId.test(id)) throw unauthenticated('its id has more than 256 characters, a blank or a full stop')
      const sentAtMs = checkedMoment(seconds, `${prefix}-timestamp`, { nowMs: clock.now(), toleranceMs })
      if (!isSigned(keys, signatures, { head: `${id}.${seconds}.`, body })) {
        throw unauthenticated(
          `no signature of ${id} is from one of our ${keys.length} secrets. Compare the secrets, and see that nothing changes the body on its way`,
        )
      }
      return { id, sentAtMs }
    },
  }
}

interface GivenSignature {
  readonly version: string
  readonly signature: string
}

/** Versions that are not known are passed over: a sender may add one. What is malformed is refused, above all two headers made one. */
function signaturesIn(header: string): readonly GivenSignature[] {
  const parts = header.split(' ')
  if (parts.length > signaturesMax) {
    throw unauthenticated(`it has ${parts.length} signatures, and at most ${signaturesMax} are read`)
  }
  return parts.map((part) => {
    const comma = part.indexOf(',')
    const [version, signature] = [part.slice(0, comma), part.slice(comma + 1)]
    if (comma < 1 || (/^v1a?$/.test(version) && !/^[A-Za-z0-9+/]+={0,2}$/.test(signature))) {
      throw unauthenticated('its signatures are malformed: expected v1,BASE64 or v1a,BASE64 with one blank between')
    }
    return { version, signature }
  })
}

interface SignedContent {
  readonly head: string
  readonly body: Uint8Array
}

function isSigned(
  keys: readonly WebhookKey[],
  signatures: readonly GivenSignature[],
  { head, body }: SignedContent,
): boolean {
  return keys.some((key) => {
    const ofKey = signatures.filter(({ version }) => version === key.version)
    if (ofKey.length === 0) return false
    const isOurs = key.verifier(head, body)
    return ofKey.some(({ signature }) => isOurs(signature))
  })
}

/**
 * A new secret for HMAC-SHA256 (`whsec_`), which sender and receiver share.
 *
 * @example
 * import { newWebhookSecret } from 'onceonly/webhooks'
 *
 * const secret = newWebhookSecret()
 */
export function newWebhookSecret(random: Pick<Random, 'bytes'> = systemRandom): string {
  return `whsec_${Buffer.from(random.bytes(32)).toString('base64')}`
}

export interface WebhookKeyPair {
  /** `whsk_…`: signs, and stays with the sender. */
  readonly privateKey: string
  /** `whpk_…`: verifies, and may be published. */
  readonly publicKey: string
}

/**
 * A new pair of keys for ed25519: the sender signs with the private one, and receivers that know only the public one can sign nothing.
 *
 * @example
 * import { createWebhookSigner, newWebhookKeyPair, standardWebhooks } from 'onceonly/webhooks'
 *
 * const { privateKey, publicKey } = newWebhookKeyPair()
 * const signer = createWebhookSigner({ secrets: privateKey })
 * const scheme = standardWebhooks({ secrets: publicKey })
 */
export function newWebhookKeyPair(): WebhookKeyPair {
  const { privateKey } = generateKeyPairSync('ed25519')
  const publicBytes = publicBytesOf(privateKey)
  return {
    privateKey: `whsk_${Buffer.concat([privateBytesOf(privateKey), publicBytes]).toString('base64')}`,
    publicKey: `whpk_${publicBytes.toString('base64')}`,
  }
}

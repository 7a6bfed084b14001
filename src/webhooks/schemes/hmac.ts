// What the schemes before Standard Webhooks have in common: HMAC-SHA256 with a text as the secret, in a header of their own.

import { createHmac, createSecretKey, timingSafeEqual } from 'node:crypto'
import type { KeyObject } from 'node:crypto'
import { invalidArgument } from '../../core/errors.ts'
import { aFunction, aString, checkOptions, oneOf, optional } from '../../core/options.ts'
import type { Rule } from '../../core/options.ts'
import { onlyHeader, rawBody, unauthenticated } from '../request.ts'
import type { VerifiedWebhook, WebhookRequest, WebhookScheme } from '../request.ts'

export interface WebhookSchemeOptions {
  /** One secret, or several while the sender changes over: a signature of any of them is enough. */
  readonly secrets: string | readonly string[]
  /** The id of the event, in a request that is verified already. The sender's own unless given. */
  idOf?(request: WebhookRequest): string | undefined
}

export const schemeRules: Readonly<Record<string, Rule>> = { secrets: () => undefined, idOf: optional(aFunction) }

export function textSecrets(what: string, secrets: string | readonly string[]): readonly KeyObject[] {
  const all: readonly unknown[] = Array.isArray(secrets) ? secrets : [secrets]
  if (all.length === 0) throw invalidArgument(`${what}: expected secrets to have at least one, got none`)
  return all.map((secret) => {
    // A line end from a file of secrets is the usual reason for signatures that never match.
    if (typeof secret === 'string' && secret !== '' && secret.trim() === secret) return createSecretKey(secret, 'utf8')
    throw invalidArgument(`${what}: expected a secret to be a non-empty string without blanks or line ends around it`)
  })
}

type HmacEncoding = 'hex' | 'base64'

const forms: Readonly<Record<HmacEncoding, RegExp>> = { hex: /^[0-9a-f]{64}$/, base64: /^[A-Za-z0-9+/]{43}=$/ }

export interface HmacContent {
  /** What is signed before the body. */
  readonly head: string
  readonly body: Uint8Array
  readonly encoding: HmacEncoding
}

/** True if one of the signatures is of one of the secrets. Texts are compared, in constant time, so each has one way to be written. */
export function isHmacSigned(
  secrets: readonly KeyObject[],
  signatures: readonly string[],
  { head, body, encoding }: HmacContent,
): boolean {
  const wellFormed = signatures.filter((each) => forms[encoding].test(each)).map((each) => Buffer.from(each, 'latin1'))
  if (wellFormed.length === 0) return false
  return secrets.some((secret) => {
    const expected = createHmac('sha256', secret).update(head, 'utf8').update(body).digest(encoding)
    return wellFormed.some((each) => timingSafeEqual(each, Buffer.from(expected, 'latin1')))
  })
}

export function notSigned(scheme: string, secrets: readonly KeyObject[]): Error {
  return unauthenticated(
    `no signature of ${scheme} is from one of our ${secrets.length} secrets. Compare the secrets, and see that nothing changes the body on its way`,
  )
}

/** The id that `idOf` finds in a verified request. An event without one cannot be told from its duplicate. */
export function idIn(
  request: WebhookRequest,
  name: string,
  idOf: (request: WebhookRequest) => string | undefined,
): string {
  const id = idOf(request)
  if (typeof id === 'string' && id !== '') return id
  throw unauthenticated(`this request of ${name} has no id of an event. Give the scheme an idOf that finds one`)
}

/** A member of a JSON body, if it is a string. */
export function bodyMember({ body }: WebhookRequest, member: string): string | undefined {
  const value = parsedBody(body)?.[member]
  return typeof value === 'string' ? value : undefined
}

export function parsedBody(body: Uint8Array): Readonly<Record<string, unknown>> | undefined {
  try {
    const value: unknown = JSON.parse(Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString('utf8'))
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : undefined
  } catch {
    return undefined
  }
}

/** The moment of an event, from seconds in its body. */
export function occurredAt(seconds: unknown): Pick<VerifiedWebhook, 'occurredAtMs'> {
  return Number.isSafeInteger(seconds) ? { occurredAtMs: (seconds as number) * 1_000 } : {}
}

export interface HmacWebhooksOptions extends WebhookSchemeOptions {
  /** Names the scheme in messages. */
  readonly name: string
  /** The header that carries the signature, in lower case. */
  readonly header: string
  readonly encoding: HmacEncoding
  /** What stands before the signature in the header: `sha256=`. Nothing unless given. */
  readonly prefix?: string
  idOf(request: WebhookRequest): string | undefined
}

/**
 * The scheme of senders that sign the body alone with HMAC-SHA256 and put the signature into a header. Such a signature covers neither a
 * time nor a header, so it says nothing of a request that is recorded and sent again under another id.
 *
 * @example
 * import { hmacWebhooks, onlyHeader } from 'onceonly/webhooks'
 *
 * const scheme = hmacWebhooks({
 *   name: 'linear',
 *   secrets: 'the secret of the endpoint',
 *   header: 'linear-signature',
 *   encoding: 'hex',
 *   idOf: (request) => onlyHeader(request, 'linear-delivery'),
 * })
 */
export function hmacWebhooks(options: HmacWebhooksOptions): WebhookScheme {
  checkOptions('hmacWebhooks', options, {
    ...schemeRules,
    name: aString,
    header: aString,
    encoding: oneOf('hex', 'base64'),
    prefix: optional(aString),
    idOf: aFunction,
  })
  const { name, header, encoding, prefix = '' } = options
  const secrets = textSecrets(name, options.secrets)
  return {
    name,
    verify(request) {
      const body = rawBody(request)
      const value = onlyHeader(request, header.toLowerCase())
      const signatures = value.startsWith(prefix) ? [value.slice(prefix.length)] : []
      if (!isHmacSigned(secrets, signatures, { head: '', body, encoding })) throw notSigned(name, secrets)
      return { id: idIn(request, name, options.idOf) }
    },
  }
}

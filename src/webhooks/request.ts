// What a scheme is given of a request: its headers and the raw bytes of its body. Invariant: a header that a scheme reads stands there
// once, is printable ASCII and short, so that no second reader of the same request can understand it in another way.

import { invalidArgument, OnceError } from '../core/errors.ts'

/** The headers of a request: a `Headers` object, or Node's `req.headers`. */
export type WebhookHeaderSource =
  | { get(name: string): string | null }
  | Readonly<Record<string, string | readonly string[] | undefined>>

export interface WebhookRequest {
  readonly headers: WebhookHeaderSource
  /** As it came over the wire. What a body parser made of it has lost what was signed. */
  readonly body: Uint8Array
}

/** What is true of a request whose signature was verified. */
export interface VerifiedWebhook {
  /** The id of the event: the same each time its sender sends it. */
  readonly id: string
  /** When this attempt was signed, where the sender says so. Each attempt has its own. */
  readonly sentAtMs?: number
  /** When the event came about, where the sender says so. It is the same each time. */
  readonly occurredAtMs?: number
  /** What must be the same each time the event comes, for a sender whose bodies differ. The body unless given. */
  readonly content?: string
  /** The body to answer with, for a request that only asks whether this endpoint is ours (Slack's `url_verification`). It is no event. */
  readonly handshake?: string
}

/** How one kind of sender proves that a request is its own. */
export interface WebhookScheme {
  readonly name: string
  /** Throws UNAUTHENTICATED unless the sender signed exactly these bytes. */
  verify(request: WebhookRequest): VerifiedWebhook
}

/** More than any sender needs (20 signatures of ed25519 are 1.9 KB), and little enough to look at before anything is proven. */
const headerLengthMax = 4_096

/**
 * The only value of a header, by its name in lower case, for a scheme of your own. Refuses a request that has none, two, or one that is no
 * short printable ASCII.
 *
 * @example
 * import { onlyHeader } from 'onceonly/webhooks'
 * import type { WebhookRequest } from 'onceonly/webhooks'
 *
 * const idOf = (request: WebhookRequest): string => onlyHeader(request, 'linear-delivery')
 */
export function onlyHeader({ headers }: WebhookRequest, name: string): string {
  const value = optionalHeader(headers, name)
  if (value === undefined) throw unauthenticated(`the header ${name} is missing`)
  return value
}

export function optionalHeader(headers: WebhookHeaderSource, name: string): string | undefined {
  const value = valueOf(headers, name)
  if (value === undefined) return undefined
  if (value.length > headerLengthMax) {
    throw unauthenticated(`the header ${name} has ${value.length} characters, and at most ${headerLengthMax} are read`)
  }
  if (!/^[\x20-\x7e]+$/.test(value)) throw unauthenticated(`the header ${name} is empty or not printable ASCII`)
  return value
}

function valueOf(headers: WebhookHeaderSource, name: string): string | undefined {
  if (typeof headers !== 'object' || headers === null) {
    throw invalidArgument(
      'webhook: expected headers to be a Headers object or an object of header names and values (req.headers)',
    )
  }
  if (typeof headers.get === 'function') return (headers as Headers).get(name) ?? undefined
  const values: unknown[] = []
  for (const given of Object.keys(headers)) {
    if (given.length !== name.length || given.toLowerCase() !== name) continue
    const value: unknown = (headers as Record<string, unknown>)[given]
    if (Array.isArray(value)) values.push(...(value as unknown[]))
    else if (value !== undefined) values.push(value)
  }
  if (values.length > 1) throw unauthenticated(`the header ${name} is there ${values.length} times`)
  const [value] = values
  if (value !== undefined && typeof value !== 'string') throw unauthenticated(`the header ${name} is no text`)
  return value
}

/** The raw bytes. Anything else was read by a body parser, and no longer has what was signed. */
export function rawBody({ body }: WebhookRequest): Uint8Array {
  if (body instanceof Uint8Array) return body
  const got = typeof body === 'string' ? 'a string' : `${body === null ? 'null' : typeof body}`
  throw invalidArgument(
    `webhook: expected body to be the raw bytes of the request (a Uint8Array), got ${got}. A signature covers the bytes on the wire: ` +
      'verify before a body parser runs, or have it keep the bytes. Express: express.raw({ type: () => true }) on this route. ' +
      'Web: new Uint8Array(await request.arrayBuffer()).',
  )
}

/** Refuses a moment that is not within the tolerance, in the past or in the future. Returns it in milliseconds. */
export function checkedMoment(seconds: string, header: string, window: ToleranceWindow): number {
  // parseInt would read "1700000000abc", and Number "1e9" or "0x1": what is compared must be what was signed.
  if (!/^[1-9]\d{0,10}$/.test(seconds)) {
    throw unauthenticated(`${header} must be an integer of seconds, got ${JSON.stringify(seconds.slice(0, 40))}`)
  }
  const atMs = Number(seconds) * 1_000
  const awayMs = window.nowMs - atMs
  if (Math.abs(awayMs) > window.toleranceMs) {
    const away = `${Math.round(Math.abs(awayMs) / 1_000)} s ${awayMs > 0 ? 'old' : 'in the future'}`
    throw unauthenticated(
      `${header} is ${away}, and the tolerance is ${window.toleranceMs / 1_000} s. Compare the clocks of sender and receiver`,
    )
  }
  return atMs
}

/** As Standard Webhooks, Stripe and Slack have it. */
export const toleranceMsDefault = 300_000

export interface ToleranceWindow {
  readonly nowMs: number
  readonly toleranceMs: number
}

export function unauthenticated(why: string): OnceError {
  return new OnceError('UNAUTHENTICATED', {
    message: `This webhook is not authenticated: ${why}. Nothing was read or run.`,
  })
}

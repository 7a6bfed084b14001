// What a server did not do, in words that all stores on servers share. What it refuses for good (the user, or the way to connect) no retry
// cures until a person has mended it, and the call has written nothing. So `executed` is 'no' also when a settle meets it: the settle is
// then repeated until the lease ends.

import { OnceError } from '../core/errors.ts'

export interface Failed {
  /** "PostgreSQL", for people. */
  readonly server: string
  /** Completes "PostgreSQL could not …": "claim payments/42". */
  readonly what: string
  /** 'unknown': the server may have done it, and the reply was lost. */
  readonly executed: 'no' | 'unknown'
  readonly cause: unknown
  /** Default true. */
  readonly retryable?: boolean
  /** A sentence: what a person can do. */
  readonly cure?: string
}

/** The server sent no reply, or refused. */
export function unavailable({ server, what, executed, cause, retryable = true, cure }: Failed): OnceError {
  const sentences = [
    `${server} could not ${what}: ${messageOf(cause)}.`,
    beginsEffects.test(what) && executed === 'no' && 'The effect was not run.',
    adviceOn(executed, retryable),
    cure,
  ]
  const message = sentences.filter(Boolean).join(' ')
  return new OnceError('STORE_UNAVAILABLE', { message, executed, retryable, cause })
}

/** What an effect follows. Beside anything else it would be no word of that effect. */
const beginsEffects = /^(claim|begin) /

function adviceOn(executed: Failed['executed'], retryable: boolean): string {
  if (!retryable) return 'No retry helps.'
  // A release or a forget by hand that comes a second time would strike the attempt that has the key by then.
  return executed === 'no' ? 'Retry.' : 'It may have done so all the same: look before you repeat it.'
}

export interface Refused {
  /** "PostgreSQL", for people. */
  readonly server: string
  readonly cause: unknown
  /** Completes "Correct …": what of the client can be wrong. */
  readonly correct: string
}

export function refusedUser({ server, cause, correct }: Refused): OnceError {
  const message = `${server} refuses this user: ${messageOf(cause)}. Nothing was written, and no retry helps. Correct ${correct}.`
  return new OnceError('STORE_UNAVAILABLE', { message, executed: 'no', retryable: false, cause })
}

/** Node's words for a certificate that it does not trust, and the drivers' words for a server that speaks no TLS. */
const tlsFailures = /certificate|does not support (SSL|secure) connection|wrong version number/i

/** The connection was never made because client and server do not agree on TLS. Only for errors that the server did not send. */
export function isTlsFailure(error: unknown): boolean {
  return tlsFailures.test(messageOf(error))
}

export function refusedTls({ server, cause, correct }: Refused): OnceError {
  const message =
    `No secure connection to ${server}: ${messageOf(cause)}. Nothing was written, and no retry helps. Correct ${correct}, ` +
    `or the certificate of the server.`
  return new OnceError('STORE_UNAVAILABLE', { message, executed: 'no', retryable: false, cause })
}

/** What it says, without a full stop at its end: it is part of a sentence of ours. */
export function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  // A refused connection is an AggregateError without a message.
  const inner = error instanceof AggregateError ? (error.errors[0] as unknown) : undefined
  return (error.message || (inner instanceof Error ? inner.message : '') || error.name).replace(/\.$/, '')
}

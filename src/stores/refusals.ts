// What a server refuses for good: the user, or the way to connect. No retry helps until a person has mended it, and the call has
// written nothing. So `executed` is 'no' also when a settle meets it: the settle is then repeated until the lease ends.

import { OnceError } from '../core/errors.ts'

export interface Refused {
  /** "PostgreSQL", for people. */
  readonly server: string
  readonly cause: unknown
  /** Completes "Correct …": what of the client can be wrong. */
  readonly correct: string
}

export function refusedUser({ server, cause, correct }: Refused): OnceError {
  const message = `${server} refuses this user: ${clause(cause)}. Nothing was written, and no retry helps. Correct ${correct}.`
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
    `No secure connection to ${server}: ${clause(cause)}. Nothing was written, and no retry helps. Correct ${correct}, ` +
    `or the certificate of the server.`
  return new OnceError('STORE_UNAVAILABLE', { message, executed: 'no', retryable: false, cause })
}

export function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  // A refused connection is an AggregateError without a message.
  const inner = error instanceof AggregateError ? (error.errors[0] as unknown) : undefined
  return error.message || (inner instanceof Error ? inner.message : '') || error.name
}

function clause(error: unknown): string {
  return messageOf(error).replace(/\.$/, '')
}

// What went wrong, in our words. Invariant: everything that leaves the store is an OnceError.

import { OnceError } from '../../core/errors.ts'
import { errorNameOf } from '../../clients/dynamodb.ts'
import type { DynamodbCancellationReason } from '../../clients/dynamodb.ts'
import { isTlsFailure, messageOf, refusedTls, refusedUser, unavailable } from '../failures.ts'

/** Reasons of a cancelled transaction that pass: other transactions, and capacity. */
const passing = ['TransactionConflict', 'ThrottlingError', 'ProvisionedThroughputExceeded']

export function isPassing(reason: DynamodbCancellationReason): boolean {
  return reason.Code === undefined || reason.Code === 'None' || passing.includes(reason.Code)
}

// The SDK has tried again by itself (three times by default) before any of these gets here.
const throttling = [
  'ProvisionedThroughputExceededException',
  'RequestLimitExceeded',
  'ThrottlingException',
  'TransactionInProgressException',
]

// DynamoDB's error for a request that is wrong: the same request would fail again.
const invalid = 'ValidationException'
const denied = 'AccessDeniedException'

/** The SDK has no credentials, or DynamoDB takes them or their signature for wrong or out of date (a clock that is off, too). */
const refusals: readonly string[] = [
  denied,
  'AccessDenied',
  'AuthFailure',
  'CredentialsProviderError',
  'ExpiredToken',
  'ExpiredTokenException',
  'IncompleteSignature',
  'IncompleteSignatureException',
  'InvalidClientTokenId',
  'InvalidSignatureException',
  'MissingAuthenticationToken',
  'MissingAuthenticationTokenException',
  'OptInRequired',
  'RequestExpired',
  'RequestInTheFuture',
  'RequestTimeTooSkewed',
  'SignatureDoesNotMatch',
  'UnrecognizedClientException',
]

/** DynamoDB's own errors say whose fault it is. */
function isSent(error: unknown): boolean {
  return error instanceof Error && '$fault' in error
}

/** DynamoDB has refused the request itself and wrote nothing. In a transaction, a table of the caller's may be missing. */
export function isLasting(error: unknown): boolean {
  return [invalid, denied, 'ResourceNotFoundException'].includes(errorNameOf(error))
}

/** `what` completes "DynamoDB could not …": "claim payments/42". */
export function storeError(error: unknown, what: string, executed: 'no' | 'unknown'): OnceError {
  if (error instanceof OnceError) return error
  const name = errorNameOf(error)
  if (name === 'ResourceNotFoundException') {
    return new OnceError('SCHEMA_MISSING', {
      message:
        `DynamoDB has no such table: ${messageOf(error)}. Run "await store.migrate()" once, or give store.schema() to ` +
        'whatever creates your tables, and check the table option and the region of the client.',
      cause: error,
    })
  }
  const refused = { server: 'DynamoDB', cause: error }
  if (refusals.includes(name)) {
    const correct =
      'the credentials, the rights (IAM) or the region of the client that the store was given, or the clock of this machine (NTP)'
    return refusedUser({ ...refused, correct })
  }
  if (!isSent(error) && isTlsFailure(error))
    return refusedTls({ ...refused, correct: 'the endpoint or the TLS options of the client that the store was given' })
  const cure = 'The table is throttled: give it more capacity, or spread the load over more keys.'
  return unavailable({
    server: 'DynamoDB',
    what,
    executed,
    cause: error,
    retryable: name !== invalid,
    ...(throttling.includes(name) && { cure }),
  })
}

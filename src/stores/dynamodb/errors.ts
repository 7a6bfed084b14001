// What went wrong, in our words. Invariant: everything that leaves the store is an OnceError.

import { OnceError } from '../../core/errors.ts'
import { errorNameOf } from '../../clients/dynamodb.ts'
import type { DynamodbCancellationReason } from '../../clients/dynamodb.ts'

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

// DynamoDB's errors for a request that is wrong or that we may not make: the same request would fail again.
const lasting = ['ValidationException', 'AccessDeniedException', 'UnrecognizedClientException']

/** DynamoDB has refused the request itself and wrote nothing. In a transaction, a table of the caller's may be missing. */
export function isLasting(error: unknown): boolean {
  return [...lasting, 'ResourceNotFoundException'].includes(errorNameOf(error))
}

export function storeError(error: unknown, during: string, executed: 'no' | 'unknown'): OnceError {
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
  const effect = executed === 'no' ? 'The effect was not run.' : 'Whether it was carried out is not known; ask again.'
  const cure = throttling.includes(name)
    ? ' The table is throttled: give it more capacity, or spread the load over more keys.'
    : ''
  return new OnceError('STORE_UNAVAILABLE', {
    message: `DynamoDB did not carry out a ${during}: ${messageOf(error)}. ${effect}${cure}`,
    executed,
    retryable: !lasting.includes(name),
    cause: error,
  })
}

export function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  // A refused connection is an AggregateError without a message.
  const inner = error instanceof AggregateError ? (error.errors[0] as unknown) : undefined
  return error.message || (inner instanceof Error ? inner.message : '') || error.name
}

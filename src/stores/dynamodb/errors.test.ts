// The errors of DynamoDB and of the SDK, by their names, and what a caller is told of them. Most take an account, a clock that is off
// or a full table to bring about.

import { DynamoDBServiceException } from '@aws-sdk/client-dynamodb'
import { expect, test } from 'vitest'
import { OnceError } from '../../core/errors.ts'
import { isLasting, isPassing, storeError } from './errors.ts'

const unavailable = { code: 'STORE_UNAVAILABLE', executed: 'no', retryable: true }
const refused = { ...unavailable, retryable: false }
const said = (name: string, message = 'what DynamoDB says'): Error =>
  new DynamoDBServiceException({ name, message, $fault: 'client', $metadata: {} })

test.each([undefined, 'None', 'TransactionConflict', 'ThrottlingError', 'ProvisionedThroughputExceeded'])(
  'a transaction that was cancelled for the reason %s may pass',
  (Code) => expect(isPassing({ Code })).toBe(true),
)

test.each(['ConditionalCheckFailed', 'ItemCollectionSizeLimitExceeded', 'ValidationError', 'DuplicateItem', ''])(
  'a transaction that was cancelled for the reason "%s" does not pass',
  (Code) => expect(isPassing({ Code })).toBe(false),
)

test('a request that DynamoDB refused as such wrote nothing', () => {
  for (const name of ['ValidationException', 'AccessDeniedException', 'ResourceNotFoundException'])
    expect(isLasting(said(name))).toBe(true)
  for (const name of ['AccessDenied', 'ThrottlingException', 'TransactionCanceledException', ''])
    expect(isLasting(said(name))).toBe(false)
  expect(isLasting('ValidationException')).toBe(false)
})

test('a table that is missing is told with what makes it', () => {
  const cause = said('ResourceNotFoundException', 'Table: onceonly not found')
  expect(storeError(cause, 'settle a/1', 'unknown')).toMatchObject({
    code: 'SCHEMA_MISSING',
    executed: 'no',
    retryable: false,
    cause,
    message:
      'DynamoDB has no such table: Table: onceonly not found. Run "await store.migrate()" once, or give store.schema() to ' +
      'whatever creates your tables, and check the table option and the region of the client.',
  })
})

test.each([
  'AccessDenied',
  'AccessDeniedException',
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
])('%s is no matter of retries, also when it meets a settle, and the cure is named', (name) => {
  const cause = said(name, `${name}, says DynamoDB.`)
  expect(storeError(cause, 'settle a/1', 'unknown')).toMatchObject({
    ...refused,
    cause,
    message:
      `DynamoDB refuses this user: ${name}, says DynamoDB. Nothing was written, and no retry helps. Correct the credentials, ` +
      'the rights (IAM) or the region of the client that the store was given, or the clock of this machine (NTP).',
  })
})

test('a certificate that is not trusted is no matter of retries, also when it meets a settle, and the cure is named', () => {
  const cause = Object.assign(new Error('self-signed certificate'), { code: 'DEPTH_ZERO_SELF_SIGNED_CERT' })
  expect(storeError(cause, 'settle a/1', 'unknown')).toMatchObject({
    ...refused,
    cause,
    message:
      'No secure connection to DynamoDB: self-signed certificate. Nothing was written, and no retry helps. Correct the endpoint ' +
      'or the TLS options of the client that the store was given, or the certificate of the server.',
  })
})

test('a certificate that DynamoDB itself speaks of is no matter of the connection', () => {
  const error = storeError(said('ValidationException', 'The attribute certificate is reserved.'), 'claim a/1', 'no')
  expect(error.message).toBe(
    'DynamoDB could not claim a/1: The attribute certificate is reserved. The effect was not run. No retry helps.',
  )
})

const throttled = ' The table is throttled: give it more capacity, or spread the load over more keys.'

test.each<[name: string, cure: string, told: typeof refused]>([
  ['ProvisionedThroughputExceededException', throttled, unavailable],
  ['RequestLimitExceeded', throttled, unavailable],
  ['ThrottlingException', throttled, unavailable],
  ['TransactionInProgressException', throttled, unavailable],
  ['InternalServerError', '', unavailable],
  ['TimeoutError', '', unavailable],
  ['ValidationException', '', refused],
])('%s: the effect was not run, or nobody knows', (name, cure, told) => {
  const cause = said(name)
  expect(storeError(cause, 'claim a/1', 'no')).toMatchObject({
    ...told,
    cause,
    message: `DynamoDB could not claim a/1: what DynamoDB says. The effect was not run. ${told.retryable ? 'Retry.' : 'No retry helps.'}${cure}`,
  })
  expect(storeError(cause, 'settle a/1', 'unknown')).toMatchObject({
    ...told,
    executed: 'unknown',
    cause,
    message: `DynamoDB could not settle a/1: what DynamoDB says. ${told.retryable ? 'It may have done so all the same: look before you repeat it.' : 'No retry helps.'}${cure}`,
  })
})

test('what is no error is told all the same, and an error of ours stays as it is', () => {
  expect(storeError('cut off', 'claim a/1', 'no')).toMatchObject({
    ...unavailable,
    message: 'DynamoDB could not claim a/1: cut off. The effect was not run. Retry.',
  })
  const ours = new OnceError('STORE_UNSAFE', { message: 'a global table' })
  expect(storeError(ours, 'claim a/1', 'unknown')).toBe(ours)
})

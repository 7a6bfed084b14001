// What a caller is told of an error of the server.

import { expect, test } from 'vitest'
import { OnceError } from '../../core/errors.ts'
import { isServerError, storeError } from './scripts.ts'

test.each([
  'NOAUTH Authentication required.',
  'WRONGPASS invalid username-password pair or user is disabled.',
  'NOPERM User limited has no permissions to run the command',
])('%s: nothing ran, and a retry would meet the same', (message) => {
  const cause = new Error(message)
  const error = storeError(cause, 'settle payments/42', 'unknown')
  expect(error).toMatchObject({ executed: 'no', retryable: false, cause })
  expect(error.message).toMatch(
    /Redis.*the user, the password or the rights \(ACL\) of the client that the store was given/s,
  )
})

test('the word stands at the beginning, or the error may pass', () => {
  for (const message of ['ERR a script called NOPERM', 'read WRONGPASS', 'NOAUTHX'])
    expect(storeError(new Error(message), 'settle payments/42', 'unknown')).toMatchObject({ retryable: true })
})

test.each([
  ['claim payments/42', 'no', 'The effect was not run. Retry.'],
  ['begin a step of payments/42', 'no', 'The effect was not run. Retry.'],
  ['show payments/42', 'no', 'Retry.'],
  ['settle payments/42', 'unknown', 'It may have done so all the same: look before you repeat it.'],
] as const)('any other is told with its call, and may pass: %s, %s', (what, executed, advice) => {
  const cause = new Error('NOAUTHX')
  expect(storeError(cause, what, executed)).toMatchObject({
    code: 'STORE_UNAVAILABLE',
    executed,
    retryable: true,
    cause,
    message: `Redis could not ${what}: NOAUTHX. ${advice} Check that it is up, reachable and takes writes (onceonly doctor).`,
  })
})

test('what is known by its code already stays as it is', () => {
  const known = new OnceError('STORE_UNSAFE', { message: 'unfit' })
  expect(storeError(known, 'claim payments/42', 'no')).toBe(known)
})

test('an error of the server begins with its word, one of the connection does not', () => {
  const found = ['ERR syntax error', 'WRONGTYPE no', 'read ECONNRESET', 'E x', 'Socket closed'].map((message) =>
    isServerError(new Error(message)),
  )
  expect(found).toEqual([true, true, false, false, false])
  expect(isServerError('ERR no error')).toBe(false)
})

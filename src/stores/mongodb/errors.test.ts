// The driver's own errors, as a server with users and certificates would cause them. The tests' server has neither.

import { MongoServerError, MongoServerSelectionError } from 'mongodb'
import type { TopologyDescription } from 'mongodb'
import { expect, test } from 'vitest'
import { storeError } from './errors.ts'

const refused = { code: 'STORE_UNAVAILABLE', executed: 'no', retryable: false }

test.each([
  ['UserNotFound', 11],
  ['Unauthorized', 13],
  ['AuthenticationFailed', 18],
  ['AtlasError', 8_000],
])('%s is no matter of retries, also when it meets a settle, and the cure is named', (name, code) => {
  const error = storeError(new MongoServerError({ message: `${name}, says the server.`, code }), 'settle', 'unknown')
  expect(error).toMatchObject(refused)
  expect(error.message).toContain(`${name}, says the server. Nothing was written, and no retry helps. Correct the user`)
})

test('a certificate that is not trusted is no matter of retries, and a server that is away is one', () => {
  const selection = (message: string) => new MongoServerSelectionError(message, {} as TopologyDescription)
  expect(storeError(selection('self-signed certificate'), 'claim', 'no')).toMatchObject(refused)
  const away = storeError(selection('connect ECONNREFUSED 127.0.0.1:27017'), 'claim', 'no')
  expect(away).toMatchObject({ ...refused, retryable: true })
})

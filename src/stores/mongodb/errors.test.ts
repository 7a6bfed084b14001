// The driver's own errors, as a server with users and certificates would cause them. The tests' server has neither.

import { MongoNetworkError, MongoServerError, MongoServerSelectionError } from 'mongodb'
import type { TopologyDescription } from 'mongodb'
import { expect, test } from 'vitest'
import { OnceError } from '../../core/errors.ts'
import { storeError } from './errors.ts'

const refused = { code: 'STORE_UNAVAILABLE', executed: 'no', retryable: false }
const unavailable = { ...refused, retryable: true }
const said = (code: number, message = 'what the server says'): Error => new MongoServerError({ message, code })
const selection = (message: string): Error => new MongoServerSelectionError(message, {} as TopologyDescription)

test.each([
  ['UserNotFound', 11],
  ['Unauthorized', 13],
  ['AuthenticationFailed', 18],
  ['AtlasError', 8_000],
])('%s is no matter of retries, also when it meets a settle, and the cure is named', (name, code) => {
  const cause = said(code, `${name}, says the server.`)
  expect(storeError(cause, 'settle a/1', 'unknown')).toMatchObject({
    ...refused,
    cause,
    message:
      `MongoDB refuses this user: ${name}, says the server. Nothing was written, and no retry helps. Correct the user, the ` +
      'password or the roles of the client that the store was given.',
  })
})

test('a certificate that is not trusted is no matter of retries, also when it meets a settle, and the cure is named', () => {
  const cause = selection('self-signed certificate')
  expect(storeError(cause, 'settle a/1', 'unknown')).toMatchObject({
    ...refused,
    cause,
    message:
      'No secure connection to MongoDB: self-signed certificate. Nothing was written, and no retry helps. Correct the TLS ' +
      'options of the client that the store was given, or the certificate of the server.',
  })
})

test('a certificate is also told from a code of Node, which is no number', () => {
  const cause = Object.assign(new MongoNetworkError('certificate has expired'), { code: 'CERT_HAS_EXPIRED' })
  expect(storeError(cause, 'claim a/1', 'no')).toMatchObject({
    ...refused,
    message: expect.stringMatching(/^No secure connection to MongoDB: certificate has expired\./) as string,
  })
})

test.each<[what: string, cause: Error, message: string, told: typeof refused]>([
  [
    'a server that is away',
    selection('connect ECONNREFUSED 127.0.0.1:27017'),
    'connect ECONNREFUSED 127.0.0.1:27017',
    unavailable,
  ],
  ['a primary that steps down', said(189, 'the primary stepped down'), 'the primary stepped down', unavailable],
  [
    'a certificate that the server itself speaks of',
    said(9, 'the field certificate is missing'),
    'the field certificate is missing',
    unavailable,
  ],
  [
    'a command that the server does not know',
    said(59, 'no such command: findAndModify'),
    'no such command: findAndModify',
    refused,
  ],
  [
    'a document that is too large',
    said(10_334, 'the document is larger than 16 MB'),
    'the document is larger than 16 MB',
    refused,
  ],
])('%s: the effect was not run, or nobody knows', (_, cause, message, told) => {
  expect(storeError(cause, 'claim a/1', 'no')).toMatchObject({
    ...told,
    cause,
    message: `MongoDB could not claim a/1: ${message}. The effect was not run. ${told.retryable ? 'Retry.' : 'No retry helps.'}`,
  })
  expect(storeError(cause, 'settle a/1', 'unknown')).toMatchObject({
    ...told,
    executed: 'unknown',
    cause,
    message: `MongoDB could not settle a/1: ${message}. ${told.retryable ? 'It may have done so all the same: look before you repeat it.' : 'No retry helps.'}`,
  })
})

test.each([58, 60, 10_333, 10_335, 10, 12, 17, 19])('the code %i is none of those that last', (code) => {
  expect(storeError(said(code), 'claim a/1', 'no')).toMatchObject(unavailable)
})

test.each<[thrown: unknown, message: string]>([
  ['cut off', 'cut off'],
  [undefined, 'undefined'],
  [null, 'null'],
  [{ code: '13', toString: () => 'a code that is a text' }, 'a code that is a text'],
])('what is no error is told all the same: %s', (thrown, message) => {
  expect(storeError(thrown, 'claim a/1', 'no')).toMatchObject({
    ...unavailable,
    message: `MongoDB could not claim a/1: ${message}. The effect was not run. Retry.`,
  })
})

test('an error of ours stays as it is', () => {
  const ours = new OnceError('STORE_UNSAFE', { message: 'a mongos' })
  expect(storeError(ours, 'claim a/1', 'unknown')).toBe(ours)
})

// The exchange's own answers, whole: what a client, stripe-node among them, decides by.

import { expect, test } from 'vitest'
import { createOnce } from '../../core/once.ts'
import { memoryStore } from '../../stores/memory.ts'
import { readHttpOptions } from './options.ts'
import type { HttpOptions } from './options.ts'
import { problem, problemKinds } from './problem.ts'
import type { ProblemDetails, ProblemName } from './problem.ts'

const once = createOnce({ store: memoryStore(), scope: 's', sweepEveryMs: false })

function answered(name: ProblemName, details?: ProblemDetails, options: Partial<HttpOptions> = {}) {
  const { status, headers, body } = problem(readHttpOptions(once, { tenant: 'shared', ...options }), name, details)
  return { status, headers, document: JSON.parse(body.toString()) as Record<string, unknown> }
}

const base = '/.well-known/idempotency/problems'
const first = [
  ['Content-Type', 'application/problem+json'],
  ['Cache-Control', 'no-store'],
  ['Link', '</.well-known/idempotency>; rel="describedby"'],
]

test.each(Object.keys(problemKinds) as ProblemName[])('%s is the document of its kind, and its headers', (name) => {
  const { code, status, title, detail, retryable, executed } = problemKinds[name]
  expect(answered(name)).toEqual({
    status,
    headers: retryable ? [...first, ['Retry-After', '1']] : first,
    document: { type: `${base}/${code}`, title, status, detail, code, retryable, executed },
  })
})

test.each([
  [undefined, '1'],
  [0, '1'],
  [1_000, '1'],
  [1_001, '2'],
  [4_999, '5'],
  [60_000, '5'],
])('after %s ms a retry is asked for in %s s, at least 1 and at most 5', (retryAfterMs, seconds) => {
  expect(answered('inProgress', { retryAfterMs }).headers).toContainEqual(['Retry-After', seconds])
})

test('what no retry can cure says so, whatever its kind says, and never the other way round', () => {
  const uncured = answered('storeUnavailable', { retryable: false })
  expect([uncured.headers, uncured.document['retryable']]).toEqual([first, false])
  expect(answered('storeUnavailable', { retryable: true }).document['retryable']).toBe(true)
  expect(answered('keyReused', { retryable: true }).document['retryable']).toBe(false)
})

test('a detail stands before that of the kind, and the header has the name that this server gave it', () => {
  const { detail, title } = problemKinds.keyMissing
  expect(answered('keyMissing', { detail: 'It is empty.' }, { header: 'X-Key' }).document).toMatchObject({
    detail: `It is empty. ${detail}`,
    title: title.replace('Idempotency-Key', 'X-Key'),
  })
})

test('a request with a number is told of its number, and of keys only where keys are meant', () => {
  const numbered = { isNumbered: true }
  expect(answered('inProgress', numbered).document).toMatchObject({
    title: 'A request with this Idempotency-Sequence is being processed',
    detail: 'Ask again with the same number: the answer will be that of the request which is being processed.',
  })
  expect(answered('inProgress', { isNumbered: false }).document['title']).toContain('Idempotency-Key')
  for (const name of ['sessionInvalid', 'sessionAndKey', 'sessionsNotOffered'] as const) {
    const { title, detail } = problemKinds[name]
    expect(answered(name, numbered).document).toMatchObject({ title, detail })
  }
})

test.each([
  ['inProgress', 409, { type: 'invalid_request_error', code: 'idempotency_key_in_use' }, 'true'],
  ['keyReused', 400, { type: 'idempotency_error' }, 'false'],
  ['sequenceReused', 400, { type: 'idempotency_error' }, 'false'],
  ['keyExpired', 410, { type: 'idempotency_error' }, 'false'],
  ['keyMissing', 400, { type: 'invalid_request_error' }, 'false'],
  ['scopeMissing', 400, { type: 'invalid_request_error' }, 'false'],
  ['bodyTooLarge', 413, { type: 'invalid_request_error' }, 'false'],
  ['sessionInvalid', 400, { type: 'invalid_request_error' }, 'false'],
  ['outcomeUnreadable', 500, { type: 'api_error' }, 'false'],
  ['storeUnavailable', 503, { type: 'api_error' }, 'true'],
] as const)('in the profile of Stripe %s is %i with an error member', (name, status, error, retry) => {
  const { title, detail } = problemKinds[name]
  const found = answered(name, {}, { profile: 'stripe' })
  expect(found.status).toBe(status)
  expect(found.document).toMatchObject({ status, title, detail })
  expect(found.document['error']).toEqual({ ...error, message: `${title}. ${detail}` })
  expect(found.headers.filter(([header]) => header === 'Stripe-Should-Retry')).toEqual([['Stripe-Should-Retry', retry]])
})

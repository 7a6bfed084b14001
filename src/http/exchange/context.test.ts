import { expect, test } from 'vitest'
import type { Op } from '../../core/call.ts'
import { contextOf, createContext, verdictFor } from './context.ts'
import type { HandlerChoice } from './context.ts'
import { failureRules, problemOf, sessionProblemOf } from './failures.ts'
import type { RequestAttempt } from './verdict.ts'

const { signal } = new AbortController()
const op: Op = { key: { scope: 's', id: '1' }, attempt: 2, token: 't', fence: 3, signal, keyFor: () => 'derived' }

test('the context is the attempt, with the transaction and what the handler may say of its answer', () => {
  const choice: HandlerChoice = { verdict: undefined }
  const tx = {}
  const context = createContext(op, tx, choice)
  const { key, attempt, token, fence, keyFor } = op
  expect(context).toMatchObject({ key, attempt, token, fence, keyFor, tx, replayed: false })
  expect([context.signal, context.tx]).toEqual([signal, tx])
  for (const [say, verdict] of [
    ['release', 'open'],
    ['store', 'store'],
    ['notBegun', 'forget'],
    ['inDoubt', 'doubt'],
  ] as const) {
    expect(context[say]()).toBeUndefined()
    expect(choice.verdict).toBe(verdict)
  }
})

test('a context that must be there and is not is an error that says why', () => {
  const context = createContext(op, undefined, { verdict: undefined })
  expect(contextOf(context, { transaction: true })).toBe(context)
  expect(contextOf(undefined, { transaction: false })).toBeUndefined()
  expect(() => contextOf(undefined, { transaction: true })).toThrow(/of\(request\) found no transaction/)
})

test.each([
  [200, 'store', 'store', 'store'],
  [399, 'store', 'store', 'store'],
  [400, 'store', 'store', 'open'],
  [499, 'store', 'store', 'open'],
  [500, 'open', 'store', 'open'],
  [599, 'open', 'store', 'open'],
  ...[401, 407, 408, 421, 425, 429].map((status) => [status, 'open', 'open', 'open'] as const),
] as const)('%i: release-5xx %s, began %s, success-only %s', (status, release, began, success) => {
  const choice = { verdict: undefined }
  expect(verdictFor(status, 'release-5xx', choice)).toBe(release)
  expect(verdictFor(status, 'began', choice)).toBe(began)
  expect(verdictFor(status, 'success-only', choice)).toBe(success)
  for (const verdict of ['store', 'open', 'forget', 'doubt'] as const)
    expect(verdictFor(status, 'release-5xx', { verdict })).toBe(verdict)
})

const attemptOf = (numbered: boolean, produced: boolean): RequestAttempt =>
  ({
    numbered: numbered ? { session: 's', epoch: 1, sequence: 1, acknowledged: 0 } : undefined,
    produced: produced ? { is: 'broken' } : undefined,
  }) as RequestAttempt

test.each([
  // An answer that could not be written, of a handler whose effect lies outside of the transaction of its session.
  ['STORE_UNAVAILABLE', { numbered: true, produced: true }, {}, 'outcomeUnknown'],
  ['STORE_UNAVAILABLE', { numbered: true, produced: true }, { inTransaction: true }, 'storeUnavailable'],
  ['STORE_UNAVAILABLE', { numbered: true }, {}, 'storeUnavailable'],
  ['STORE_UNAVAILABLE', { produced: true }, {}, 'storeUnavailable'],
  ['TRANSACTION_CONFLICT', { numbered: true, produced: true }, {}, 'outcomeUnknown'],
  ['DEADLINE_PASSED', { numbered: true, produced: true }, { nothingKept: true }, 'outcomeUnknown'],
  ['DEADLINE_PASSED', { produced: true }, { nothingKept: true }, 'deadlinePassed'],
  ['DEADLINE_PASSED', { produced: true }, {}, 'outcomeUnknown'],
  ['OUTCOME_NOT_STORED', { produced: true }, { nothingKept: true }, 'thrown'],
  ['OUTCOME_NOT_STORED', { produced: true }, {}, 'notStored'],
  ['MISMATCH', {}, {}, 'keyReused'],
  ['MISMATCH', { numbered: true }, {}, 'sequenceReused'],
  ['IN_FLIGHT', { numbered: true }, {}, 'inProgress'],
] as const)('%s with %j and %j is %s', (code, of, how, name) => {
  const { numbered = false, produced = false } = of as { numbered?: boolean; produced?: boolean }
  const { nothingKept = false, inTransaction = false } = how as { nothingKept?: boolean; inTransaction?: boolean }
  expect(problemOf(failureRules[code]!, attemptOf(numbered, produced), nothingKept, inTransaction)).toBe(name)
})

test('a session that the store did not confirm may be there; other errors of sessions are those of requests', () => {
  expect(sessionProblemOf('STORE_UNAVAILABLE')).toBe('sessionNotConfirmed')
  expect(sessionProblemOf('SESSION_EXPIRED')).toBe('sessionExpired')
  expect(sessionProblemOf('INVALID_ARGUMENT')).toBeUndefined()
})

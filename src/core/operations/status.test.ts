import { expect, test } from 'vitest'
import { key } from '../key.ts'
import { encodeOutcome } from '../outcome.ts'
import type { Outcome } from '../outcome.ts'
import { FinalError } from '../errors.ts'
import type { Entry, EntryState, Ledger } from '../store.ts'
import { courseRecord, stepRecord } from './records.ts'
import { statusOf } from './status.ts'

const subject = key('shop/operations/checkout', '1')

const entryIn = (state: EntryState, outcome?: Outcome): Entry => ({
  key: subject,
  state,
  attempt: 3,
  fence: 1,
  fingerprint: 'f',
  version: 7,
  firstClaimedAtMs: 0,
  leaseUntilMs: 10,
  expiresAtMs: 20,
  forgottenAtMs: 30,
  ...(outcome && { outcome: encodeOutcome(outcome, undefined).bytes }),
})

const ledgerOf = (
  dueAtMs: number | undefined,
  ...contents: Omit<Ledger['records'][number], 'revision' | 'atMs'>[]
): Ledger => ({
  records: contents.map((each, index) => ({ ...each, revision: 1, atMs: 50 + index })),
  dueAtMs,
  cancelReason: undefined,
})

const value: Outcome = { kind: 'value', value: 'done' }
const failure: Outcome = { kind: 'failure', error: new FinalError('declined') }
const notStored: Outcome = { kind: 'not-stored', reason: 'too large' }

test.each<[shown: string, state: EntryState, ledger: Ledger | undefined, outcome?: Outcome]>([
  ['running', 'running', ledgerOf(5)],
  ['running', 'running', undefined],
  ['parked', 'running', ledgerOf(undefined)],
  ['abandoned', 'abandoned', ledgerOf(5)],
  ['parked', 'abandoned', ledgerOf(undefined)],
  ['waiting', 'open', ledgerOf(5)],
  ['parked', 'open', ledgerOf(undefined)],
  ['completed', 'settled', ledgerOf(undefined), value],
  ['completed', 'settled', undefined, notStored],
  ['failed', 'settled', ledgerOf(undefined), failure],
  ['expired', 'tombstone', ledgerOf(undefined)],
])('an operation is %s when its entry is %s', (shown, state, ledger, outcome) => {
  expect(statusOf(entryIn(state, outcome), ledger, undefined).state).toBe(shown)
})

test('an entry in no state that is known is a bug', () => {
  expect(() => statusOf(entryIn('odd' as EntryState), undefined, undefined)).toThrow('has the state odd')
})

const course = { version: 9, direction: 'backward', failures: 2, parked: 'asks a person', lastError: 'down' } as const
const charge = { name: 'charge', order: 1, attempt: 1, state: 'began' } as const
const mail = { name: 'mail', order: 2, attempt: 2, state: 'stuck', error: 'no server' } as const
const records = [courseRecord(course, undefined), stepRecord(charge, undefined), stepRecord(mail, undefined)]

test('the status says everything that is recorded, and nothing that is not', () => {
  const ledger = { ...ledgerOf(undefined, ...records), cancelReason: 'out of stock' }
  expect(statusOf(entryIn('open'), ledger, undefined)).toEqual({
    key: subject,
    state: 'parked',
    direction: 'backward',
    version: 9,
    attempt: 3,
    failures: 2,
    steps: [
      { name: 'charge', state: 'began', attempt: 1, sinceAtMs: 51 },
      { name: 'mail', state: 'stuck', attempt: 2, sinceAtMs: 52, error: 'no server' },
    ],
    inDoubt: ['charge'],
    parked: 'asks a person',
    lastError: 'down',
    cancelReason: 'out of stock',
  })
  expect(statusOf(entryIn('settled', value), undefined, undefined)).toEqual({
    key: subject,
    state: 'completed',
    direction: 'forward',
    version: 7,
    attempt: 3,
    failures: 0,
    steps: [],
    inDoubt: [],
    outcome: value,
  })
})

test('nothing is in doubt while a process works on it, and only what is parked says why', () => {
  const running = statusOf(entryIn('running'), ledgerOf(5, ...records), undefined)
  expect(running).toMatchObject({ state: 'running', inDoubt: [], dueAtMs: 5 })
  expect(running).not.toHaveProperty('parked')
  expect(statusOf(entryIn('abandoned'), ledgerOf(0, ...records), undefined)).toMatchObject({
    state: 'abandoned',
    inDoubt: ['charge'],
    dueAtMs: 0,
  })
})

test('of an operation that has expired no record is shown, whether or not it can be read', () => {
  const garbled = ledgerOf(5, { name: 'charge', content: Buffer.from('garbled') })
  expect(statusOf(entryIn('tombstone'), garbled, undefined)).toMatchObject({ state: 'expired', steps: [], version: 7 })
})

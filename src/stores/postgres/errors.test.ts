// The errors of PostgreSQL and its clients, as each of them wraps what the server said, and what they say about the effect.

import { expect, test } from 'vitest'
import { OnceError } from '../../core/errors.ts'
import {
  isConflict,
  isPassing,
  isPassingStraight,
  isUnprepared,
  saysRolledBack,
  sqlStateOf,
  storeError,
} from './errors.ts'

const said = (code: string, message = 'what the server says'): Error => Object.assign(new Error(message), { code })
const wrapped = (inner: unknown, times: number): unknown =>
  Array.from({ length: times }).reduce<unknown>((cause) => new Error('failed query', { cause }), inner)

test.each<[name: string, error: unknown, state: string | undefined]>([
  ['as pg has it', said('40001'), '40001'],
  ['in the cause of a wrapper', wrapped(said('40P01'), 1), '40P01'],
  ['in a wrapper of wrappers', wrapped(said('40P01'), 4), '40P01'],
  ['too deep to be looked for', wrapped(said('40P01'), 5), undefined],
  ['in the meta of Prisma 6, whose own code looks like one', { code: 'P2034', meta: { code: '40001' } }, '40001'],
  [
    'in the driver error of Prisma 7',
    { code: 'P2010', meta: { code: 'P2010', driverAdapterError: { cause: { originalCode: '55P03' } } } },
    '55P03',
  ],
  ['not the code of Node', said('EPIPE'), undefined],
  ['not what is shorter or longer', said('4000'), undefined],
  ['not what is longer', said('400011'), undefined],
  ['not a code in lower case', said('40p01'), undefined],
  ['not a number', { code: 40_001 }, undefined],
  ['none in null', null, undefined],
  ['none in a text', '40001', undefined],
])('the SQLSTATE is found: %s', (_, error, state) => expect(sqlStateOf(error)).toBe(state))

test('causes that form a circle end', () => {
  const circle: { cause?: unknown } = {}
  circle.cause = circle
  expect(sqlStateOf(circle)).toBeUndefined()
})

test('a conflict may run again, and a full lock table may pass', () => {
  for (const state of ['40001', '40P01']) {
    expect(isConflict(said(state))).toBe(true)
    expect(isPassing(said(state))).toBe(true)
  }
  expect(isConflict(said('53200'))).toBe(false)
  expect(isPassing(said('53200'))).toBe(true)
  for (const state of ['40002', '23505', '57P01']) expect(isPassing(said(state))).toBe(false)
})

test('on the straight way a key that others committed in between may pass, too', () => {
  for (const state of ['40001', '53200', '23505']) expect(isPassingStraight(said(state))).toBe(true)
  for (const state of ['40002', '23503', '57P01']) expect(isPassingStraight(said(state))).toBe(false)
})

test('a session that does not know a prepared statement, or knows it already, keeps none', () => {
  for (const state of ['26000', '42P05']) expect(isUnprepared(said(state))).toBe(true)
  for (const state of ['42P01', '42883', '40001']) expect(isUnprepared(said(state))).toBe(false)
})

test.each(['40001', '23505', '25P02', '26000', '22003', '42501', '54000', '55006', 'P0001', 'OO001'])(
  '%s at COMMIT: the server says that it rolled back',
  (state) => expect(saysRolledBack(said(state))).toBe(true),
)

test.each(['57P01', '58030', 'XX000', '08006', '53100', '0A000', '14001'])(
  '%s at COMMIT: the server may have committed',
  (state) => expect(saysRolledBack(said(state))).toBe(false),
)

test('a lost connection at COMMIT says nothing', () => {
  expect(saysRolledBack(new Error('Connection terminated'))).toBe(false)
})

const unavailable = { code: 'STORE_UNAVAILABLE', executed: 'no', retryable: true }
const refused = { ...unavailable, retryable: false }

test.each<[error: Error, told: object]>([
  [said('3F000'), { code: 'SCHEMA_MISSING', message: expect.stringContaining('The schema is missing: what the') }],
  [said('42P01'), { code: 'SCHEMA_MISSING', message: expect.stringContaining('The table is missing') }],
  [
    said('42883'),
    { code: 'SCHEMA_MISSING', message: expect.stringContaining('functions of this version are missing') },
  ],
  [said('25P01'), { code: 'INVALID_ARGUMENT', message: expect.stringContaining('BEGIN first') }],
  [said('40001'), { code: 'TRANSACTION_CONFLICT', message: expect.stringContaining('PostgreSQL could not claim a/1') }],
  ...['28P01', '28000', '3D000', '42501'].map((state): [Error, object] => [said(state), refused]),
  [new Error('SASL: client password must be a string'), refused],
  [new Error('self-signed certificate'), refused],
  [said('XX000', 'the certificate table is broken'), unavailable],
  [said('ECONNREFUSED'), unavailable],
])('what is told of %s', (error, told) => {
  expect(storeError(error, 'claim a/1', 'no')).toMatchObject({ ...told, cause: error })
})

test('what nobody knows is said to be unknown, and an error of ours stays as it is', () => {
  expect(storeError(new Error('cut off'), 'settle a/1', 'unknown')).toMatchObject({
    code: 'STORE_UNAVAILABLE',
    executed: 'unknown',
    message: 'PostgreSQL could not settle a/1: cut off. It may have done so all the same: look before you repeat it.',
  })
  const ours = new OnceError('STORE_UNSAFE', { message: 'fsync is off' })
  expect(storeError(ours, 'claim a/1', 'unknown')).toBe(ours)
})

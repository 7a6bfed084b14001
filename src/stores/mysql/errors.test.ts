// The errors of MySQL, MariaDB and their clients, and what they say about the effect.

import { expect, test } from 'vitest'
import { OnceError } from '../../core/errors.ts'
import { isConflict, isSavepointMissing, saysRolledBack, storeError } from './errors.ts'

const said = (errno: number, sqlState = 'HY000', message = 'what the server says'): Error =>
  Object.assign(new Error(message), { errno, sqlState })

test.each([1205, 1213, 1020, 3101])('%i is a conflict with others: all of it may run again', (errno) => {
  expect(isConflict(said(errno))).toBe(true)
  expect(isConflict(new Error('failed query', { cause: said(errno) }))).toBe(true)
  expect(saysRolledBack(said(errno))).toBe(true)
  expect(storeError(said(errno), 'commit a/1', 'unknown')).toMatchObject({ code: 'TRANSACTION_CONFLICT' })
})

test.each(['22001', '23000', '40001', '42000'])('%s at COMMIT: the server says that it rolled back', (state) => {
  expect(saysRolledBack(said(1, state))).toBe(true)
})

test.each(['HY000', '08S01', '70100', '01000'])('%s at COMMIT: the server may have committed', (state) => {
  expect(saysRolledBack(said(1, state))).toBe(false)
})

test('a lost connection at COMMIT says nothing, and is no conflict', () => {
  const lost = Object.assign(new Error('read ECONNRESET'), { errno: -104 })
  expect(saysRolledBack(lost)).toBe(false)
  expect(isConflict(lost)).toBe(false)
})

test('a savepoint that is not there is told from a procedure that is not there', () => {
  const savepoint = said(1305, '42000', 'SAVEPOINT onceonly does not exist')
  expect(isSavepointMissing(savepoint)).toBe(true)
  expect(isSavepointMissing(said(1305, '42000', 'PROCEDURE shop.claim does not exist'))).toBe(false)
  expect(isSavepointMissing(said(1306, '42000', 'SAVEPOINT'))).toBe(false)
  expect(isSavepointMissing(new Error('SAVEPOINT'))).toBe(false)
  expect(storeError(savepoint, 'claim a/1', 'no')).toMatchObject({
    code: 'INVALID_ARGUMENT',
    message: expect.stringContaining('MySQL could not claim a/1: expected a connection inside a transaction'),
  })
})

const unavailable = { code: 'STORE_UNAVAILABLE', executed: 'no', retryable: true }
const refused = { ...unavailable, retryable: false }

test.each<[error: Error, told: object]>([
  [
    said(1049),
    { code: 'SCHEMA_MISSING', message: expect.stringContaining('The database is missing: what the server') },
  ],
  [said(1146), { code: 'SCHEMA_MISSING', message: expect.stringContaining('The table is missing') }],
  [said(1305), { code: 'SCHEMA_MISSING', message: expect.stringContaining('procedures of this version are missing') }],
  [said(1046), { code: 'INVALID_ARGUMENT', message: expect.stringContaining('a pool with a database') }],
  ...[1045, 1130, 1044, 1142, 1143, 1370, 1698, 3118, 4151, 1820, 1862, 3159].map((errno): [Error, object] => [
    said(errno),
    refused,
  ]),
  [new Error('self-signed certificate'), refused],
  [said(1105, 'HY000', 'the certificate table is broken'), unavailable],
  [new Error('connect ECONNREFUSED'), unavailable],
])('what is told of %s', (error, told) => {
  expect(storeError(error, 'claim a/1', 'no')).toMatchObject({ ...told, cause: error })
})

test('what nobody knows is said to be unknown, and an error of ours stays as it is', () => {
  expect(storeError(new Error('cut off'), 'settle a/1', 'unknown')).toMatchObject({ executed: 'unknown' })
  const ours = new OnceError('STORE_UNSAFE', { message: 'not durable' })
  expect(storeError(ours, 'claim a/1', 'unknown')).toBe(ours)
})

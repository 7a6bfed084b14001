import { expect, test } from 'vitest'
import { emptyHistory } from '../../src/testing/history-checker.ts'
import type { StoreOperation } from '../../src/testing/history-checker.ts'
import { checkOperations } from './world/operations/checker.ts'
import type { OperationHistory } from './world/operations/checker.ts'

const name = 'shop/operations/checkout\n0'

/** A life that a claim began, in which nothing ran, and that a worker has thrown away. */
function discardedLife(input: Uint8Array | undefined): OperationHistory {
  const request = {
    token: 'one',
    fingerprint: 'this',
    leaseMs: 600,
    retention: { keepMs: 142, tombstoneMs: 600 },
    version: 1,
    onTakeover: 'run',
    onExpired: 'refuse',
    ...(input && { input }),
  } as const
  const claim = { key: { scope: 'shop/operations/checkout', id: '0' }, token: 'one', attempt: 1, fence: 7 }
  const claimed: StoreOperation = {
    process: 'process 1',
    key: name,
    sentAtMs: 1,
    call: 'claim',
    request,
    answer: { is: 'granted', how: 'fresh', claim },
  }
  return {
    store: { ...emptyHistory(), operations: [claimed] },
    operations: [{ key: name, life: 1, lifeFence: 7, steps: [], isDiscarded: true }],
    invocations: [],
    ledger: [],
    records: [],
    answers: [],
  }
}

test('a life that no caller asked for may be thrown away, as nothing ran in it', () => {
  expect(checkOperations(discardedLife(undefined))).toEqual([])
})

test('a life that a caller asked for may not be thrown away', () => {
  expect(checkOperations(discardedLife(Buffer.from('1')))).toEqual([
    { assertion: 'operation-ends', key: name, message: 'it was thrown away, and a caller had asked' },
  ])
})

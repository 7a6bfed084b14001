// `once.transaction` on a store that collects what an effect writes, and commits it with the outcome. DynamoDB is one. Here it is the
// memory store with a list of what was committed.

import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { describe, expect, test, vi } from 'vitest'
import { memoryData, memoryStore } from '../../stores/memory.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import { FinalError, InDoubtError, NotBegunError, OnceError } from '../errors.ts'
import { createOnce } from '../once.ts'
import type { Once } from '../once.ts'
import type { OnceOptions } from '../settings.ts'
import type { Collecting, Inspectable, Store } from '../store.ts'
import { hasTransactions } from './transaction.ts'

interface Tx {
  put(row: string): void
}

type CollectingStore = Store & Inspectable & Collecting<Tx, readonly string[]>

function world(settle: (rows: readonly string[], outcome: Uint8Array) => void = () => {}) {
  const clock = manualClock()
  const data = memoryData(clock)
  const memory = memoryStore({ data })
  const committed: string[] = []
  const store: CollectingStore = {
    ...memory,
    name: 'collecting',
    collect: () => {
      const rows: string[] = []
      return { tx: { put: (row) => void rows.push(row) }, end: () => [...rows] }
    },
    async settleWith(claim, outcome, retention, rows) {
      settle(rows, outcome)
      const fenced = await memory.settle(claim, outcome, retention)
      if (fenced === 'done') committed.push(...rows)
      return fenced
    },
  }
  const once = (options: Partial<OnceOptions<CollectingStore>> = {}): Once<CollectingStore> =>
    createOnce({ store, scope: 'shop', clock, sweepEveryMs: false, leaseMs: 1_000, waitMs: 0, ...options })
  return { clock, data, memory, committed, once, store }
}

const thrown = (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => expect.fail('expected an error'),
    (error: unknown) => error,
  )

describe('a transaction that collects', () => {
  test('commits what was written with the outcome, and a retry returns that', async () => {
    const { once, committed, store } = world()
    const effect = vi.fn((tx: Tx, op: { attempt: number }) => {
      tx.put('order')
      return { attempt: op.attempt }
    })
    expect(hasTransactions(store)).toBe(true)
    expect(await once().transaction('1', effect)).toEqual({ value: { attempt: 1 }, replayed: false, attempt: 1 })
    expect(await once().transaction('1', effect)).toMatchObject({ value: { attempt: 1 }, replayed: true })
    expect(effect).toHaveBeenCalledTimes(1)
    expect(committed).toEqual(['order'])
  })

  test.each([
    ['an error', () => new Error('down')],
    ['NotBegunError', () => new NotBegunError('invalid')],
  ])('leaves no trace of an effect that threw: %s', async (_, error) => {
    const { once, committed, data } = world()
    const failure = error()
    const failing = (tx: Tx): Promise<never> => (tx.put('order'), Promise.reject(failure))
    expect(await thrown(once().transaction('1', failing))).toBe(failure)
    expect(data.entries.size).toBe(0)
    expect(await once().transaction('1', () => 'ok')).toMatchObject({ attempt: 1 })
    expect(committed).toEqual([])
  })

  test('leaves what is in doubt to its lease', async () => {
    const { once, clock } = world()
    await thrown(once().transaction('1', () => Promise.reject(new InDoubtError('no answer'))))
    expect(await thrown(once().transaction('1', () => 1))).toMatchObject({ code: 'IN_FLIGHT' })
    await clock.advance(1_000)
    expect(await once().transaction('1', () => 1)).toMatchObject({ attempt: 2 })
  })

  test('stores a final failure without what was written', async () => {
    const { once, committed } = world()
    const declined = new FinalError('declined')
    const failing = (tx: Tx): Promise<never> => (tx.put('order'), Promise.reject(declined))
    expect(await thrown(once().transaction('1', failing))).toBe(declined)
    expect(await thrown(once().transaction('1', () => 1))).toMatchObject({ name: 'FinalError', message: 'declined' })
    expect(committed).toEqual([])
  })

  test.each<[what: string, data: unknown, settles: boolean]>([
    ['has no JSON', 5n, true],
    ['is too large for the store', 'x'.repeat(200), false],
  ])('forgets the key of a final failure that cannot be stored: it %s', async (_, failed, settles) => {
    const { once, data, memory } = world()
    const small = vi.fn<Store['settle']>(async (claim, outcome, retention) => {
      if (outcome.length <= 100) return memory.settle(claim, outcome, retention)
      throw new OnceError('OUTCOME_NOT_STORED', { message: 'too large' })
    })
    const at = world()
    const store = { ...at.store, settle: small, release: memory.release, claim: memory.claim }
    const error = await thrown(
      once({ store }).transaction('1', () => Promise.reject(new FinalError('declined', { data: failed }))),
    )
    expect(error).toMatchObject({ code: 'OUTCOME_NOT_STORED', executed: 'no' })
    expect(small).toHaveBeenCalledTimes(settles ? 0 : 1)
    expect(data.entries.size).toBe(0)
  })

  test('that is too large for the store with its value is kept as not stored, with what was written', async () => {
    const { once, committed } = world((_rows, outcome) => {
      if (outcome.length > 100) throw new OnceError('OUTCOME_NOT_STORED', { message: 'too large' })
    })
    const large = (tx: Tx): string => (tx.put('order'), 'x'.repeat(200))
    expect(await thrown(once().transaction('1', large))).toMatchObject({ code: 'OUTCOME_NOT_STORED', executed: 'yes' })
    expect(await thrown(once().transaction('1', () => 1))).toMatchObject({ code: 'OUTCOME_NOT_STORED' })
    expect(committed).toEqual(['order'])
  })

  test('whose condition does not hold frees its key at once, and says that nothing was written', async () => {
    let holds = false
    const { once, data, committed, clock } = world(() => {
      if (!holds) throw new OnceError('COMMIT_REFUSED', { message: 'the stock is empty' })
    })
    const effect = (tx: Tx): string => (tx.put('order'), 'ok')
    const heard: unknown[] = []
    const listener = (event: unknown): void => void heard.push(event)
    subscribe('onceonly:released', listener)
    await clock.advance(500)
    const refused = await thrown(once().transaction('1', effect))
    unsubscribe('onceonly:released', listener)
    expect(refused).toMatchObject({ code: 'COMMIT_REFUSED', executed: 'no', message: 'the stock is empty' })
    expect(heard).toMatchObject([{ attempt: 1, how: 'forget', durationMs: 0 }])
    expect(data.entries.size).toBe(0)
    holds = true
    expect(await once().transaction('1', effect)).toMatchObject({ value: 'ok', attempt: 1 })
    expect(committed).toEqual(['order'])
  })

  test('whose condition does not hold and whose key is not its own any more does not say that nothing was written', async () => {
    const { once, store } = world(() => {
      throw new OnceError('COMMIT_REFUSED', { message: 'the stock is empty' })
    })
    const refused = once({ store: { ...store, release: async () => 'lost' as const } }).transaction('1', () => 'ok')
    expect(await thrown(refused)).toMatchObject({
      code: 'CLAIM_LOST',
      executed: 'unknown',
      cause: { code: 'COMMIT_REFUSED' },
    })
  })

  test('whose condition does not hold is refused also when its key cannot be freed', async () => {
    const { once, store, clock } = world(() => {
      throw new OnceError('COMMIT_REFUSED', { message: 'the stock is empty' })
    })
    const deaf = { ...store, release: () => Promise.reject(new Error('ECONNRESET')) }
    const refused = thrown(once({ store: deaf, storeTimeoutMs: 100 }).transaction('1', () => 'ok'))
    await clock.advance(2_000)
    expect(await refused).toMatchObject({ code: 'COMMIT_REFUSED' })
  })

  test('that hangs past its deadline has written nothing, and its key is free', async () => {
    const { once, clock, committed } = world()
    let late: Tx | undefined
    const hung = thrown(
      once({ attemptMs: 5_000 }).transaction('1', (tx) => {
        late = tx
        return new Promise<string>(() => {})
      }),
    )
    await clock.advance(6_000)
    expect(await hung).toMatchObject({
      code: 'DEADLINE_PASSED',
      executed: 'no',
      cause: { code: 'DEADLINE_PASSED', executed: 'unknown' },
    })
    late!.put('order')
    expect(await once().transaction('1', () => 'ok')).toMatchObject({ attempt: 1 })
    expect(committed).toEqual([])
  })

  test('that ends because its signal aborted has written nothing, and one that throws an error of its own throws it', async () => {
    const { once, clock } = world()
    const obedient = thrown(
      once({ attemptMs: 5_000 }).transaction(
        '1',
        (_tx, op) =>
          new Promise((_, reject) => op.signal.addEventListener('abort', () => reject(op.signal.reason as Error))),
      ),
    )
    await clock.advance(5_000)
    expect(await obedient).toMatchObject({ code: 'DEADLINE_PASSED', executed: 'no' })
    const own = new OnceError('MISMATCH', { message: 'mine' })
    expect(await thrown(once().transaction('2', () => Promise.reject(own)))).toBe(own)
  })

  test('cannot be joined, and the error says what to use instead', async () => {
    const { once, store } = world()
    const within = once() as unknown as Once<Store> as unknown as {
      within(tx: object): { run(id: string, effect: () => unknown): Promise<unknown> }
    }
    expect(await thrown(within.within({}).run('1', () => 1))).toMatchObject({
      code: 'UNSUPPORTED',
      message: expect.stringContaining('the collecting store cannot join a transaction. Use transaction()'),
    })
    const { settleWith: _settleWith, ...half } = store
    expect(hasTransactions(half as Store)).toBe(false)
    const { collect: _collect, ...other } = store
    expect(hasTransactions(other as Store)).toBe(false)
  })
})

// What a step in a transaction asks of its store, and when. The store is the memory store with transactions that only write down what
// they are asked.

import { describe, expect, test, vi } from 'vitest'
import { codeOf, openShop, thrown } from '../../../test/operations/shop.ts'
import { memoryStore } from '../../stores/memory.ts'
import type { MemoryStore } from '../../stores/memory.ts'
import type { Random } from '../clock.ts'
import { FinalError, OnceError } from '../errors.ts'
import type { Once } from '../once.ts'
import type { OnceOptions } from '../settings.ts'
import type { BegunStep, TransactionalSteps } from '../store.ts'
import type { OperationOp } from './step.ts'

interface Tx {
  readonly name: string
}
type ShopStore = MemoryStore & TransactionalSteps<Tx> & { isConflict(error: unknown): boolean }

/** Always the longest pause, so that times can be told in advance. */
const steady: Random = {
  uuid: () => crypto.randomUUID(),
  fraction: () => 1,
  bytes: (count) => crypto.getRandomValues(new Uint8Array(count)),
}

interface Changes {
  begun?(begun: BegunStep<Tx>, log: string[]): BegunStep<Tx>
  begin?(begin: ShopStore['beginStep']): ShopStore['beginStep']
}

function world(changes: Changes = {}) {
  const shop = openShop()
  const memory = memoryStore({ data: shop.data })
  const log: string[] = []
  const beginStep: ShopStore['beginStep'] = async (claim) => {
    log.push('begin')
    const begun: BegunStep<Tx> = {
      tx: { name: 'tx' },
      commit: async (change) => (log.push('commit'), memory.advance(claim, change)),
      rollback: async () => void log.push('rollback'),
      abandon: async () => void log.push('abandon'),
    }
    return changes.begun?.(begun, log) ?? begun
  }
  const store: ShopStore = {
    ...memory,
    beginStep: changes.begin?.(beginStep) ?? beginStep,
    isConflict: (error) => error instanceof OnceError && error.code === 'TRANSACTION_CONFLICT',
  }
  const once = (options: Partial<OnceOptions> = {}): Once<MemoryStore, 'codec'> =>
    shop.process({ store, sweepEveryMs: false, random: steady, waitMs: 0, ...options })
  const define = (body: (op: OperationOp<Tx, 'codec'>) => unknown, options: Partial<OnceOptions> = {}) =>
    once(options).operation('checkout', {}, body as never)
  return { ...shop, log, store, once, define }
}

const conflict = (): OnceError => new OnceError('TRANSACTION_CONFLICT', { message: 'deadlock' })
const hung = (): Promise<never> => new Promise<never>(() => {})

describe('a step in a transaction', () => {
  test('is committed with its record once, and a later attempt gets its stored result', async () => {
    const { define, log } = world()
    let fails = true
    const seen: unknown[] = []
    const checkout = define(async (op) => {
      seen.push(await op.transaction('order', (tx, step) => ({ tx: tx.name, attempt: step.attempt, gone: undefined })))
      if (fails) throw new Error('down')
      return 'done'
    })
    await thrown(checkout.run('1', {}))
    fails = false
    expect((await checkout.run('1', {})).value).toBe('done')
    expect(seen).toEqual([
      { tx: 'tx', attempt: 1 },
      { tx: 'tx', attempt: 1 },
    ])
    expect(log).toEqual(['begin', 'commit'])
    expect(await checkout.status('1')).toMatchObject({ steps: [{ name: 'order', state: 'done', attempt: 1 }] })
  })

  test('that throws is rolled back, nothing of it is recorded, and the next attempt runs it again', async () => {
    const { define, log } = world()
    let fails = true
    const checkout = define((op) => op.transaction('order', () => (fails ? Promise.reject(new Error('down')) : 'ok')))
    expect((await thrown(checkout.run('1', {}))).message).toBe('down')
    expect(await checkout.status('1')).toMatchObject({ steps: [], inDoubt: [] })
    fails = false
    expect((await checkout.run('1', {})).value).toBe('ok')
    expect(log).toEqual(['begin', 'rollback', 'begin', 'commit'])
  })

  test('that loses against others is tried five times with growing pauses', async () => {
    const triedAtMs: number[] = []
    const at = world()
    const checkout = at.define((op) =>
      op.transaction('order', () => {
        triedAtMs.push(at.clock.elapsed())
        throw conflict()
      }),
    )
    const failing = codeOf(checkout.run('1', {}))
    await at.clock.advance(5_000)
    expect(await failing).toBe('TRANSACTION_CONFLICT')
    expect(triedAtMs).toEqual([0, 10, 40, 130, 400])
    expect(at.log.filter((each) => each === 'rollback')).toHaveLength(5)
  })

  test('that fails otherwise, or whose time is over, is not tried again', async () => {
    const at = world()
    const run = vi.fn(() => Promise.reject(new Error('down')))
    await thrown(at.define((op) => op.transaction('order', run)).run('1', {}))
    expect(run).toHaveBeenCalledTimes(1)
    const conflicting = vi.fn(async () => {
      await new Promise<void>((resolve) => void at.clock.schedule(resolve, 1_000))
      throw conflict()
    })
    const late = thrown(
      at.define((op) => op.transaction('order', conflicting), { attemptMs: 1_000, leaseMs: 5_000 }).run('2', {}),
    )
    await at.clock.advance(10_000)
    await late
    expect(conflicting).toHaveBeenCalledTimes(1)
  })

  test('whose claim is lost when it begins, or commits, is told so, and nothing is executed', async () => {
    const early = world({ begin: () => async () => undefined })
    const advance = vi.spyOn(early.store, 'advance')
    expect(await thrown(early.define((op) => op.transaction('order', () => 1)).run('1', {}))).toMatchObject({
      code: 'CLAIM_LOST',
      executed: 'no',
    })
    // What is lost is not given back.
    expect(advance).not.toHaveBeenCalled()
    const late = world({ begun: (begun) => ({ ...begun, commit: async () => 'lost' }) })
    const failing = late.define((op) => op.transaction('order', () => 1)).run('1', {})
    expect(await codeOf(failing)).toBe('CLAIM_LOST')
  })

  test('whose commit is not answered in time is unknown, and never committed twice', async () => {
    const at = world({ begun: (begun, log) => ({ ...begun, commit: () => (log.push('commit'), hung()) }) })
    const failing = thrown(at.define((op) => op.transaction('order', () => 1), { storeTimeoutMs: 700 }).run('1', {}))
    await at.clock.advance(60_000)
    expect(await failing).toMatchObject({
      code: 'OUTCOME_UNKNOWN',
      message: expect.stringMatching(
        /The memory store did not confirm .* of shop\/operations\/checkout\/1 within 700 ms/,
      ),
      cause: { message: 'no answer within 700 ms' },
    })
    expect(at.log).toEqual(['begin', 'commit', 'rollback'])
  })

  test('whose commit the store refuses fails with what the store says', async () => {
    const refused = new OnceError('OUTCOME_NOT_STORED', { message: 'too large' })
    const at = world({ begun: (begun) => ({ ...begun, commit: () => Promise.reject(refused) }) })
    expect(await thrown(at.define((op) => op.transaction('order', () => 1)).run('1', {}))).toBe(refused)
    expect(at.log).toEqual(['begin', 'rollback'])
  })

  test('that does not roll back is cut off, and one that cannot be cut off hangs nobody', async () => {
    for (const abandon of [() => Promise.resolve(), () => Promise.reject(new Error('gone'))]) {
      const at = world({
        begun: (begun, log) => ({ ...begun, rollback: hung, abandon: () => (log.push('abandon'), abandon()) }),
      })
      const failing = thrown(
        at
          .define((op) => op.transaction('order', () => Promise.reject(new Error('down'))), { storeTimeoutMs: 100 })
          .run('1', {}),
      )
      await at.clock.advance(100)
      expect((await failing).message).toBe('down')
      expect(at.log).toEqual(['begin', 'abandon'])
    }
  })

  test('that begins too late is rolled back when it does, and close waits for that', async () => {
    const reply = Promise.withResolvers<void>()
    const at = world({ begin: (begin) => async (claim) => (await reply.promise, begin(claim)) })
    const once = at.once({ storeTimeoutMs: 100 })
    const failing = thrown(
      once
        .operation('checkout', {}, ((op: OperationOp<Tx>) => op.transaction('order', () => 1)) as never)
        .run('1', {} as never),
    )
    await at.clock.advance(100)
    expect((await failing).message).toContain('no answer within 100 ms')
    expect(at.log).toEqual([])
    reply.resolve()
    await at.clock.advance(0)
    await once.close()
    expect(at.log).toEqual(['begin', 'rollback'])
  })

  test('that is asked with another fingerprint is a MISMATCH, and one that may not begin does not', async () => {
    const { define, log } = world()
    let asked = 1
    const checkout = define(async (op) => {
      await op.transaction('order', { run: () => 1, fingerprint: asked })
      throw new Error('down')
    })
    await thrown(checkout.run('1', {}))
    asked = 2
    expect(await thrown(checkout.run('1', {}))).toMatchObject({
      code: 'MISMATCH',
      executed: 'unknown',
      message: expect.stringContaining('Step "order" of shop/operations/checkout/1'),
    })
    expect(log).toEqual(['begin', 'commit'])
  })

  test('is undone in a transaction of its own, last first, with its result and its keys', async () => {
    const { define, log } = world()
    const told: unknown[] = []
    const keys: string[] = []
    const checkout = define(async (op) => {
      for (const name of ['order', 'invoice']) {
        await op.transaction(name, {
          run: (_tx, { key }) => (keys.push(key), { of: name }),
          undo: (tx, { forward, result, forwardKey, attempt, signal }) =>
            void told.push([tx.name, name, forward, result, forwardKey, attempt, signal.aborted]),
        })
      }
      throw new FinalError('out of stock')
    })
    expect((await thrown(checkout.run('1', {}))).message).toBe('out of stock')
    expect(told).toEqual([
      ['tx', 'invoice', 'done', { of: 'invoice' }, keys[1], 1, false],
      ['tx', 'order', 'done', { of: 'order' }, keys[0], 1, false],
    ])
    expect(log).toEqual(['begin', 'commit', 'begin', 'commit', 'begin', 'commit', 'begin', 'commit'])
    expect((await checkout.status('1'))!.steps.map(({ state }) => state)).toEqual(['undone', 'undone'])
  })

  test('past a pivot in a transaction there is no way back', async () => {
    const { define } = world()
    const undo = vi.fn()
    const checkout = define(async (op) => {
      await op.transaction('order', { run: () => 1, undo })
      await op.transaction('pay', { run: () => 1, pivot: true })
      throw new FinalError('no')
    })
    expect(await codeOf(checkout.run('1', {}))).toBe('OUTCOME_UNKNOWN')
    expect(undo).not.toHaveBeenCalled()
    expect(await checkout.cancel('1', 'enough')).toMatchObject({ state: 'waiting', direction: 'forward' })
  })

  test('is refused by a store that has no transactions', async () => {
    const once = openShop().process({ sweepEveryMs: false })
    const checkout = once.operation('checkout', {}, ((op: OperationOp<Tx>) =>
      op.transaction('order', () => 1)) as never)
    expect(await thrown(checkout.run('1', {} as never))).toMatchObject({
      code: 'UNSUPPORTED',
      message: expect.stringContaining('op.transaction: the memory store has no transactions'),
    })
  })
})

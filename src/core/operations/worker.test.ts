import { describe, expect, test, vi } from 'vitest'
import {
  codeOf,
  define,
  dieIn,
  leaveChargeInDoubt,
  never,
  openShop,
  parkAtCharge,
  thrown,
} from '../../../test/operations/shop.ts'
import type { Body, Shop } from '../../../test/operations/shop.ts'
import { memoryStore } from '../../stores/memory.ts'
import type { MemoryStore } from '../../stores/memory.ts'
import { FinalError } from '../errors.ts'
import type { OnceError } from '../errors.ts'
import { partsOf } from './operation.ts'
import type { DefinedOperation, Operation, OperationOptions } from './operation.ts'
import { fingerprint } from '../fingerprint.ts'
import type { Entry } from '../store.ts'
import { unfinishedKeepMs } from './attempt.ts'

describe('the worker', () => {
  test('a worker finishes what a dead process began, though no client retries', async () => {
    const here = openShop()
    const log: string[] = []
    const body: Body = async (op, input) => {
      await op.step('a', () => void log.push(`a ${JSON.stringify(input)}`))
      await op.step('b', () => void log.push('b'))
      return 'done'
    }
    await dieIn('b', here, body)
    const once = here.process()
    const checkout = define(once, body)
    const recovery = once.recover([checkout], { everyMs: 1_000 })
    await here.clock.advance(700_000)
    await recovery.stop()
    expect(await checkout.status('1')).toMatchObject({ state: 'completed', outcome: { value: 'done' } })
    expect(log).toEqual(['a {"total":5}', 'b'])
  })

  test('a worker that cannot see what it was granted gives it back: a retry need not wait for its lease', async () => {
    const here = openShop()
    const body: Body = (op) => op.step('a', () => 1)
    await dieIn('a', here, body)
    await here.clock.advance(700_000)
    const store = memoryStore({ data: here.data })
    let shown = 0
    const show: MemoryStore['show'] = (key) => (++shown === 2 ? Promise.reject(new Error('down')) : store.show(key))
    const blind: MemoryStore = { ...store, show }
    const once = here.process({ store: blind })
    const recovery = once.recover([define(once, body)], { everyMs: 1_000 })
    for (let second = 0; shown < 2 && second < 60; second++) await here.clock.advance(1_000)
    expect(shown).toBe(2)
    expect(await define(here.process({ waitMs: 0 }), body).run('1', { total: 5 })).toMatchObject({ value: 1 })
    await recovery.stop()
  })

  test('a failing operation is tried again with growing pauses, and given up after its attempts', async () => {
    const { process, clock } = openShop()
    const once = process()
    const run = vi.fn(() => {
      throw new Error('down')
    })
    const checkout = define(once, (op) => op.step('a', run), { attempts: 4 })
    const recovery = once.recover([checkout])
    await thrown(checkout.run('1', {}))
    await clock.advance(60_000)
    expect(run).toHaveBeenCalledTimes(4)
    await recovery.stop()
    expect(await checkout.status('1')).toMatchObject({ state: 'failed' })
  })

  test('an operation that kills its process each time is given up, too', async () => {
    const here = openShop()
    const body: Body = (op) => op.step('poison', { run: () => never, undo: () => {} })
    for (let crash = 0; crash < 3; crash++) {
      void define(here.process({ attemptMs: 1_000 }), body, { attempts: 3 })
        .run('1', {})
        .catch(() => {})
      await here.clock.advance(120_000)
    }
    const run = vi.fn()
    const last = define(here.process(), (op) => op.step('poison', { run, undo: () => {} }), { attempts: 3 })
    expect(await thrown(last.run('1', {}))).toBeInstanceOf(FinalError)
    expect(run).not.toHaveBeenCalled()
  })

  test('two workers and a retrying client at once are one execution', async () => {
    const here = openShop()
    const ran = vi.fn(() => 'done')
    const body: Body = (op) => op.step('a', ran)
    await dieIn('a', here, body)
    const [one, two] = [here.process(), here.process()]
    const workers = [one.recover([define(one, body)]), two.recover([define(two, body)])]
    const asked = (async () => {
      for (;;) {
        const result = await define(here.process({ waitMs: 60_000 }), body)
          .run('1', { total: 5 })
          .catch(() => undefined)
        if (result) return result
      }
    })()
    await here.clock.advance(900_000)
    expect((await asked).value).toBe('done')
    expect(ran).toHaveBeenCalledTimes(1)
    await Promise.all(workers.map((worker) => worker.stop()))
  })

  test('start returns at once, and the operation goes on; started twice it is one', async () => {
    const { process, clock } = openShop()
    const gate = Promise.withResolvers<void>()
    const run = vi.fn(() => gate.promise)
    const checkout = define(process(), (op) => op.step('a', run))
    expect(await checkout.start('1', {})).toMatchObject({ state: 'running' })
    expect(await checkout.start('1', {})).toMatchObject({ state: 'running' })
    gate.resolve()
    await clock.advance(10)
    expect(await checkout.status('1')).toMatchObject({ state: 'completed' })
    expect(await checkout.start('1', {})).toMatchObject({ state: 'completed' })
    expect(run).toHaveBeenCalledTimes(1)
  })

  test('an operation that is not finished does not expire, and what it came to is kept for keepMs', async () => {
    const here = openShop()
    await leaveChargeInDoubt(here, parkAtCharge)
    const once = here.process({ keepMs: 60_000, tombstoneMs: 60_000 })
    const checkout = define(once, parkAtCharge)
    expect(await codeOf(checkout.run('1', { total: 5 }))).toBe('PARKED')
    await here.clock.advance(30 * 86_400_000)
    expect(await checkout.status('1')).toMatchObject({ state: 'parked', inDoubt: ['charge'] })
    await checkout.resume('1', { decide: { charge: 'not-found' } })
    expect((await checkout.run('1', { total: 5 })).value).toBe('ran')
    await here.clock.advance(61_000)
    expect(await codeOf(checkout.run('1', { total: 5 }))).toBe('EXPIRED')
  })

  test('a ledger that cannot be read for a moment does not hold the key for a lease', async () => {
    const { process, clock, data } = openShop()
    const store = memoryStore({ data })
    let isDown = false
    const ledger: typeof store.ledger = async (key) => {
      if (isDown) throw new Error('down')
      return store.ledger(key)
    }
    let fail = true
    const checkout = define(process({ store: Object.assign({}, store, { ledger }) }), () => {
      if (fail) throw new Error('not yet')
      return 'done'
    })
    await thrown(checkout.run('1', {}))
    ;[isDown, fail] = [true, false]
    expect(await codeOf(checkout.run('1', {}))).toBe('STORE_UNAVAILABLE')
    isDown = false
    await clock.advance(10)
    expect((await checkout.run('1', {})).value).toBe('done')
  })

  test('an input that cannot be read parks the operation, so that workers do not come back to it for ever', async () => {
    const here = openShop()
    await leaveChargeInDoubt(here, parkAtCharge)
    const { entries } = here.data
    for (const [name, entry] of entries) entries.set(name, { ...entry, input: Buffer.from('garbled') })
    const once = here.process()
    const checkout = define(once, parkAtCharge)
    const recovery = once.recover([checkout])
    await here.clock.advance(60_000)
    await recovery.stop()
    expect(await checkout.status('1')).toMatchObject({ state: 'parked', attempt: 2 })
    expect(await codeOf(checkout.run('1', { total: 5 }))).toBe('PARKED')
  })

  test('a worker with one hand takes operations in turns: a flood of one does not starve another', async () => {
    const here = openShop()
    const once = here.process()
    const done: string[] = []
    const operations = ['flood', 'other'].map((name) =>
      once.operation(name, { backoff: { firstMs: 1, maxMs: 1 } }, (op) => {
        if (op.attempt === 1) throw new Error('later')
        done.push(name)
      }),
    )
    for (let n = 0; n < 20; n++) await thrown(operations[0]!.run(`${n}`, {}))
    await thrown(operations[1]!.run('1', {}))
    await here.clock.advance(100)
    const recovery = once.recover(operations, { concurrency: 1 })
    await here.clock.advance(5_000)
    await recovery.stop()
    expect(done).toHaveLength(21)
    expect(done.indexOf('other')).toBeLessThan(3)
  })

  test.each([
    ['an object without text', Object.create(null)],
    ['an object whose text throws', { toString: () => expect.fail('no text') }],
    ['an error whose message is none', Object.assign(new Error('x'), { message: { is: 'an object' } })],
    ['a symbol', Symbol('thrown')],
    ['nothing', undefined],
  ])('an operation that throws %s fails, is counted and is given up', async (_what, given) => {
    const { process, clock } = openShop()
    const undone = vi.fn()
    const body: Body = async (op) => {
      await op.step('a', { run: () => 1, undo: undone })
      throw given
    }
    const checkout = define(process(), body, { attempts: 2, backoff: { firstMs: 1 } })
    await checkout.run('1', {}).catch(() => {})
    expect(await checkout.status('1')).toMatchObject({ state: 'waiting', failures: 1, lastError: expect.any(String) })
    await clock.advance(1_000)
    expect(await thrown(checkout.run('1', {}))).toBeInstanceOf(FinalError)
    expect(undone).toHaveBeenCalledTimes(1)
  })
})

describe('what no caller has asked for', () => {
  interface Late {
    readonly here: Shop
    readonly once: ReturnType<ReturnType<typeof openShop>['process']>
    readonly checkout: ReturnType<typeof define>
    /** How often the step ran. */
    readonly charge: ReturnType<typeof vi.fn>
    /** From now on a release is not carried out. */
    breakRelease(isBroken: boolean): void
  }

  /** What happens after the operation has expired, and before the process that looked hears what it has seen. */
  type Meanwhile = (here: Shop, store: MemoryStore, seen: Entry) => Promise<void>

  /** A worker's claim that the network delivers late: it brings no input. Its lease ends, and no process has heard of it. */
  const beginUnasked: Meanwhile = async (here, store, { key, fingerprint, version }) => {
    const retention = { keepMs: unfinishedKeepMs, tombstoneMs: 0 }
    const request = { fingerprint, version, retention, leaseMs: 1_000, onTakeover: 'run', onExpired: 'refuse' } as const
    expect(await store.enlist(key, { ...request, token: 'late' })).toMatchObject({ is: 'granted', how: 'fresh' })
    await here.clock.advance(2_000)
  }

  /** An operation that failed once. The process that looks at it next is so late that it has ended elsewhere and has expired. */
  async function expiresAfterShow(options: OperationOptions, meanwhile?: Meanwhile): Promise<Late> {
    const here = openShop()
    const charge = vi.fn(() => {
      if (charge.mock.calls.length === 1) throw new Error('down')
      return 'charged'
    })
    const body: Body = (op) => op.step('charge', charge)
    const given = { ...options, backoff: { firstMs: 1, maxMs: 1 } }
    const elsewhere = define(here.process(), body, given)
    await thrown(elsewhere.run('1', {}))
    await here.clock.advance(10)
    const store = memoryStore({ data: here.data })
    let isFirst = true
    let isBroken = false
    const late: Partial<typeof store> = {
      async show(key) {
        const entry = await store.show(key)
        if (isFirst) {
          isFirst = false
          await elsewhere.run('1', {})
          await here.clock.advance(2_000)
          if (entry) await meanwhile?.(here, store, entry)
        }
        return entry
      },
      async release(claim, how) {
        if (isBroken) throw new Error('the process died')
        return store.release(claim, how)
      },
    }
    const once = here.process({ store: { ...store, ...late } as typeof store, storeTimeoutMs: 60_000 })
    return { here, once, checkout: define(once, body, given), charge, breakRelease: (is) => (isBroken = is) }
  }

  async function leftOver({ here }: Late): Promise<number> {
    await here.clock.advance(7_200_000)
    await memoryStore({ data: here.data }).sweep({ limit: 100 })
    return here.data.entries.size + here.data.operations.size
  }

  const unseen: Omit<Entry, 'key' | 'fingerprint'> = {
    state: 'open',
    attempt: 1,
    fence: 1,
    version: 1,
    firstClaimedAtMs: 0,
    leaseUntilMs: 0,
    expiresAtMs: 0,
    forgottenAtMs: 0,
  }

  const expired = [
    ['a tombstone is left, and onExpired is run', { keepMs: 1_000, tombstoneMs: 3_600_000, onExpired: 'run' }],
    ['nothing is left', { keepMs: 1_000, tombstoneMs: 0 }],
  ] as const

  test.each(expired)('a worker begins no operation that has expired since it looked: %s', async (_what, options) => {
    const late = await expiresAfterShow(options)
    const worker = late.once.recover([late.checkout], { everyMs: 1_000 })
    await late.here.clock.advance(700_000)
    expect(late.charge).toHaveBeenCalledTimes(2)
    expect(await leftOver(late)).toBe(0)
    await worker.stop()
  })

  test.each(expired)('resume begins no operation that has expired since it looked: %s', async (_what, options) => {
    const late = await expiresAfterShow(options)
    const parts = partsOf(late.checkout as Operation<never, unknown> as DefinedOperation)
    // Looked at before any worker comes, which would see to what had begun by mistake.
    const resumed = await parts.resumed('1', {}).catch((error: Error) => (error as OnceError).code)
    expect(resumed).toBe(options.tombstoneMs > 0 ? 'EXPIRED' : false)
    const entry = await parts.store.show({ scope: late.checkout.scope, id: '1' })
    expect(entry?.state).toBe(options.tombstoneMs > 0 ? 'tombstone' : undefined)
    const worker = late.once.recover([late.checkout], { everyMs: 1_000 })
    await late.here.clock.advance(700_000)
    expect(late.charge).toHaveBeenCalledTimes(2)
    expect(await leftOver(late)).toBe(0)
    await worker.stop()
  })

  test('a worker that has seen one life of an operation does not run another one that no caller asked for', async () => {
    const late = await expiresAfterShow({ keepMs: 1_000, tombstoneMs: 0 }, beginUnasked)
    const worker = late.once.recover([late.checkout], { everyMs: 1_000 })
    await late.here.clock.advance(700_000)
    expect(late.charge).toHaveBeenCalledTimes(2)
    expect(await leftOver(late)).toBe(0)
    await worker.stop()
  })

  test('a person who has seen one life of an operation does not resume another one that no caller asked for', async () => {
    const late = await expiresAfterShow({ keepMs: 1_000, tombstoneMs: 0 }, beginUnasked)
    const parts = partsOf(late.checkout as Operation<never, unknown> as DefinedOperation)
    expect(await parts.resumed('1', {})).toBe(false)
    expect(await parts.store.show({ scope: late.checkout.scope, id: '1' })).toBe(undefined)
    expect(await leftOver(late)).toBe(0)
  })

  test('what no caller asked for is gone as soon as a worker has seen it: a caller who asks then is given a first run', async () => {
    const late = await expiresAfterShow({ keepMs: 3_600_000, tombstoneMs: 3_600_000 })
    const key = { scope: late.checkout.scope, id: '2' }
    await beginUnasked(late.here, memoryStore({ data: late.here.data }), {
      ...unseen,
      key,
      fingerprint: fingerprint({}),
    })
    expect(await late.checkout.run('1', {})).toMatchObject({ value: 'charged' })
    const worker = late.once.recover([late.checkout], { everyMs: 1_000 })
    await late.here.clock.advance(20_000)
    await worker.stop()
    expect(await late.checkout.status('2')).toBe(undefined)
    expect(await late.checkout.run('2', {})).toMatchObject({ attempt: 1, replayed: false })
  })

  test('a late duplicate of the claim that ends what no caller asked for leaves nothing either', async () => {
    const here = openShop()
    const store = memoryStore({ data: here.data })
    const charge = vi.fn()
    const key = { scope: define(here.process(), charge).scope, id: '1' }
    await beginUnasked(here, store, { ...unseen, key, fingerprint: fingerprint({}) })
    let again: (() => Promise<unknown>) | undefined
    const kept =
      (ask: MemoryStore['enlist']): MemoryStore['enlist'] =>
      (...given) => {
        again ??= () => ask(...given)
        return ask(...given)
      }
    const twice = Object.assign({}, store, { claim: kept(store.claim), enlist: kept(store.enlist) })
    const once = here.process({ store: twice })
    const worker = once.recover([define(once, charge)], { everyMs: 1_000 })
    await here.clock.advance(20_000)
    expect(await again!()).toMatchObject({ is: 'granted', how: 'fresh' })
    await here.clock.advance(100_000)
    await worker.stop()
    await store.sweep({ limit: 100 })
    expect([here.data.entries.size, here.data.operations.size]).toEqual([0, 0])
    expect(charge).not.toHaveBeenCalled()
  })

  test('a worker that comes to throw away what no caller asked for leaves it when a caller has asked since', async () => {
    const here = openShop()
    const store = memoryStore({ data: here.data })
    let isDown = true
    const completed = vi.fn()
    const body: Body = (op) => op.step('charge', () => (isDown ? expect.fail('down') : completed()))
    const options = { keepMs: 1_000, tombstoneMs: 0, backoff: { firstMs: 60_000, maxMs: 60_000 } }
    const elsewhere = define(here.process(), body, options)
    await beginUnasked(here, store, {
      ...unseen,
      key: { scope: elsewhere.scope, id: '1' },
      fingerprint: fingerprint({}),
    })
    let isFirst = true
    const show: MemoryStore['show'] = async (key) => {
      const entry = await store.show(key)
      if (isFirst) {
        isFirst = false
        await thrown(elsewhere.run('1', {}))
      }
      return entry
    }
    const once = here.process({ store: Object.assign({}, store, { show }), storeTimeoutMs: 60_000 })
    const checkout = define(once, body, options)
    const worker = once.recover([checkout], { everyMs: 1_000 })
    await here.clock.advance(30_000)
    expect(await checkout.status('1')).toMatchObject({ state: 'waiting' })
    isDown = false
    await here.clock.advance(200_000)
    expect(completed).toHaveBeenCalledTimes(1)
    await worker.stop()
  })

  test('a worker that dies before it has forgotten what it began by mistake leaves nothing that another would run', async () => {
    const late = await expiresAfterShow({ keepMs: 1_000, tombstoneMs: 0 })
    late.breakRelease(true)
    const worker = late.once.recover([late.checkout], { everyMs: 1_000 })
    await late.here.clock.advance(5_000)
    expect(late.here.data.entries.size).toBe(1)
    // A person could not resume it: it must not be shown as parked.
    expect(await late.checkout.status('1')).toBe(undefined)
    late.breakRelease(false)
    await late.here.clock.advance(700_000)
    expect(late.charge).toHaveBeenCalledTimes(2)
    expect(await leftOver(late)).toBe(0)
    await worker.stop()
  })

  test('a caller who asks again for what a dead worker began by mistake is given a first run of it', async () => {
    const late = await expiresAfterShow({ keepMs: 1_000, tombstoneMs: 0 })
    late.breakRelease(true)
    const worker = late.once.recover([late.checkout], { everyMs: 1_000 })
    await late.here.clock.advance(5_000)
    await worker.stop()
    await late.here.clock.advance(60_000)
    expect(await late.checkout.run('1', {})).toMatchObject({ value: 'charged', replayed: false })
    expect(late.charge).toHaveBeenCalledTimes(3)
  })

  test('the status of an operation that was forgotten after the first look is none', async () => {
    const here = openShop()
    await leaveChargeInDoubt(here, parkAtCharge)
    const store = memoryStore({ data: here.data })
    const show: typeof store.show = async (key) => {
      const entry = await store.show(key)
      await store.mend(key, 'forget', 'by plan')
      return entry
    }
    const checkout = define(here.process({ store: Object.assign({}, store, { show }) }), parkAtCharge)
    expect(await checkout.status('1')).toBe(undefined)
  })
})

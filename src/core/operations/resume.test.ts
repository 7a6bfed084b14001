// What a worker and a person come to, when what they looked at has changed by the time they ask for it.

import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { describe, expect, test, vi } from 'vitest'
import { codeOf, define, leaveChargeInDoubt, openShop, parkAtCharge, thrown } from '../../../test/operations/shop.ts'
import type { Body, Shop } from '../../../test/operations/shop.ts'
import { memoryStore } from '../../stores/memory.ts'
import type { MemoryStore } from '../../stores/memory.ts'
import { FinalError, OnceError } from '../errors.ts'
import { key } from '../key.ts'
import { partsOf } from './operation.ts'
import type { DefinedOperation } from './operation.ts'

const subject = key('shop/operations/checkout', '1')

/** A process whose store is another one in some of its methods. */
function processWith(here: Shop, change: (store: MemoryStore) => Partial<MemoryStore>) {
  const store = memoryStore({ data: here.data })
  return here.process({ store: { ...store, ...change(store) }, sweepEveryMs: false })
}

async function failedOnce(): Promise<{ here: Shop; body: Body; run: ReturnType<typeof vi.fn> }> {
  const here = openShop()
  const run = vi.fn(() => {
    if (run.mock.calls.length === 1) throw new Error('down')
    return 'charged'
  })
  const body: Body = (op) => op.step('charge', run)
  await thrown(define(here.process(), body).run('1', {}))
  return { here, body, run }
}

const recover = (operation: unknown): Promise<string> => partsOf(operation as DefinedOperation).recover(subject)

describe('one attempt without a caller', () => {
  test('goes on with what a caller asked for, and finds what has ended over', async () => {
    const { here, body, run } = await failedOnce()
    const checkout = define(here.process(), body)
    expect(await recover(checkout)).toBe('recovered')
    expect(run).toHaveBeenCalledTimes(2)
    expect(await recover(checkout)).toBe('over')
    expect(await partsOf(checkout as DefinedOperation).recover(key(subject.scope, 'none'))).toBe('over')
    await here.clock.advance(10 * 24 * 3_600_000)
    expect(await recover(checkout)).toBe('over')
    expect(run).toHaveBeenCalledTimes(2)
  })

  test('is over where the operation was settled, or expired, after the look at it', async () => {
    const settledMeanwhile = await failedOnce()
    const { here, body } = settledMeanwhile
    let shown = 0
    const once = processWith(here, (store) => ({
      async show(of) {
        const entry = await store.show(of)
        if (++shown === 1) await define(here.process(), body).run('1', {})
        return entry
      },
    }))
    expect(await recover(define(once, body))).toBe('over')
    const expired = await failedOnce()
    const late = processWith(expired.here, () => ({ enlist: async () => ({ is: 'expired' }) }))
    expect(await recover(define(late, expired.body))).toBe('over')
    expect(expired.run).toHaveBeenCalledTimes(1)
  })

  test('is busy, without waiting, where another process has it, and newer where only a newer version may', async () => {
    const { here, body } = await failedOnce()
    const gate = Promise.withResolvers<string>()
    const elsewhere = define(here.process(), () => gate.promise).run('1', {})
    await here.clock.advance(0)
    const waiting = define(here.process({ waitMs: 60_000 }), body)
    expect(await recover(waiting)).toBe('busy')
    gate.resolve('done')
    await elsewhere
    const newer = openShop()
    await thrown(define(newer.process(), () => Promise.reject(new Error('down')), { version: 2 }).run('1', {}))
    expect(await recover(define(newer.process(), body, { version: 1 }))).toBe('newer')
    expect(await recover(define(newer.process(), () => 'done', { version: 2 }))).toBe('recovered')
  })

  test('ends as recovered, however the attempt ended', async () => {
    const here = openShop()
    const body: Body = (op) => {
      if (op.attempt === 3) throw new FinalError('no')
      throw new Error('down')
    }
    const checkout = define(here.process(), body)
    await thrown(checkout.run('1', {}))
    expect([await recover(checkout), await recover(checkout), await recover(checkout)]).toEqual([
      'recovered',
      'recovered',
      'over',
    ])
  })

  test('whose store fails says during what it did', async () => {
    const { here, body } = await failedOnce()
    const during: unknown[] = []
    const listener = (event: unknown): void => void during.push((event as { during: string }).during)
    subscribe('onceonly:store-failed', listener)
    const down = (): Promise<never> => Promise.reject(new Error('ECONNRESET'))
    expect(
      await codeOf(
        recover(
          define(
            processWith(here, () => ({ show: down })),
            body,
          ),
        ),
      ),
    ).toBe('STORE_UNAVAILABLE')
    let shown = 0
    const blind = processWith(here, (store) => ({ show: (of) => (++shown > 1 ? down() : store.show(of)) }))
    expect(await recover(define(blind, body))).toBe('recovered')
    const mute = processWith(here, () => ({ ledger: down }))
    expect(await codeOf(define(mute, body).status('1'))).toBe('STORE_UNAVAILABLE')
    unsubscribe('onceonly:store-failed', listener)
    expect(during).toEqual(['recover', 'recover', 'inspect'])
  })
})

describe('a claim that cannot be gone on with', () => {
  test('is given back as open: what is recorded stays, and a retry need not wait', async () => {
    const { here, body } = await failedOnce()
    const released: unknown[] = []
    let reads = 0
    const once = processWith(here, (store) => ({
      ledger: (of) => (++reads === 1 ? Promise.reject(new Error('down')) : store.ledger(of)),
      release: (claim, how) => (released.push(how), store.release(claim, how)),
    }))
    const waiting = here.clock.pending
    expect(await codeOf(define(once, body).run('1', {}))).toBe('STORE_UNAVAILABLE')
    await once.close()
    expect(released).toEqual(['open'])
    expect(here.clock.pending).toBe(waiting)
    expect(await define(here.process({ waitMs: 0 }), body).run('1', {})).toMatchObject({ value: 'charged' })
  })

  test('is given back as open also when its lease ended while it was asked for, and is still held or not', async () => {
    for (const is of ['lost', 'down'] as const) {
      const { here, body, run } = await failedOnce()
      const released: unknown[] = []
      const once = here.process({
        store: {
          ...memoryStore({ data: here.data }),
          async enlist(...args) {
            const verdict = await memoryStore({ data: here.data }).enlist(...args)
            await new Promise<void>((resolve) => void here.clock.schedule(resolve, 30_000))
            return verdict
          },
          extend: () => (is === 'lost' ? Promise.resolve(is) : Promise.reject(new Error('ECONNRESET'))),
          release: async (_claim, how) => (released.push(how), 'done'),
        } as MemoryStore,
        storeTimeoutMs: 60_000,
        sweepEveryMs: false,
      })
      const failing = codeOf(define(once, body).run('1', {}))
      await here.clock.advance(30_000)
      expect(await failing).toBe(is === 'lost' ? 'CLAIM_LOST' : 'STORE_UNAVAILABLE')
      await once.close()
      expect(released).toEqual(['open'])
      expect(run).toHaveBeenCalledTimes(1)
    }
  })

  test('because its records cannot be read is parked, and one that was parked stays so, by a write that says it', async () => {
    const here = openShop()
    await leaveChargeInDoubt(here, parkAtCharge)
    const becomes: unknown[] = []
    const writes = (store: MemoryStore): Partial<MemoryStore> => ({
      advance: (claim, change) => (becomes.push(change), store.advance(claim, change)),
    })
    await codeOf(define(here.process(), parkAtCharge).run('1', { total: 5 }))
    expect(await codeOf(define(processWith(here, writes), parkAtCharge).run('1', { total: 5 }))).toBe('PARKED')
    expect(becomes).toEqual([{ records: [], becomes: { to: 'open' } }])
    const [name, operation] = [...here.data.operations][0]!
    const garbled = { name: 'charge', revision: 9, atMs: 0, content: Buffer.from('garbled') }
    here.data.operations.set(name, { ...operation, records: new Map([['charge', garbled]]) })
    becomes.length = 0
    expect(await codeOf(define(processWith(here, writes), parkAtCharge).run('1', { total: 5 }))).toBe(
      'OUTCOME_UNREADABLE',
    )
    expect(becomes).toEqual([{ records: [], becomes: { to: 'open' } }])
  })
})

describe('a person who resumes', () => {
  test('is told that there is nothing to resume, or why it cannot be', async () => {
    const { here, body } = await failedOnce()
    const checkout = define(here.process({ waitMs: 0 }), body)
    const { resumed } = partsOf(checkout as DefinedOperation)
    expect(await resumed('none', {})).toBe(false)
    expect(await resumed('1', {})).toBe(true)
    const gate = Promise.withResolvers<string>()
    const elsewhere = define(here.process(), () => gate.promise).run('1', {})
    await here.clock.advance(0)
    expect(await codeOf(checkout.resume('1'))).toBe('IN_FLIGHT')
    gate.resolve('done')
    await elsewhere
    expect(await resumed('1', {})).toBe(false)
    expect(await checkout.resume('1')).toMatchObject({ state: 'completed' })
    expect(await checkout.resume('none')).toBeUndefined()
    expect(await codeOf(checkout.resume('1', { decision: {} } as never))).toBe('INVALID_ARGUMENT')
  })

  test('finds an operation that was settled since the look at it, and leaves it', async () => {
    const { here, body } = await failedOnce()
    let shown = 0
    const once = processWith(here, (store) => ({
      async show(of) {
        const entry = await store.show(of)
        if (++shown === 1) await define(here.process(), body).run('1', {})
        return entry
      },
    }))
    expect(await partsOf(define(once, body) as DefinedOperation).resumed('1', {})).toBe(false)
  })

  test('leaves it due at once with no failures counted, and says why it was parked no more', async () => {
    const here = openShop()
    await leaveChargeInDoubt(here, parkAtCharge)
    const checkout = define(here.process({ sweepEveryMs: false }), parkAtCharge)
    await codeOf(checkout.run('1', { total: 5 }))
    expect(await checkout.status('1')).toMatchObject({ state: 'parked', failures: 2, parked: expect.any(String) })
    const waiting = here.clock.pending
    const resumed = (await checkout.resume('1', { decide: { charge: { found: 'ch_1' } } }))!
    expect(resumed).toMatchObject({ state: 'waiting', failures: 0, dueAtMs: here.clock.now(), inDoubt: [] })
    expect(resumed).not.toHaveProperty('parked')
    expect(resumed.steps).toMatchObject([{ name: 'charge', state: 'done' }])
    expect(here.clock.pending).toBe(waiting)
  })

  test.each<[what: string, decide: unknown, message: string]>([
    ['unknown', { charge: 'unknown' }, 'expected a decision on step "charge", got "unknown"'],
    ['nothing', { charge: null }, 'step "charge": expected lookup to return'],
    ['of no step', { mail: 'not-found' }, 'step "mail" of shop/operations/checkout/1 is not in doubt, it is unknown'],
    ['without a JSON form', { charge: { found: 5n } }, 'The result of step "charge"'],
  ])('with a decision that is %s changes nothing', async (_, decide, message) => {
    const here = openShop()
    await leaveChargeInDoubt(here, parkAtCharge)
    const checkout = define(here.process({ waitMs: 0 }), parkAtCharge)
    await codeOf(checkout.run('1', { total: 5 }))
    const before = await checkout.status('1')
    expect((await thrown(checkout.resume('1', { decide: decide as never }))).message).toContain(message)
    expect(await checkout.status('1')).toEqual({ ...before, attempt: before!.attempt + 1 })
  })

  test('with a decision on a step that is done is told so, and leaves it due as it was', async () => {
    const here = openShop()
    const body: Body = async (op) => {
      await op.step('charge', () => 1)
      throw new Error('down')
    }
    const checkout = define(here.process({ waitMs: 0 }), body)
    await thrown(checkout.run('1', {}))
    const refused = checkout.resume('1', { decide: { charge: 'not-found' } })
    expect((await thrown(refused)).message).toContain('is not in doubt, it is done')
    expect(await checkout.status('1')).toMatchObject({ state: 'waiting', dueAtMs: here.clock.now(), failures: 1 })
  })
})

test('an input that cannot be stored is refused before anything is written', async () => {
  const here = openShop()
  const checkout = define(here.process(), () => expect.fail('the operation ran'))
  expect(await thrown(checkout.run('1', { cents: 5n }))).toMatchObject({
    code: 'INVALID_ARGUMENT',
    message: expect.stringContaining('operation "checkout": its input cannot be stored'),
  })
  expect(here.data.entries.size).toBe(0)
})

test('start says when it could not start, and not when it was started before', async () => {
  const here = openShop()
  const failing = define(here.process(), () => Promise.reject(new FinalError('no')))
  await failing.start('1', {})
  await here.clock.advance(0)
  expect(await failing.start('1', {})).toMatchObject({ state: 'failed' })
  expect(await codeOf(failing.start('1', { other: true }))).toBe('MISMATCH')
  const refused = new OnceError('STORE_UNSAFE', { message: 'appendonly is off', retryable: true })
  const down = processWith(here, () => ({ enlist: () => Promise.reject(refused) }))
  expect(await thrown(define(down, () => 1).start('2', {}))).toBe(refused)
})

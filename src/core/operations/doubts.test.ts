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
import type { Body } from '../../../test/operations/shop.ts'
import { memoryStore } from '../../stores/memory.ts'
import { FinalError, NotBegunError } from '../errors.ts'
import type { Doubt } from '../doubt.ts'

describe('in doubt', () => {
  test('a step in doubt is run again by default, under the same key', async () => {
    const here = openShop()
    const keys: string[] = []
    const body: Body = (op) => op.step('charge', (step) => void keys.push(step.key))
    await dieIn('charge', here, body)
    await here.clock.advance(600_000 + 60_000)
    await define(here.process(), body).run('1', { total: 5 })
    expect(keys).toHaveLength(1)
  })

  test('with a lookup, what was found is taken, and the step is not run', async () => {
    const here = openShop()
    const run = vi.fn()
    const body: Body = (op) => op.step('charge', { run, lookup: async () => ({ found: { charge: 9 } }) })
    await dieIn('charge', here, body)
    await here.clock.advance(700_000)
    expect((await define(here.process(), body).run('1', { total: 5 })).value).toEqual({ charge: 9 })
    expect(run).not.toHaveBeenCalled()
  })

  test('with a lookup that finds nothing, the step is run', async () => {
    const here = openShop()
    const run = vi.fn(() => 'ran')
    const body: Body = (op) => op.step('charge', { run, lookup: () => 'not-found' })
    await dieIn('charge', here, body)
    await here.clock.advance(700_000)
    expect((await define(here.process(), body).run('1', { total: 5 })).value).toBe('ran')
    expect(run).toHaveBeenCalledTimes(1)
  })

  test('with a lookup that cannot tell, nothing is run and it stays in doubt', async () => {
    const here = openShop()
    const run = vi.fn()
    const body: Body = (op) => op.step('charge', { run, lookup: () => 'unknown' })
    await dieIn('charge', here, body)
    await here.clock.advance(700_000)
    const checkout = define(here.process(), body)
    expect((await thrown(checkout.run('1', { total: 5 }))).message).toContain('in doubt')
    expect(run).not.toHaveBeenCalled()
    expect(await checkout.status('1')).toMatchObject({ state: 'waiting', inDoubt: ['charge'] })
  })

  test("with inDoubt 'park' the operation parks until a person decides", async () => {
    const here = openShop()
    const run = vi.fn(() => 'ran')
    const body: Body = (op) => op.step('charge', { run, inDoubt: 'park' })
    await dieIn('charge', here, body)
    await here.clock.advance(700_000)
    const once = here.process()
    const checkout = define(once, body)
    expect(await codeOf(checkout.run('1', { total: 5 }))).toBe('PARKED')
    // It stays parked, whoever asks.
    expect(await codeOf(checkout.run('1', { total: 5 }))).toBe('PARKED')
    expect(await checkout.status('1')).toMatchObject({ state: 'parked', inDoubt: ['charge'] })
    const doubts: Doubt[] = []
    for await (const doubt of once.inDoubt()) doubts.push(doubt)
    expect(doubts).toMatchObject([{ operation: 'checkout', step: 'charge', parked: true, key: { id: '1' } }])
    expect(run).not.toHaveBeenCalled()

    await checkout.resume('1', { decide: { charge: { found: 'it had worked' } } })
    expect((await checkout.run('1', { total: 5 })).value).toBe('it had worked')
    expect(run).not.toHaveBeenCalled()
  })

  test('a person can also decide that it never took effect', async () => {
    const here = openShop()
    const run = vi.fn(() => 'ran')
    const body: Body = (op) => op.step('charge', { run, inDoubt: 'park' })
    await dieIn('charge', here, body)
    await here.clock.advance(700_000)
    const checkout = define(here.process(), body)
    await codeOf(checkout.run('1', { total: 5 }))
    await checkout.resume('1', { decide: { charge: 'not-found' } })
    expect((await checkout.run('1', { total: 5 })).value).toBe('ran')
    expect(await checkout.resume('2')).toBeUndefined()
  })

  test('a step that says itself that it took no effect is not in doubt', async () => {
    const once = openShop().process()
    const run = vi
      .fn(() => 'ran')
      .mockImplementationOnce(() => {
        throw new NotBegunError('the limiter said no')
      })
    const checkout = define(once, (op) => op.step('charge', { run, inDoubt: 'park' }))
    await thrown(checkout.run('1', {}))
    expect((await checkout.status('1'))?.inDoubt).toEqual([])
    expect((await checkout.run('1', {})).value).toBe('ran')
  })

  test('reconcile asks about all at once, repairs, and compensates each duplicate once', async () => {
    const here = openShop()
    const body: Body = (op) => op.step('charge', { run: () => 'ran', inDoubt: 'park' })
    await dieIn('charge', here, body)
    await here.clock.advance(700_000)
    const once = here.process()
    const checkout = define(once, body)
    await codeOf(checkout.run('1', { total: 5 }))
    const refunded: unknown[] = []
    const resolve = vi.fn(async (doubts: readonly unknown[]) =>
      doubts.map(() => ({ found: 'ch_1', duplicates: ['ch_2'] })),
    )
    const report = await once.reconcile('checkout', resolve, {
      compensate: (duplicate) => void refunded.push(duplicate),
    })
    expect(report).toMatchObject({ found: 1, notFound: 0, unknown: 0, passed: 0 })
    expect(report.duplicates).toMatchObject([{ duplicate: 'ch_2', compensated: true }])
    expect(refunded).toEqual(['ch_2'])
    expect((await checkout.run('1', { total: 5 })).value).toBe('ch_1')
    expect((await once.reconcile('checkout', resolve)).found).toBe(0)
    expect(resolve).toHaveBeenCalledTimes(1)
  })

  test('a rerun that never began does not settle the doubt about the run before it (seed 47)', async () => {
    const undo = vi.fn()
    let runs = 0
    const charge = (): never => {
      throw runs++ === 0 ? new Error('timed out') : new NotBegunError('too many requests')
    }
    const checkout = define(openShop().process(), (op) => op.step('charge', { run: charge, undo }), { attempts: 2 })
    await thrown(checkout.run('1', {}))
    await thrown(checkout.run('1', {}))
    expect(undo).toHaveBeenCalledTimes(1)
    expect(undo.mock.calls[0]?.[0]).toMatchObject({ forward: 'unknown' })
  })
})

describe('in doubt, as found in review', () => {
  test('a function that catches the stop at a step in doubt cannot complete the operation, nor begin another step', async () => {
    const here = openShop()
    await leaveChargeInDoubt(here, parkAtCharge)
    const next = vi.fn()
    const catching: Body = async (op, input) => {
      await Promise.resolve(parkAtCharge(op, input)).catch(() => 'never mind')
      return op.step('ship', next).catch(() => 'shipped without a charge')
    }
    const checkout = define(here.process(), catching)
    expect(await codeOf(checkout.run('1', { total: 5 }))).toBe('PARKED')
    expect(next).not.toHaveBeenCalled()
    expect(await checkout.status('1')).toMatchObject({ state: 'parked', inDoubt: ['charge'] })
  })

  test('a function that turns the stop at a step in doubt into a final failure does not undo it blindly', async () => {
    const here = openShop()
    const undo = vi.fn()
    const step = { run: () => 'ran', inDoubt: 'park' as const, undo }
    await leaveChargeInDoubt(here, (op) => op.step('charge', step))
    const checkout = define(here.process(), (op) =>
      op.step('charge', step).catch(() => {
        throw new FinalError('the charge did not work')
      }),
    )
    expect(await codeOf(checkout.run('1', { total: 5 }))).toBe('PARKED')
    expect(undo).not.toHaveBeenCalled()
  })

  test('a final failure of a rerun does not settle the doubt about the run before it', async () => {
    const here = openShop()
    const undo = vi.fn()
    let isOpen = true
    const body: Body = (op) =>
      op.step('charge', {
        run: () => {
          if (!isOpen) throw new FinalError('the shop is closed') // before the provider is asked
          throw new Error('timed out')
        },
        undo,
      })
    const checkout = define(here.process(), body)
    await thrown(checkout.run('1', {}))
    isOpen = false
    expect(await thrown(checkout.run('1', {}))).toMatchObject({ message: 'the shop is closed' })
    expect(undo.mock.calls[0]?.[0]).toMatchObject({ forward: 'unknown' })
  })

  test('a parked operation is shown as parked also while a retry looks at it', async () => {
    const here = openShop()
    await leaveChargeInDoubt(here, parkAtCharge)
    const checkout = define(here.process(), parkAtCharge)
    await codeOf(checkout.run('1', { total: 5 }))
    expect(await checkout.start('1', { total: 5 })).toMatchObject({ state: 'parked' })
    await here.clock.advance(10)
    expect(await checkout.status('1')).toMatchObject({ state: 'parked' })
  })

  test('a decision on the wrong step changes nothing, and the right one can follow at once', async () => {
    const here = openShop()
    await leaveChargeInDoubt(here, parkAtCharge)
    const checkout = define(here.process(), parkAtCharge)
    await codeOf(checkout.run('1', { total: 5 }))
    const wrong = { charge: { found: 'ch_1' }, chrage: 'not-found' } as const
    expect(await codeOf(checkout.resume('1', { decide: wrong }))).toBe('INVALID_ARGUMENT')
    expect(await checkout.status('1')).toMatchObject({ state: 'parked', inDoubt: ['charge'] })
    await checkout.resume('1', { decide: { charge: { found: 'ch_1' } } })
    expect((await checkout.run('1', { total: 5 })).value).toBe('ch_1')
  })

  test('reconcile decides all doubts of one operation at once, and says what it could not write', async () => {
    const here = openShop()
    const step = { run: () => 'ran', inDoubt: 'park' } as const
    const body: Body = (op) => Promise.all([op.step('debit', step), op.step('charge', step)])
    const dying: Body = (op) => Promise.all([op.step('debit', { ...step, run: () => never }), op.step('charge', step)])
    await leaveChargeInDoubt(here, dying)
    const once = here.process()
    const checkout = define(once, body)
    await codeOf(checkout.run('1', { total: 5 }))
    const report = await once.reconcile('checkout', async (doubts) => {
      expect(doubts.map(({ step: name }) => name)).toEqual(['debit', 'charge'])
      return doubts.map(({ step: name }) => ({ found: name }))
    })
    expect(report).toMatchObject({ found: 2, passed: 0 })
    // The one that died, the one that parked, and one resume.
    expect(await checkout.status('1')).toMatchObject({ attempt: 3, inDoubt: [] })
    expect((await checkout.run('1', { total: 5 })).value).toEqual(['debit', 'charge'])
  })

  test('an operation that cannot be read is parked and in doubt as a whole, and hides no other', async () => {
    const here = openShop()
    await leaveChargeInDoubt(here, parkAtCharge)
    const { operations, entries } = here.data
    const [name, operation] = [...operations][0]!
    const once = here.process()
    const checkout = define(once, parkAtCharge)
    await codeOf(checkout.run('1', { total: 5 }))
    // Another one with the same trouble, and with records that are no records.
    const garbled = new Map([['charge', { name: 'charge', revision: 1, atMs: 0, content: Buffer.from('garbled') }]])
    const other = name.replace(/1$/, '0')
    const key = { ...operation.key, id: '0' }
    operations.set(other, { ...operation, key, records: garbled })
    entries.set(other, { ...entries.get(name)!, key })
    const doubts: Doubt[] = []
    for await (const doubt of once.inDoubt()) doubts.push(doubt)
    expect(doubts).toMatchObject([{ key: { id: '0' }, operation: 'checkout', parked: true }, { step: 'charge' }])
    expect(doubts[0]).not.toHaveProperty('step')
    expect(await once.reconcile('checkout', async (asked) => asked.map(() => 'unknown'))).toMatchObject({ unknown: 1 })
  })
})

describe('reconciling', () => {
  const inDoubt: Body = (op) =>
    op.step('transfer', {
      inDoubt: 'park',
      run: () => {
        throw new Error('no answer came')
      },
    })

  test('a duplicate that could not be compensated keeps its operation in doubt, holds up no other, and is tried again', async () => {
    const once = openShop().process()
    const payOut = define(once, inDoubt)
    for (const id of ['1', '2']) await thrown(payOut.run(id, {}))
    const refunded: unknown[] = []
    let isDown = true
    const reconcile = () =>
      once.reconcile(
        'checkout',
        async (doubts) => doubts.map(({ key }) => ({ found: 'first', duplicates: [`second of ${key.id}`] })),
        {
          compensate: (duplicate) => {
            if (isDown && duplicate === 'second of 1') throw new Error('the bank is down')
            refunded.push(duplicate)
          },
        },
      )
    expect(await reconcile()).toMatchObject({
      found: 1,
      unknown: 1,
      duplicates: [
        { duplicate: 'second of 1', compensated: false, error: { message: 'the bank is down' } },
        { duplicate: 'second of 2', compensated: true },
      ],
    })
    isDown = false
    expect(await reconcile()).toMatchObject({ found: 1, unknown: 0, duplicates: [{ compensated: true }] })
    expect(refunded).toEqual(['second of 2', 'second of 1'])
    expect((await payOut.run('1', {})).value).toBe('first')
  })

  test('two duplicates that look the same are two', async () => {
    const once = openShop().process()
    await thrown(define(once, inDoubt).run('1', {}))
    const compensate = vi.fn()
    const same = { amount: 5 }
    const answer = { found: 1, duplicates: [same, same] }
    const { duplicates } = await once.reconcile('checkout', async (doubts) => doubts.map(() => answer), { compensate })
    expect(compensate).toHaveBeenCalledTimes(2)
    expect(duplicates.map(({ compensated }) => compensated)).toEqual([true, true])
  })

  test.each([
    ['no array of duplicates', { found: 1, duplicates: 'ab' }],
    ['a duplicate that nothing names', { found: 1, duplicates: [undefined] }],
    ['a duplicate without a JSON form', { found: 1, duplicates: [1n] }],
    ['nothing', undefined],
  ])('an answer with %s is refused before anything is done', async (_what, wrong) => {
    const once = openShop().process()
    const payOut = define(once, inDoubt)
    for (const id of ['1', '2']) await thrown(payOut.run(id, {}))
    const compensate = vi.fn()
    const answers = [{ found: 1, duplicates: ['right'] }, wrong as never]
    expect(await codeOf(once.reconcile('checkout', async () => answers, { compensate }))).toBe('INVALID_ARGUMENT')
    expect(compensate).not.toHaveBeenCalled()
    for (const id of ['1', '2']) expect((await payOut.status(id))?.inDoubt).toEqual(['transfer'])
  })
})

describe('what reconciling counts', () => {
  const inDoubt: Body = (op) =>
    op.step('transfer', { inDoubt: 'park', run: () => Promise.reject(new Error('no answer came')) })

  test('is what the outside system said of each, and a step that was not found runs again', async () => {
    const here = openShop()
    const once = here.process()
    let run: () => Promise<string> = () => Promise.reject(new Error('no answer came'))
    const payOut = define(once, (op) => op.step('transfer', { inDoubt: 'park', run: () => run() }))
    for (const id of ['1', '2', '3']) await thrown(payOut.run(id, {}))
    const report = await once.reconcile('checkout', async (doubts) => {
      expect(doubts).toMatchObject([
        { key: { id: '1' }, operation: 'checkout', step: 'transfer', attempt: 1, parked: false },
        { key: { id: '2' } },
        { key: { id: '3' } },
      ])
      return [{ found: 'first' }, 'not-found', 'unknown']
    })
    expect(report).toEqual({ found: 1, notFound: 1, unknown: 1, passed: 0, duplicates: [] })
    run = async () => 'ran'
    expect((await payOut.run('1', {})).value).toBe('first')
    expect((await payOut.run('2', {})).value).toBe('ran')
    expect(await payOut.status('3')).toMatchObject({ inDoubt: ['transfer'], attempt: 1 })
  })

  test('is that one which another process works on was passed, and an error that says anything else is thrown', async () => {
    const here = openShop()
    const once = here.process({ waitMs: 0 })
    const payOut = define(once, inDoubt)
    await thrown(payOut.run('1', {}))
    const gate = Promise.withResolvers<string>()
    let elsewhere: Promise<unknown> | undefined
    const report = await once.reconcile('checkout', async () => {
      elsewhere = define(here.process(), () => gate.promise).run('1', {})
      await here.clock.advance(0)
      return [{ found: 'first' }]
    })
    expect(report).toEqual({ found: 0, notFound: 0, unknown: 0, passed: 1, duplicates: [] })
    gate.resolve('done')
    await elsewhere
    const down = here.process({
      store: Object.assign({}, memoryStore({ data: here.data }), {
        enlist: () => Promise.reject(new Error('ECONNRESET')),
      }),
    })
    define(down, inDoubt)
    await thrown(define(here.process(), inDoubt).run('2', {}))
    expect(await codeOf(down.reconcile('checkout', async () => ['not-found']))).toBe('STORE_UNAVAILABLE')
  })

  test('without compensate, duplicates are told and left', async () => {
    const once = openShop().process()
    await thrown(define(once, inDoubt).run('1', {}))
    const report = await once.reconcile('checkout', async () => [{ found: 1, duplicates: ['second'] }])
    expect(report).toMatchObject({ found: 1, duplicates: [{ duplicate: 'second', compensated: false }] })
    expect(report.duplicates[0]).not.toHaveProperty('error')
  })

  test('comes in pages of the limit, the last one smaller, and of more than a hundred', async () => {
    const once = openShop().process()
    const payOut = define(once, inDoubt)
    for (let n = 0; n < 205; n++) await thrown(payOut.run(`${n}`, {}))
    const sizes: number[] = []
    const asking = async (doubts: readonly unknown[]): Promise<'unknown'[]> => {
      sizes.push(doubts.length)
      return doubts.map(() => 'unknown')
    }
    expect(await once.reconcile('checkout', asking)).toMatchObject({ unknown: 205 })
    expect(await once.reconcile('checkout', asking, { limit: 41 })).toMatchObject({ unknown: 205 })
    expect(sizes).toEqual([100, 100, 5, 41, 41, 41, 41, 41])
  })

  test.each<[message: string, options: object]>([
    ['expected limit to be a positive integer', { limit: 0 }],
    ['expected compensate to be a function', { compensate: 5 }],
  ])('is nothing with an option that is wrong: %s', async (message, options) => {
    const once = openShop().process()
    define(once, inDoubt)
    expect((await thrown(once.reconcile('checkout', async () => [], options))).message).toContain(message)
  })

  test.each<[what: string, answers: unknown]>([
    ['no array', undefined],
    ['too few', []],
    ['too many', ['unknown', 'unknown']],
  ])('is nothing where there are %s of answers', async (_, answers) => {
    const once = openShop().process()
    await thrown(define(once, inDoubt).run('1', {}))
    expect((await thrown(once.reconcile('checkout', async () => answers as never))).message).toContain(
      'expected an array of 1 results',
    )
  })
})

import { describe, expect, test, vi } from 'vitest'
import { codeOf, define, dieIn, never, openShop, thrown } from '../../../test/operations/shop.ts'
import type { Body } from '../../../test/operations/shop.ts'
import { memoryStore } from '../../stores/memory.ts'
import type { MemoryData } from '../../stores/memory.ts'
import type { ManualClock } from '../../testing/manual-clock.ts'
import { FinalError, NotBegunError, OnceError } from '../errors.ts'
import type { OperationOptions } from '../operations.ts'
import type { Advanced, Change, Recoverable, TransactionalSteps } from '../store.ts'

describe('going back', () => {
  const saga =
    (log: string[], fail: () => never, extra: Record<string, unknown> = {}): Body =>
    async (op) => {
      await op.step('reserve', { run: () => void log.push('reserve'), undo: () => void log.push('undo reserve') })
      await op.step('charge', {
        run: () => {
          log.push('charge')
          return { charge: 1 }
        },
        undo: ({ forward, result }) => void log.push(`undo charge ${forward} ${JSON.stringify(result)}`),
        ...extra,
      })
      await op.step('ship', { run: fail, undo: ({ forward }) => void log.push(`undo ship ${forward}`) })
    }

  test('a final failure undoes in reverse, each once, and is stored as the answer', async () => {
    const once = openShop().process()
    const log: string[] = []
    const checkout = define(
      once,
      saga(log, () => {
        throw new FinalError('out of stock', { data: { sku: 1 } })
      }),
    )
    const error = await thrown(checkout.run('1', {}))
    expect(error).toBeInstanceOf(FinalError)
    expect(error).toMatchObject({ message: 'out of stock', data: { sku: 1 } })
    // The step that failed has said itself that it took no effect.
    expect(log).toEqual(['reserve', 'charge', 'undo charge done {"charge":1}', 'undo reserve'])
    expect(await thrown(checkout.run('1', {}))).toMatchObject({ message: 'out of stock', data: { sku: 1 } })
    expect(log).toHaveLength(4)
    expect(await checkout.status('1')).toMatchObject({ state: 'failed', direction: 'backward' })
  })

  test.each<[string, unknown]>([
    ['a Map', new Map([['sku', 1]])],
    ['a Set inside', { left: new Set([1]) }],
    ['an Error', new Error('inner')],
    ['a BigInt', 1n],
  ])(
    'data of a final failure that JSON cannot hold is left out, not emptied, and the undos run all the same (%s)',
    async (_what, data) => {
      const once = openShop().process()
      const log: string[] = []
      const checkout = define(
        once,
        saga(log, () => {
          throw new FinalError('out of stock', { data })
        }),
      )
      await thrown(checkout.run('1', {}))
      expect(log).toEqual(['reserve', 'charge', 'undo charge done {"charge":1}', 'undo reserve'])
      const again = await thrown(checkout.run('1', {}))
      expect(again).toMatchObject({ message: 'out of stock' })
      expect((again as FinalError).data).toBeUndefined()
    },
  )

  test('when its attempts are exhausted it goes back, and a step in doubt is told so', async () => {
    const once = openShop().process()
    const log: string[] = []
    const checkout = define(
      once,
      saga(log, () => {
        throw new Error('the carrier is down')
      }),
      { attempts: 2 },
    )
    expect((await thrown(checkout.run('1', {}))).message).toBe('the carrier is down')
    const error = await thrown(checkout.run('1', {}))
    expect(error).toBeInstanceOf(FinalError)
    expect(error.message).toContain('failed in 2 attempts')
    expect(log).toEqual(['reserve', 'charge', 'undo ship unknown', 'undo charge done {"charge":1}', 'undo reserve'])
  })

  test('after a pivot there is no way back: it goes on, and parks when its attempts are exhausted', async () => {
    const once = openShop().process()
    const log: string[] = []
    const checkout = define(
      once,
      saga(
        log,
        () => {
          throw new FinalError('no such address')
        },
        { pivot: true },
      ),
      { attempts: 2 },
    )
    // A FinalError would be its answer for good, and it has none yet.
    const first = await thrown(checkout.run('1', {}))
    expect(first).toMatchObject({ code: 'OUTCOME_UNKNOWN', cause: { message: 'no such address' } })
    expect(await codeOf(checkout.run('1', {}))).toBe('PARKED')
    expect(log).toEqual(['reserve', 'charge'])
    expect(await checkout.status('1')).toMatchObject({ state: 'parked', direction: 'forward' })
  })

  test('an undo that keeps failing is parked with its error, the others still run, and resume goes on', async () => {
    const { process, clock } = openShop()
    const log: string[] = []
    let broken = true
    const checkout = define(process(), async (op) => {
      await op.step('a', { run: () => 1, undo: () => void log.push('undo a') })
      await op.step('b', {
        run: () => 2,
        undo: () => {
          if (broken) throw new Error('refunds are down')
          log.push('undo b')
        },
      })
      throw new FinalError('no')
    })
    const first = codeOf(checkout.run('1', {}))
    await clock.advance(60_000)
    expect(await first).toBe('PARKED')
    expect(log).toEqual(['undo a'])
    const status = await checkout.status('1')
    expect(status?.steps.find((step) => step.name === 'b')).toMatchObject({ state: 'stuck', error: 'refunds are down' })
    broken = false
    await checkout.resume('1')
    expect(await thrown(checkout.run('1', {}))).toBeInstanceOf(FinalError)
    expect(log).toEqual(['undo a', 'undo b'])
  })

  test('an undo is given the key of its step beside its own, also when the result of the step is unknown', async () => {
    const here = openShop()
    const keys: string[] = []
    const undo = vi.fn()
    const body: Body = async (op) => {
      await op.step('reserve', { run: ({ key }) => void keys.push(key), undo })
      await op.step('charge', {
        run({ key }) {
          keys.push(key)
          throw new Error('no answer came')
        },
        undo,
      })
    }
    const checkout = define(here.process(), body)
    await thrown(checkout.run('1', {}))
    await checkout.cancel('1', 'enough')
    const [reserve, charge] = keys
    const told = undo.mock.calls.map(([{ key, forwardKey, forward, result }]) => ({ key, forwardKey, forward, result }))
    expect(told).toEqual([
      { key: expect.any(String), forwardKey: charge, forward: 'unknown', result: undefined },
      { key: expect.any(String), forwardKey: reserve, forward: 'done', result: undefined },
    ])
    expect(new Set([...told.map(({ key }) => key), reserve, charge]).size).toBe(4)
  })

  test('on the way back a step in doubt is looked up by its own key, and what was found is undone as done', async () => {
    const keys: string[] = []
    const undo = vi.fn()
    const body: Body = (op) =>
      op.step('charge', {
        run({ key }) {
          keys.push(key)
          throw new Error('no answer came')
        },
        lookup({ key }) {
          keys.push(key)
          return { found: { charge: 9 } }
        },
        undo,
      })
    const checkout = define(openShop().process(), body)
    await thrown(checkout.run('1', {}))
    await checkout.cancel('1', 'enough')
    expect(keys).toHaveLength(2)
    expect(keys[1]).toBe(keys[0])
    expect(undo.mock.calls).toMatchObject([[{ forwardKey: keys[0], forward: 'done', result: { charge: 9 } }]])
  })

  test.each([
    ['refused for good', new FinalError('the bank says no'), { attempts: 10 }],
    ['never begun', new NotBegunError('too many requests'), { attempts: 1 }],
  ])('a pivot that was %s has not been passed: the operation goes back', async (_what, refusal, options) => {
    const undo = vi.fn()
    const body: Body = async (op) => {
      await op.step('reserve', { run: () => 'held', undo })
      await op.step('charge', {
        pivot: true,
        run() {
          throw refusal
        },
      })
    }
    const checkout = define(openShop().process(), body, options)
    expect(await thrown(checkout.run('1', {}))).toBeInstanceOf(FinalError)
    expect(undo).toHaveBeenCalledTimes(1)
    expect(await checkout.status('1')).toMatchObject({ state: 'failed', direction: 'backward' })
  })

  test('a pivot that a lookup did not find has not been passed: a cancel undoes what was done', async () => {
    const here = openShop()
    const undo = vi.fn()
    const body: Body = async (op) => {
      await op.step('reserve', { run: () => 'held', undo })
      await op.step('charge', { pivot: true, inDoubt: 'park', run: () => 'charged' })
    }
    await dieIn('charge', here, body)
    await here.clock.advance(700_000)
    const checkout = define(here.process(), body)
    expect(await codeOf(checkout.run('1', { total: 5 }))).toBe('PARKED')
    await checkout.resume('1', { decide: { charge: 'not-found' } })
    expect(await checkout.cancel('1', 'enough')).toMatchObject({ state: 'failed' })
    expect(undo).toHaveBeenCalledTimes(1)
  })

  test('undos wait for parallel siblings to end', async () => {
    const { process, clock } = openShop()
    const log: string[] = []
    const gate = Promise.withResolvers<void>()
    const checkout = define(process(), (op) =>
      Promise.all([
        op.step('slow', {
          run: async () => {
            await gate.promise
            log.push('slow')
          },
          undo: ({ forward }) => void log.push(`undo slow ${forward}`),
        }),
        op.step('quick', () => {
          throw new FinalError('no')
        }),
      ]),
    )
    const result = thrown(checkout.run('1', {}))
    await clock.advance(1_000)
    expect(log).toEqual([])
    gate.resolve()
    await result
    expect(log).toEqual(['slow', 'undo slow done'])
  })

  test('cancel undoes what was done, and is the answer', async () => {
    const once = openShop().process()
    const log: string[] = []
    const checkout = define(
      once,
      saga(log, () => {
        throw new Error('not now')
      }),
    )
    await thrown(checkout.run('1', {}))
    expect(await checkout.cancel('1', 'the customer left')).toMatchObject({ state: 'failed' })
    expect(log).toEqual(['reserve', 'charge', 'undo ship unknown', 'undo charge done {"charge":1}', 'undo reserve'])
    expect((await thrown(checkout.run('1', {}))).message).toContain('the customer left')
  })

  test('cancel of a running operation takes effect at its next step', async () => {
    const here = openShop()
    const gate = Promise.withResolvers<void>()
    const log: string[] = []
    const checkout = define(here.process(), async (op) => {
      await op.step('a', { run: () => gate.promise, undo: () => void log.push('undo a') })
      await op.step('b', () => void log.push('b'))
    })
    const result = thrown(checkout.run('1', {}))
    await here.clock.advance(10)
    expect(await checkout.cancel('1', 'changed my mind')).toMatchObject({
      state: 'running',
      cancelReason: 'changed my mind',
    })
    gate.resolve()
    await result
    expect(log).toEqual(['undo a'])
  })

  test('a process that dies while it goes back is succeeded by one that goes on with the undos', async () => {
    const { process, clock } = openShop()
    const log: string[] = []
    let hang = true
    const body: Body = async (op) => {
      await op.step('a', { run: () => 1, undo: () => void log.push('undo a') })
      await op.step('b', {
        run: () => 2,
        undo: () => {
          if (hang) return never
          return void log.push('undo b')
        },
      })
      await op.step('c', { run: () => 3, undo: () => void log.push('undo c') })
      throw new FinalError('no')
    }
    void define(process({ attemptMs: 1_000 }), body)
      .run('1', {})
      .catch(() => {})
    await clock.advance(120_000)
    hang = false
    expect(log).toEqual(['undo c'])
    expect(await thrown(define(process(), body).run('1', {}))).toMatchObject({ message: 'no' })
    expect(log).toEqual(['undo c', 'undo b', 'undo a'])
  })
})

describe('going back, as found by simulation', () => {
  const failing = (): never => {
    throw new FinalError('declined')
  }

  /** A store whose answers to the writes that have these words in them do not come back. */
  function deafTo(words: string, data: MemoryData): ReturnType<typeof memoryStore> {
    const store = memoryStore({ data })
    return {
      ...store,
      async advance(claim, change) {
        const answer = await store.advance(claim, change)
        const isMeant = change.records.some(({ content }) => Buffer.from(content).includes(words))
        if (isMeant) throw new Error('the reply was lost')
        return answer
      },
    }
  }

  test('a step in doubt that is not run again because of a cancel is undone (seed 2144)', async () => {
    const undo = vi.fn()
    const step = { undo, retry: { attempts: 2, firstMs: 1 } }
    const here = openShop()
    const own = here.process()
    const body: Body = (op) =>
      op.step('charge', {
        ...step,
        run: async () => {
          await (own.store as unknown as Recoverable).requestCancel(op.key, 'enough')
          throw new Error('timed out')
        },
      })
    const asked = thrown(define(own, body).run('1', {}))
    await here.clock.advance(1_000)
    expect(await asked).toBeInstanceOf(FinalError)
    expect(undo.mock.calls[0]?.[0]).toMatchObject({ forward: 'unknown' })
  })

  test('an attempt that does not know what it wrote undoes nothing; the next one reads it (seed 610)', async () => {
    const { process, clock, data } = openShop()
    const store = memoryStore({ data })
    let isCut = false
    const advance: typeof store.advance = async (claim, change) => {
      const answer = await store.advance(claim, change)
      if (!isCut) return answer
      throw new Error('the reply was lost')
    }
    const log: string[] = []
    const body: Body = async (op) => {
      await op.step('reserve', { run: () => log.push('reserve'), undo: () => log.push('undo reserve') })
      isCut = true
      await op.step('charge', { run: () => log.push('charge'), undo: () => log.push('undo charge') })
    }
    const cut = process({ store: { ...store, advance } as typeof store, storeTimeoutMs: 100 })
    const asked = thrown(define(cut, body, { attempts: 1 }).run('1', {}))
    await clock.advance(60_000)
    expect(await asked).toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(log).toEqual(['reserve'])
    const last = define(process(), body, { attempts: 1 })
    expect(await thrown(last.run('1', {}))).toBeInstanceOf(FinalError)
    expect(log).toEqual(['reserve', 'undo charge', 'undo reserve'])
  })

  test('an operation whose turn was not confirmed does not turn again (seed 2802)', async () => {
    const { process, clock, data } = openShop()
    const body: Body = (op) => op.step('charge', failing)
    const checkout = define(process({ store: deafTo('backward', data), storeTimeoutMs: 100 }), body)
    const asked = thrown(checkout.run('1', {}))
    await clock.advance(60_000)
    expect(await asked).toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(await checkout.status('1')).toMatchObject({ direction: 'backward' })
  })

  test('an operation that turned back with its first write, which was not confirmed, is not turned forward by the next', async () => {
    const { process, clock, data } = openShop()
    const checkout = define(process({ store: deafTo('backward', data), storeTimeoutMs: 100 }), failing)
    const asked = thrown(checkout.run('1', {}))
    await clock.advance(60_000)
    expect(await asked).toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(await checkout.status('1')).toMatchObject({ direction: 'backward' })
  })

  test('how a function is left for a cancel is told to nobody outside (seed 8236)', async () => {
    const { process, clock, data } = openShop()
    const once = process({ store: deafTo('"state":"done"', data), storeTimeoutMs: 100 })
    const body: Body = async (op) => {
      const cancel = (): Promise<boolean> =>
        (once.store as unknown as Recoverable).requestCancel(op.key, 'enough').then(() => true)
      await op.step('a', cancel).catch(() => {})
      return op.step('b', () => 1)
    }
    const asked = thrown(define(once, body).run('1', {}))
    await clock.advance(60_000)
    expect(await asked).toMatchObject({ code: 'OUTCOME_UNKNOWN' })
  })

  test('the undo of a transaction whose COMMIT was not answered is not tried again by the same attempt (seed 665)', async () => {
    const { process, clock, data } = openShop()
    const store = memoryStore({ data })
    let undone = 0
    let isSilent = true
    const beginStep: TransactionalSteps<null>['beginStep'] = async (claim) => ({
      tx: null,
      async commit(change) {
        const answer = await store.advance(claim, change)
        return undone > 0 && isSilent ? never : answer
      },
      rollback: async () => {},
      abandon: async () => {},
    })
    const body: Body = async (op) => {
      await op.transaction('order', { run: () => 1, undo: () => void undone++ })
      await op.step('charge', failing)
    }
    const silent = { ...store, beginStep, isConflict: () => false } as unknown as typeof store
    const asked = thrown(define(process({ store: silent, storeTimeoutMs: 100 }), body).run('1', {}))
    await clock.advance(60_000)
    expect(await asked).toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    isSilent = false
    expect(await thrown(define(process({ store: silent }), body).run('1', {}))).toBeInstanceOf(FinalError)
    expect(undone).toBe(1)
  })
})

describe('a way back that is interrupted', () => {
  /** A shop whose database goes down when the operation turns back, and opens no transaction while it is down. */
  function openDown(options: OperationOptions = {}) {
    const { process, clock, data } = openShop()
    const store = memoryStore({ data })
    const error = new Error('connect ECONNREFUSED')
    const database = { goesDown: true, isDown: false, isLost: false, undone: 0, asked: 0, error }
    const beginStep: TransactionalSteps<null>['beginStep'] = async (claim) => {
      database.asked++
      if (database.isDown && database.isLost) return undefined
      if (database.isDown) throw database.error
      const commit = (change: Change): Promise<Advanced> => store.advance(claim, change)
      return { tx: null, commit, rollback: async () => {}, abandon: async () => {} }
    }
    const given = { ...store, beginStep, isConflict: () => false } as unknown as typeof store
    const body: Body = async (op) => {
      await op.transaction('order', { run: () => 1, undo: () => void database.undone++ })
      database.isDown = database.goesDown
      database.asked = 0
      throw new FinalError('no')
    }
    const checkout = define(process({ store: given }), body, options)
    const comesBack = (): void => void (database.isDown = database.goesDown = false)
    const ask = (): Promise<Error> => asked(clock, thrown(checkout.run('1', {})))
    return { clock, data, database, comesBack, checkout, ask }
  }

  /** What came of it, with as much time as it takes. */
  async function asked<T>(clock: ManualClock, work: Promise<T>): Promise<T> {
    await clock.advance(60_000)
    return work
  }

  test('by a store that opens no transaction says nothing of the undo: nothing is stuck, and the next attempt goes on', async () => {
    const { database, comesBack, checkout, ask } = openDown()
    const told = { code: 'OUTCOME_UNKNOWN', cause: { message: 'connect ECONNREFUSED' } }
    expect(await ask()).toMatchObject(told)
    const steps = [{ name: 'order', state: 'done' }]
    const lastError = 'connect ECONNREFUSED'
    expect(await checkout.status('1')).toMatchObject({ state: 'waiting', direction: 'backward', steps, lastError })
    comesBack()
    expect(await ask()).toMatchObject({ name: 'FinalError', message: 'no' })
    expect(database.undone).toBe(1)
  })

  test('for less than the tries of an undo take ends in the same attempt', async () => {
    const { clock, database, comesBack, checkout } = openDown({ attempts: 1 })
    // Longer than the first pause of an undo, and shorter than both.
    clock.schedule(comesBack, 210)
    expect(await asked(clock, thrown(checkout.run('1', {})))).toMatchObject({ name: 'FinalError', message: 'no' })
    expect(database).toMatchObject({ asked: 3, undone: 1 })
  })

  test('by its database, however often its callers ask meanwhile, is never parked: one attempt is enough', async () => {
    const { database, comesBack, checkout, ask } = openDown({ attempts: 1 })
    for (let call = 0; call < 30; call++) expect(await ask()).toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(await checkout.status('1')).toMatchObject({ state: 'waiting', steps: [{ state: 'done' }] })
    comesBack()
    expect(await ask()).toMatchObject({ name: 'FinalError', message: 'no' })
    expect(database.undone).toBe(1)
  })

  test('waits longer each time, up to the most of its back-off, and anew after a person has resumed it', async () => {
    const { clock, checkout } = openDown({ backoff: { firstMs: 10_000, factor: 4, maxMs: 400_000 } })
    /** Asks as soon as it is due. */
    const pauseMs = async (): Promise<number> => {
      const asking = thrown(checkout.run('1', {}))
      await clock.advance(1_000)
      await asking
      const waitMs = (await checkout.status('1'))!.dueAtMs! - clock.now()
      await clock.advance(waitMs)
      return waitMs
    }
    const expectPause = async (mostMs: number): Promise<void> => {
      const waitMs = await pauseMs()
      // An attempt takes less than a second.
      expect(waitMs).toBeGreaterThanOrEqual(mostMs / 2 - 1_000)
      expect(waitMs).toBeLessThanOrEqual(mostMs)
    }
    for (const mostMs of [10_000, 40_000, 160_000, 400_000, 400_000]) await expectPause(mostMs)
    expect((await checkout.resume('1'))!.dueAtMs).toBe(clock.now())
    await expectPause(10_000)
  })

  test.each([
    ['the store cannot do it', new OnceError('UNSUPPORTED', { message: 'no transactions here' })],
    ['the store is not fit', new OnceError('SCHEMA_MISSING', { message: 'no tables' })],
  ])('by what no retry cures is left to a person at once (%s)', async (_what, error) => {
    const { database, checkout, ask } = openDown()
    database.error = error
    expect(await ask()).toMatchObject({ code: 'PARKED' })
    expect(database.asked).toBe(1)
    expect((await checkout.status('1'))!.steps).toMatchObject([{ state: 'stuck', error: error.message }])
  })

  test('by a claim that is lost is told as lost, and not tried again', async () => {
    const { database, ask } = openDown()
    database.isLost = true
    expect(await ask()).toMatchObject({ code: 'CLAIM_LOST' })
    expect(database.asked).toBe(1)
  })

  test('between two tries of its undo is not stuck: only an undo all of whose tries failed is', async () => {
    const { process, clock, data } = openShop()
    const store = memoryStore({ data })
    const opened = [true, false, true, true]
    const beginStep: TransactionalSteps<null>['beginStep'] = async (claim) => {
      if (!opened.shift()) throw new Error('connect ECONNREFUSED')
      const commit = (change: Change): Promise<Advanced> => store.advance(claim, change)
      return { tx: null, commit, rollback: async () => {}, abandon: async () => {} }
    }
    const given = { ...store, beginStep, isConflict: () => false } as unknown as typeof store
    const undo = vi.fn(() => Promise.reject(new Error('Connection terminated')))
    const body: Body = async (op) => {
      await op.transaction('order', { run: () => 1, undo })
      throw new FinalError('no')
    }
    const checkout = define(process({ store: given }), body)
    expect(await asked(clock, thrown(checkout.run('1', {})))).toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(undo).toHaveBeenCalledTimes(2)
    expect(await checkout.status('1')).toMatchObject({ state: 'waiting', steps: [{ state: 'done' }] })
  })

  test('by its deadline while it gets further each time comes to its end, and waits no longer for it', async () => {
    const { process, clock } = openShop()
    const log: string[] = []
    const undo =
      (name: string) =>
      async ({ signal }: { signal: AbortSignal }): Promise<void> => {
        await new Promise((resolve) => {
          clock.schedule(() => resolve(undefined), 400)
          signal.addEventListener('abort', resolve)
        })
        if (signal.aborted) throw new Error('given up')
        log.push(name)
      }
    const body: Body = async (op) => {
      for (const name of 'abcdefgh') await op.step(name, { run: () => 1, undo: undo(name) })
      throw new FinalError('no')
    }
    const checkout = define(process({ attemptMs: 1_000 }), body, { attempts: 3, backoff: { firstMs: 10, factor: 10 } })
    for (let attempt = 1; attempt <= 3; attempt++) {
      const asking = thrown(checkout.run('1', {}))
      await clock.advance(1_500)
      expect(await asking).toMatchObject({ code: 'DEADLINE_PASSED' })
      const status = (await checkout.status('1'))!
      expect(status.state).toBe('waiting')
      expect(status.dueAtMs).toBeLessThanOrEqual(clock.now())
    }
    expect(await asked(clock, thrown(checkout.run('1', {})))).toMatchObject({ name: 'FinalError', message: 'no' })
    expect(log.join('')).toBe('hgfedcba')
  })

  test('by a lookup that fails says nothing of the undo, and the next attempt looks again', async () => {
    const { process, clock } = openShop()
    const undo = vi.fn()
    let isDown = true
    const lookup = vi.fn(() => {
      if (isDown) throw new Error('the bank is down')
      return { found: { charge: 9 } }
    })
    const run = (): never => {
      throw new Error('no answer came')
    }
    const checkout = define(process(), (op) => op.step('charge', { run, lookup, undo }), { attempts: 1 })
    expect(await asked(clock, thrown(checkout.run('1', {})))).toMatchObject({
      code: 'OUTCOME_UNKNOWN',
      cause: { message: 'the bank is down' },
    })
    expect(lookup).toHaveBeenCalledTimes(3)
    const steps = [{ name: 'charge', state: 'began' }]
    expect(await checkout.status('1')).toMatchObject({ state: 'waiting', steps, lastError: 'the bank is down' })
    isDown = false
    expect(await asked(clock, thrown(checkout.run('1', {})))).toMatchObject({ name: 'FinalError' })
    expect(undo.mock.calls).toMatchObject([[{ forward: 'done', result: { charge: 9 } }]])
  })

  test.each([
    ['an Error', new Error('connect ECONNREFUSED')],
    ['a text', 'connect ECONNREFUSED'],
  ])('tells its caller why, whatever was thrown (%s)', async (_what, error) => {
    const { database, ask } = openDown()
    database.error = error as Error
    const told = await ask()
    expect(told).toMatchObject({ code: 'OUTCOME_UNKNOWN', cause: error })
    expect(told.message).toContain('failed (connect ECONNREFUSED)')
  })

  test('that was parked and then cancelled waits for no person any more', async () => {
    const { clock, data, database, checkout, ask } = openDown()
    database.error = new OnceError('UNSUPPORTED', { message: 'no transactions here' })
    expect(await ask()).toMatchObject({ code: 'PARKED' })
    database.error = new Error('connect ECONNREFUSED')
    await asked(clock, checkout.cancel('1', 'enough'))
    expect(await checkout.status('1')).toMatchObject({ state: 'waiting', direction: 'backward' })
    const records = [...data.operations.values()][0]!.records
    expect(Buffer.from(records.get('')!.content).toString()).not.toContain('"parked"')
  })

  test('and dies from then on is parked with the last error that is known', async () => {
    const { process, clock } = openShop()
    const lookup = vi.fn((): never => {
      throw new Error('the bank is down')
    })
    const run = (): never => {
      throw new Error('no answer came')
    }
    const body: Body = (op) => op.step('charge', { run, lookup, undo: () => {} })
    const options = { attempts: 1 }
    await asked(clock, thrown(define(process(), body, options).run('1', {})))
    lookup.mockImplementation((() => never) as never)
    // Also with one attempt: a deploy or an outage longer than a lease ends one, too.
    for (let death = 0; death < 3; death++) {
      void define(process({ attemptMs: 1_000 }), body, options)
        .run('1', {})
        .catch(() => {})
      await clock.advance(120_000)
    }
    const told = await thrown(define(process(), body, options).run('1', {}))
    expect(told).toMatchObject({ code: 'PARKED' })
    expect(told.message).toContain('3 attempts to undo it died or hung. The last error: the bank is down')
  })
})

describe('a function that fails before it asks for a step that is to be undone', () => {
  /** Its order comes from a database that can be down. */
  function openLoading(error: unknown = new Error('connect ECONNREFUSED')) {
    const here = openShop()
    const database = { isDown: false, fails: true }
    const undo = vi.fn()
    const body: Body = async (op) => {
      if (database.isDown) throw error
      await op.step('charge', { run: () => 1, undo })
      if (database.fails) throw new Error('later')
    }
    return { ...here, database, undo, body }
  }

  test('proves nothing of the code: nothing is stuck, its error is told, and the next attempt goes on', async () => {
    const { process, database, undo, body } = openLoading()
    const checkout = define(process(), body, { attempts: 2 })
    await thrown(checkout.run('1', {}))
    database.isDown = true
    // Its attempts are used up while it cannot load, and from then on it goes back.
    for (let call = 0; call < 5; call++) {
      expect(await thrown(checkout.run('1', {}))).toMatchObject({
        code: 'OUTCOME_UNKNOWN',
        cause: { message: 'connect ECONNREFUSED' },
      })
      const steps = [{ name: 'charge', state: 'done' }]
      const lastError = 'connect ECONNREFUSED'
      expect(await checkout.status('1')).toMatchObject({ state: 'waiting', direction: 'backward', steps, lastError })
    }
    database.isDown = false
    expect(await thrown(checkout.run('1', {}))).toMatchObject({ name: 'FinalError' })
    expect(undo).toHaveBeenCalledTimes(1)
  })

  test('when it is cancelled: the cancel takes effect as soon as it gets through', async () => {
    const { process, database, undo, body } = openLoading()
    const checkout = define(process(), body)
    await thrown(checkout.run('1', {}))
    database.isDown = true
    expect(await checkout.cancel('1', 'enough')).toMatchObject({ state: 'waiting', direction: 'backward' })
    database.isDown = false
    expect(await checkout.cancel('1', 'enough')).toMatchObject({ state: 'failed' })
    expect(undo).toHaveBeenCalledTimes(1)
  })

  test('undoes first what it asked for, the last first, and nothing before what is not known', async () => {
    const { process } = openShop()
    const log: string[] = []
    let isDown = false
    const step = (name: string) => ({ run: () => 1, undo: () => void log.push(name) })
    const body: Body = async (op) => {
      await op.step('a', step('a'))
      if (isDown) {
        await op.step('c', step('c'))
        throw new Error('connect ECONNREFUSED')
      }
      await op.step('b', step('b'))
      await op.step('c', step('c'))
      isDown = true
      throw new Error('later')
    }
    const checkout = define(process(), body)
    await thrown(checkout.run('1', {}))
    await checkout.cancel('1', 'enough')
    expect(log).toEqual(['c'])
    isDown = false
    await thrown(checkout.run('1', {}))
    expect(log).toEqual(['c', 'b', 'a'])
  })

  test.each([
    ['returns', () => 'nothing to do', 'the code no longer asks for this step'],
    [
      'fails for good',
      () => {
        throw new FinalError('not for sale any more')
      },
      'the code no longer asks for this step',
    ],
    ['asks for it without its undo', (op: Parameters<Body>[0]) => op.step('charge', () => 1), 'no longer asks'],
    [
      'asks for another step instead',
      (op: Parameters<Body>[0]) => op.step('pay', () => 1),
      'the code no longer asks for this step',
    ],
    [
      'fails with what no retry cures',
      () => {
        throw new OnceError('MISMATCH', { message: 'asked for otherwise' })
      },
      'the function failed before it asked for this step (asked for otherwise)',
    ],
  ] as const)('and one that %s has got through: the undo is stuck', async (_what, changed, why) => {
    const { process, body } = openLoading()
    await thrown(define(process(), body).run('1', {}))
    const checkout = define(process(), changed as Body)
    await checkout.cancel('1', 'enough')
    const { state, steps } = (await checkout.status('1'))!
    expect(state).toBe('parked')
    expect(steps[0]).toMatchObject({ state: 'stuck', error: expect.stringContaining(why) })
    expect(steps[0]!.error).toContain('so its undo is not known')
  })
})

describe('going back, as found in review', () => {
  test('a function that catches the end by a cancel cannot complete the operation', async () => {
    const here = openShop()
    const gate = Promise.withResolvers<void>()
    const undo = vi.fn()
    const checkout = define(here.process(), async (op) => {
      await op.step('a', { run: () => gate.promise, undo })
      return op.step('b', () => 'b').catch(() => 'completed all the same')
    })
    const asked = thrown(checkout.run('1', {}))
    await here.clock.advance(10)
    await checkout.cancel('1', 'the customer left')
    gate.resolve()
    // The wish came while it ran, and the reason is told all the same.
    expect(await asked).toMatchObject({ name: 'FinalError', message: expect.stringContaining('the customer left') })
    expect(undo).toHaveBeenCalledTimes(1)
  })

  test('a course whose write was not confirmed is overwritten by the next: an operation that turned back stays so', async () => {
    const { process, clock, data } = openShop()
    const store = memoryStore({ data })
    let isLost = true
    const advance: typeof store.advance = async (claim, change) => {
      const answer = await store.advance(claim, change)
      if (change.becomes.to === 'running' && isLost) throw new Error('the reply was lost')
      return answer
    }
    const once = process({ store: Object.assign({}, store, { advance }), storeTimeoutMs: 100 })
    const checkout = define(once, (op) => op.step('a', { run: () => 1, undo: () => {} }), { attempts: 1 })
    const asked = thrown(checkout.run('1', {}))
    await clock.advance(60_000)
    await asked
    isLost = false
    await thrown(checkout.run('1', {}))
    expect(await checkout.status('1')).toMatchObject({ state: 'failed', direction: 'backward' })
    const revisions = [...data.operations.values()][0]!.records
    expect(revisions.get('')!.revision).toBeGreaterThan(1)
  })

  test('an undo that kills its process each time is left to a person after as many attempts as going forward has', async () => {
    const { process, clock } = openShop()
    const undo = vi.fn(() => never)
    const body: Body = async (op) => {
      await op.step('a', { run: () => 1, undo })
      throw new FinalError('no')
    }
    for (let death = 0; death < 6; death++) {
      void define(process({ attemptMs: 1_000 }), body, { attempts: 3 })
        .run('1', {})
        .catch(() => {})
      await clock.advance(120_000)
    }
    expect(undo).toHaveBeenCalledTimes(3)
    const checkout = define(process(), body, { attempts: 3 })
    const parked = expect.stringContaining('3 attempts to undo it died or hung')
    expect(await checkout.status('1')).toMatchObject({ state: 'parked', direction: 'backward', parked })
    undo.mockImplementation((() => undefined) as never)
    await checkout.resume('1')
    expect(await thrown(checkout.run('1', {}))).toMatchObject({ message: 'no' })
  })

  test('an undo whose time is over is gone on with, and is not taken for stuck', async () => {
    const { process, clock } = openShop()
    let isSlow = true
    const undo = async ({ signal }: { signal: AbortSignal }): Promise<void> => {
      if (!isSlow) return
      await new Promise((resolve) => signal.addEventListener('abort', resolve))
      throw new FinalError('this undo gives up')
    }
    const body: Body = async (op) => {
      await op.step('a', { run: () => 1, undo })
      throw new FinalError('no')
    }
    const checkout = define(process({ attemptMs: 1_000 }), body)
    const first = codeOf(checkout.run('1', {}))
    await clock.advance(2_000)
    expect(await first).toBe('DEADLINE_PASSED')
    expect(await checkout.status('1')).toMatchObject({ state: 'waiting', steps: [{ name: 'a', state: 'undoing' }] })
    isSlow = false
    expect(await thrown(checkout.run('1', {}))).toMatchObject({ message: 'no' })
  })
})

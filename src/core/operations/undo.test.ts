import { describe, expect, test, vi } from 'vitest'
import { codeOf, define, dieIn, never, openShop, thrown } from '../../../test/operations/shop.ts'
import type { Body } from '../../../test/operations/shop.ts'
import { memoryStore } from '../../stores/memory.ts'
import type { MemoryData } from '../../stores/memory.ts'
import { FinalError, NotBegunError } from '../errors.ts'
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

describe('a store that opens no transaction for an undo', () => {
  /** A shop whose database opens no transaction while `isDown`, and the operation that needs one to go back. */
  function openDown() {
    const { process, clock, data } = openShop()
    const store = memoryStore({ data })
    const database = { goesDown: true, isDown: false, undone: 0 }
    const beginStep: TransactionalSteps<null>['beginStep'] = async (claim) => {
      if (database.isDown) throw new Error('connect ECONNREFUSED')
      const commit = (change: Change): Promise<Advanced> => store.advance(claim, change)
      return { tx: null, commit, rollback: async () => {}, abandon: async () => {} }
    }
    const given = { ...store, beginStep, isConflict: () => false } as unknown as typeof store
    const body: Body = async (op) => {
      await op.transaction('order', { run: () => 1, undo: () => void database.undone++ })
      database.isDown = database.goesDown
      throw new FinalError('no')
    }
    const checkout = define(process({ store: given }), body, { attempts: 3 })
    const comesBack = (): void => void (database.isDown = database.goesDown = false)
    const ask = async (): Promise<Error> => {
      const asked = thrown(checkout.run('1', {}))
      await clock.advance(60_000)
      return asked
    }
    return { database, comesBack, checkout, ask }
  }

  test('says nothing of the undo: nothing is stuck, and the next attempt goes on', async () => {
    const { database, comesBack, checkout, ask } = openDown()
    const told = { code: 'OUTCOME_UNKNOWN', cause: { message: 'connect ECONNREFUSED' } }
    expect(await ask()).toMatchObject(told)
    const steps = [{ name: 'order', state: 'done' }]
    expect(await checkout.status('1')).toMatchObject({ state: 'waiting', direction: 'backward', steps })
    comesBack()
    expect(await ask()).toMatchObject({ name: 'FinalError', message: 'no' })
    expect(database.undone).toBe(1)
  })

  test('in every attempt is left to a person, as is one that dies in every attempt', async () => {
    const { database, comesBack, checkout, ask } = openDown()
    for (let attempt = 0; attempt < 3; attempt++) expect(await ask()).toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(await ask()).toMatchObject({ code: 'PARKED', message: expect.stringContaining('failed, died or hung') })
    comesBack()
    await checkout.resume('1')
    expect(await ask()).toMatchObject({ message: 'no' })
    expect(database.undone).toBe(1)
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
    expect(await checkout.status('1')).toMatchObject({ state: 'parked', direction: 'backward' })
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

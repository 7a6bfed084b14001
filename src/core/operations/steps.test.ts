import { describe, expect, test, vi } from 'vitest'
import { codeOf, define, dieIn, never, openShop, thrown } from '../../../test/operations/shop.ts'
import type { Body, Shop } from '../../../test/operations/shop.ts'
import { soon } from '../../../test/soon.ts'
import { memoryStore } from '../../stores/memory.ts'
import { FinalError, NotBegunError, OnceError } from '../errors.ts'
import { deriveKey } from '../key.ts'
import type { OperationOp, StepContext } from './step.ts'
import type { BegunStep, Change } from '../store.ts'

describe('steps', () => {
  test('each step runs once, and a retry of the operation is told what it came to', async () => {
    const once = openShop().process()
    const [reserve, charge] = [vi.fn(() => 'held'), vi.fn(async () => ({ charge: 7 }))]
    const checkout = define(once, async (op) => {
      const held = await op.step('reserve', reserve)
      return { held, ...(await op.step('charge', charge)) }
    })
    expect(await checkout.run('1', { total: 5 })).toEqual({
      value: { held: 'held', charge: 7 },
      replayed: false,
      attempt: 1,
    })
    expect(await checkout.run('1', { total: 5 })).toMatchObject({ value: { held: 'held', charge: 7 }, replayed: true })
    expect([reserve.mock.calls.length, charge.mock.calls.length]).toEqual([1, 1])
  })

  test('a later attempt is given the stored result of a step that is done, and its run is not called', async () => {
    const once = openShop().process()
    const reserve = vi.fn(() => new Date(0))
    const seen: unknown[] = []
    let fail = true
    const checkout = define(once, async (op) => {
      seen.push(await op.step('reserve', reserve))
      if (fail) throw new Error('the process had a bad day')
      return 'done'
    })
    expect((await thrown(checkout.run('1', {}))).message).toBe('the process had a bad day')
    fail = false
    expect(await checkout.run('1', {})).toMatchObject({ value: 'done', attempt: 2 })
    expect(reserve).toHaveBeenCalledTimes(1)
    // The first attempt is given what every later one is given.
    expect(seen).toEqual(['1970-01-01T00:00:00.000Z', '1970-01-01T00:00:00.000Z'])
  })

  test('a step whose result cannot be stored is not done: mended code goes on, under the same key', async () => {
    const { process } = openShop()
    const keys: string[] = []
    const body =
      (result: unknown): Body =>
      (op) =>
        op.step('a', ({ key }) => {
          keys.push(key)
          return result
        })
    const error = await thrown(
      define(
        process(),
        body(() => {}),
      ).run('1', {}),
    )
    expect(error).toMatchObject({ code: 'OUTCOME_NOT_STORED', executed: 'unknown' })
    expect(error.message).toContain('step "a" of shop/operations/checkout/1')
    const mended = define(process(), body('fine'))
    expect((await mended.status('1'))?.inDoubt).toEqual(['a'])
    expect((await mended.run('1', {})).value).toBe('fine')
    expect(keys).toEqual([keys[0], keys[0]])
  })

  test('the derived key of a step is the same on every attempt, and differs from step to step', async () => {
    const once = openShop().process()
    const keys: string[] = []
    let tries = 0
    const checkout = define(once, async (op) => {
      await op.step('a', (step) => void keys.push(step.key))
      await op.step('b', (step) => {
        keys.push(step.key)
        if (++tries < 3) throw new Error('not yet')
      })
      return op.step('undo:b', (step) => void keys.push(step.key))
    })
    await thrown(checkout.run('1', {}))
    await thrown(checkout.run('1', {}))
    await checkout.run('1', {})
    expect(keys).toHaveLength(5)
    expect(new Set(keys).size).toBe(3)
    expect(keys[1]).toBe(keys[3])
  })

  test('the same id with another input is a MISMATCH, and runs nothing', async () => {
    const once = openShop().process()
    const run = vi.fn(() => 'once')
    const checkout = define(once, (op) => op.step('a', run))
    await checkout.run('1', { total: 5 })
    expect(await codeOf(checkout.run('1', { total: 6 }))).toBe('MISMATCH')
    expect(await codeOf(checkout.start('1', { total: 6 }))).toBe('MISMATCH')
    expect(run).toHaveBeenCalledTimes(1)
  })

  test('a step asked with another fingerprint is a MISMATCH, and runs nothing', async () => {
    const once = openShop().process()
    const run = vi.fn()
    let amount = 5
    const checkout = define(once, async (op) => {
      await op.step('charge', { run, fingerprint: { amount } })
      throw new Error('later')
    })
    await thrown(checkout.run('1', {}))
    amount = 6
    expect(await codeOf(checkout.run('1', {}))).toBe('MISMATCH')
    expect(run).toHaveBeenCalledTimes(1)
  })

  test('steps run in parallel, and in loops with an index in their names; one name twice is refused', async () => {
    const once = openShop().process()
    const checkout = define(once, async (op) => {
      const both = await Promise.all([op.step('a', async () => 1), op.step('b', async () => 2)])
      for (let n = 0; n < 3; n++) both.push(await op.step(`line ${n}`, () => 10 + n))
      return both
    })
    expect((await checkout.run('1', {})).value).toEqual([1, 2, 10, 11, 12])
    const twice = once.operation('twice', {}, async (op) => {
      await op.step('a', () => 1)
      await op.step('a', () => 2)
    })
    expect(await codeOf(twice.run('1', {}))).toBe('INVALID_ARGUMENT')
  })

  test('an input that its codec encodes differently each time is the same input', async () => {
    let nonce = 0
    const codec = {
      encode: (value: unknown) => Buffer.from(JSON.stringify([nonce++, value])),
      decode: (bytes: Uint8Array) => (JSON.parse(Buffer.from(bytes).toString()) as [number, unknown])[1],
    }
    const once = openShop().process({ codec })
    const charge = vi.fn(() => 'charged')
    const checkout = define(once, async (op, input) => ({ input, charged: await op.step('charge', charge) }))
    const value = { input: { total: 5 }, charged: 'charged' }
    expect(await checkout.run('1', { total: 5 })).toMatchObject({ value, replayed: false })
    expect(await checkout.run('1', { total: 5 })).toMatchObject({ value, replayed: true })
    expect(await codeOf(checkout.run('1', { total: 6 }))).toBe('MISMATCH')
    expect(charge).toHaveBeenCalledTimes(1)
  })

  test('a function that hangs keeps no transaction open, and begins no step after it was given up', async () => {
    const { process, clock, data } = openShop()
    const store = memoryStore({ data })
    const abandon = vi.fn(async () => {})
    const hung = Promise.withResolvers<void>()
    const begun: BegunStep<null> = { tx: null, commit: () => never, rollback: () => never, abandon }
    const stuck = { ...store, beginStep: async () => begun, isConflict: () => false } as unknown as typeof store
    const charge = vi.fn()
    const late = Promise.withResolvers<unknown>()
    const body: Body = async (op) => {
      await Promise.race([op.transaction('order', () => never), hung.promise])
      await op.step('charge', charge).catch(late.resolve)
    }
    const asked = codeOf(define(process({ store: stuck }), body, { leaseMs: 1_000, attemptMs: 5_000 }).run('1', {}))
    await clock.advance(5_500)
    expect(abandon).not.toHaveBeenCalled()
    await clock.advance(1_000)
    expect(await asked).toBe('DEADLINE_PASSED')
    expect(abandon).toHaveBeenCalledTimes(1)
    hung.resolve()
    expect(await soon('the late step', late.promise)).toMatchObject({ code: 'INVALID_ARGUMENT' })
    expect(charge).not.toHaveBeenCalled()
  })

  test('a transaction that is opened for a function that was given up meanwhile is rolled back', async () => {
    const { process, clock, data } = openShop()
    const store = memoryStore({ data })
    const rollback = vi.fn(async () => {})
    const opened = Promise.withResolvers<BegunStep<null>>()
    const slow = { ...store, beginStep: () => opened.promise, isConflict: () => false } as unknown as typeof store
    const order = vi.fn(() => never)
    const once = process({ store: slow, storeTimeoutMs: 60_000 })
    const body: Body = (op) => op.transaction('order', order)
    const asked = codeOf(define(once, body, { leaseMs: 1_000, attemptMs: 5_000 }).run('1', {}))
    await clock.advance(7_000)
    expect(await asked).toBe('DEADLINE_PASSED')
    opened.resolve({ tx: null, commit: () => never, rollback, abandon: async () => {} })
    await clock.advance(0)
    expect(rollback).toHaveBeenCalledTimes(1)
    expect(order).not.toHaveBeenCalled()
  })

  test('an attempt that lost its claim is told so, also when another of its steps would park the operation', async () => {
    const here = openShop()
    const { data, clock } = here
    const store = memoryStore({ data })
    const body: Body = async (op) => {
      const parked = op.step('charge', { inDoubt: 'park', run: () => 'charged' }).catch(() => {})
      await op.step('lost', async () => {
        await store.mend(op.key, 'release', 'manually')
      })
      await parked
    }
    await dieIn('charge', here, (op) => op.step('charge', { inDoubt: 'park', run: () => 'charged' }))
    await clock.advance(700_000)
    const checkout = define(here.process(), body)
    expect(await codeOf(checkout.run('1', { total: 5 }))).toBe('CLAIM_LOST')
  })

  test('a step asked for after the function ended is refused', async () => {
    const once = openShop().process()
    let late: OperationOp<never, 'codec'> | undefined
    const checkout = define(once, (op) => void (late = op))
    await checkout.run('1', {})
    expect(await codeOf(late!.step('late', () => 1))).toBe('INVALID_ARGUMENT')
  })

  test('a step is tried again within the attempt as often as its retry says', async () => {
    const { process, clock } = openShop()
    let tries = 0
    const checkout = define(process(), (op) =>
      op.step('a', {
        run: () => {
          if (++tries < 3) throw new Error('hiccup')
          return tries
        },
        retry: { attempts: 3, firstMs: 100 },
      }),
    )
    const result = checkout.run('1', {})
    await clock.advance(1_000)
    expect((await result).value).toBe(3)
  })

  test('a step that outlives its timeoutMs fails, with its signal aborted, and is in doubt', async () => {
    const { process, clock } = openShop()
    let signal: AbortSignal | undefined
    const checkout = define(process(), (op) =>
      op.step('slow', {
        run: (step) => {
          signal = step.signal
          return never
        },
        timeoutMs: 500,
      }),
    )
    const result = thrown(checkout.run('1', {}))
    await clock.advance(600)
    expect((await result).message).toContain('timeoutMs of 500')
    expect(signal?.aborted).toBe(true)
    expect((await checkout.status('1'))?.inDoubt).toEqual(['slow'])
  })

  test('an operation that was taken over cannot write a step, and its signal aborts', async () => {
    const { process, clock } = openShop()
    const gate = Promise.withResolvers<string>()
    const zombieOnce = process({ leaseMs: 1_000 })
    let op: OperationOp<never, 'codec'> | undefined
    const zombie = define(zombieOnce, (given) => {
      op = given
      return given.step('a', () => gate.promise)
    })
    const lost = codeOf(zombie.run('1', {}))
    await clock.advance(0)
    await zombieOnce.release({ scope: zombie.scope, id: '1' }, 'its machine is gone')
    const other = define(process(), (given) => given.step('a', () => 'the other'))
    expect((await other.run('1', {})).value).toBe('the other')
    gate.resolve('the zombie')
    expect(await lost).toBe('CLAIM_LOST')
    expect(op!.signal.aborted).toBe(true)
    expect((await other.run('1', {})).value).toBe('the other')
  })

  test('a transaction that began too late and does not roll back does not keep close waiting (seed 201587)', async () => {
    const { process, clock, data } = openShop()
    const store = memoryStore({ data })
    const begun = Promise.withResolvers<BegunStep<null>>()
    const abandon = vi.fn(async () => {})
    const late = { ...store, beginStep: () => begun.promise, isConflict: () => false } as unknown as typeof store
    const once = process({ store: late, storeTimeoutMs: 100 })
    const asked = thrown(define(once, (op) => op.transaction('order', () => 1)).run('1', {}))
    await clock.advance(1_000)
    await asked
    begun.resolve({ tx: null, commit: () => never, rollback: () => never, abandon })
    await clock.advance(0)
    const closed = once.close()
    await clock.advance(60_000)
    await closed
    expect(abandon).toHaveBeenCalledTimes(1)
  })

  test('a step that nobody waits for and that fails is a failure of the operation, not of the process', async () => {
    const unhandled = vi.fn()
    process.on('unhandledRejection', unhandled)
    const { process: start, clock } = openShop()
    const checkout = define(start(), (op) => {
      void op.step('mail', async () => {
        throw new Error('the mail server is down')
      })
      return 'sent'
    })
    expect((await thrown(checkout.run('1', {}))).message).toBe('the mail server is down')
    expect(await checkout.status('1')).toMatchObject({ state: 'waiting', inDoubt: ['mail'] })
    await clock.advance(10)
    await new Promise((resolve) => setImmediate(resolve))
    process.off('unhandledRejection', unhandled)
    expect(unhandled).not.toHaveBeenCalled()
  })

  test('a result too large for the store is told as not stored, and nothing is undone', async () => {
    const { process, data } = openShop()
    const store = memoryStore({ data })
    const advance: typeof store.advance = async (claim, change) => {
      if (change.becomes.to === 'settled' && change.becomes.outcome.length > 1_000) {
        throw new OnceError('OUTCOME_NOT_STORED', { message: 'too large for this store' })
      }
      return store.advance(claim, change)
    }
    const checkout = define(process({ store: Object.assign({}, store, { advance }) }), () => 'x'.repeat(2_000))
    expect(await codeOf(checkout.run('1', {}))).toBe('OUTCOME_NOT_STORED')
    expect(await checkout.status('1')).toMatchObject({ state: 'completed' })
    expect(await codeOf(checkout.run('1', {}))).toBe('OUTCOME_NOT_STORED')
  })

  test('a reason that text cannot hold, and a misspelt back-off, are refused at once', async () => {
    const once = openShop().process()
    const checkout = define(once, () => 1)
    for (const reason of ['', ' ', 'a\0b', '\ud800', 'x'.repeat(1_001)]) {
      expect(await codeOf(checkout.cancel('1', reason))).toBe('INVALID_ARGUMENT')
    }
    expect(() => once.operation('other', { backoff: { first: 1 } as never }, () => 1)).toThrow(
      'did you mean "firstMs"?',
    )
  })

  test('a thousand steps cost each as much as the first: two writes, and a record of its own', async () => {
    const { process, data } = openShop()
    const store = memoryStore({ data })
    const sizes: number[] = []
    const advance: typeof store.advance = async (claim, change) => {
      sizes.push(change.records.length)
      return store.advance(claim, change)
    }
    const steps = 1_000
    const checkout = define(process({ store: Object.assign({}, store, { advance }) }), async (op) => {
      for (let n = 0; n < steps; n++) await op.step(`line ${n}`, () => n)
      return steps
    })
    expect((await checkout.run('1', {})).value).toBe(steps)
    expect(sizes).toHaveLength(2 * steps + 1)
    expect(sizes.slice(1, -1).every((records) => records === 1)).toBe(true)
  })
})

describe('what is written together', () => {
  /** A store that tells the changes it was asked for, and can be told how to answer one. */
  function told({ data }: Shop) {
    const store = memoryStore({ data })
    const changes: Change[] = []
    let answer: ((change: Change) => Error | undefined) | undefined
    const advance: typeof store.advance = async (claim, change) => {
      changes.push(change)
      const error = answer?.(change)
      if (error) throw error
      return store.advance(claim, change)
    }
    const names = (): string[][] => changes.map(({ records }) => records.map(({ name }) => name))
    const failing = (how: typeof answer): void => void (answer = how)
    return { store: Object.assign({}, store, { advance }), changes, names, failing }
  }

  test('steps asked for in one go share one write, and the course of the operation is in it once', async () => {
    const here = openShop()
    const { store, names } = told(here)
    const checkout = define(here.process({ store }), (op) =>
      Promise.all(['a', 'b', 'c'].map((name) => op.step(name, () => name))),
    )
    expect((await checkout.run('1', {})).value).toEqual(['a', 'b', 'c'])
    expect(names()).toEqual([['', 'a', 'b', 'c'], ['a', 'b', 'c'], []])
  })

  test('a result that the store refuses does not take that of a parallel step along', async () => {
    const here = openShop()
    const { store, failing } = told(here)
    const isLarge = ({ records }: Change): boolean => records.some(({ content }) => content.length > 1_000)
    failing((change) => (isLarge(change) ? new OnceError('OUTCOME_NOT_STORED', { message: 'too large' }) : undefined))
    const checkout = define(here.process({ store }), (op) =>
      Promise.all([op.step('large', () => 'x'.repeat(2_000)), op.step('small', () => 'small')]),
    )
    expect(await codeOf(checkout.run('1', {}))).toBe('OUTCOME_NOT_STORED')
    const { steps, inDoubt } = (await checkout.status('1'))!
    expect(steps.map(({ name, state }) => `${name} ${state}`)).toEqual(['large began', 'small done'])
    expect(inDoubt).toEqual(['large'])
  })

  test('a function that returns the very promise of a step: its record and the end are one write', async () => {
    const here = openShop()
    const { store, changes, names } = told(here)
    const heard: string[] = []
    const checkout = define(here.process({ store }), (op) => {
      const charge = op.step('charge', () => 'paid')
      void charge.then(() => heard.push(`heard after ${changes.length} writes`))
      return charge
    })
    expect(await checkout.run('1', {})).toMatchObject({ value: 'paid', replayed: false })
    expect(names()).toEqual([['', 'charge'], ['charge']])
    expect(changes.at(-1)?.becomes.to).toBe('settled')
    // Whoever else waits for the step is told when that is written, and not before.
    expect(heard).toEqual(['heard after 2 writes'])
    expect(await checkout.status('1')).toMatchObject({ state: 'completed', steps: [{ name: 'charge', state: 'done' }] })
  })

  test('when that one write fails nobody was told, and the step is in doubt', async () => {
    const here = openShop()
    const { store, failing } = told(here)
    const [run, heard] = [vi.fn(() => 'paid'), vi.fn()]
    const lookup = vi.fn(() => ({ found: 'paid' }))
    const body: Body = (op) => {
      const charge = op.step('charge', { run, lookup })
      void charge.then(heard)
      return charge
    }
    const once = here.process({ store })
    failing(({ becomes }) => (becomes.to === 'settled' ? new Error('the network is gone') : undefined))
    const first = define(once, body).run('1', {})
    const refused = codeOf(first)
    await here.clock.advance(60_000)
    expect(await refused).toBe('OUTCOME_UNKNOWN')
    expect(heard).not.toHaveBeenCalled()
    failing(undefined)
    const again = define(here.process(), body)
    expect((await again.status('1'))?.inDoubt).toEqual(['charge'])
    expect((await again.run('1', {})).value).toBe('paid')
    expect([run.mock.calls.length, lookup.mock.calls.length]).toEqual([1, 1])
  })

  test.each([1, 2, 3].flatMap((call) => [`before ${call}`, `after ${call}`]))(
    'a process that dies %s store calls of an operation that is one step leaves one effect and its answer',
    async (when) => {
      const here = openShop()
      const charges = new Map<string, number>()
      const body: Body = (op) =>
        op.step('charge', {
          run: ({ key }) => {
            charges.set(key, (charges.get(key) ?? 0) + 1)
            return 'paid'
          },
          lookup: ({ key }) => (charges.has(key) ? { found: 'paid' } : 'not-found'),
        })
      const store = memoryStore({ data: here.data })
      let calls = 0
      const dying = async <T>(call: () => Promise<T>): Promise<T> => {
        calls++
        if (calls > Number(when.split(' ')[1]) || when === `before ${calls}`) return never
        const answer = await call()
        return when === `after ${calls}` ? never : answer
      }
      const enlist: typeof store.enlist = (...asked) => dying(() => store.enlist(...asked))
      const advance: typeof store.advance = (...asked) => dying(() => store.advance(...asked))
      const extend: typeof store.extend = () => never
      const dead = here.process({ store: Object.assign({}, store, { enlist, advance, extend }), storeTimeoutMs: 1e9 })
      void define(dead, body)
        .run('1', {})
        .catch(() => {})
      await here.clock.advance(60_000)
      expect(calls).toBe(Number(when.split(' ')[1]))
      expect((await define(here.process(), body).run('1', {})).value).toBe('paid')
      expect([...charges.values()]).toEqual([1])
    },
  )

  test('a step that another one runs beside is recorded by itself, though the function returns its promise', async () => {
    const here = openShop()
    const { store, names } = told(here)
    const slow = Promise.withResolvers<void>()
    const checkout = define(here.process({ store }), (op) => {
      void op.step('slow', () => slow.promise)
      return op.step('charge', () => 'paid')
    })
    const running = checkout.run('1', {})
    await vi.waitFor(() => expect(names()).toEqual([['', 'slow', 'charge'], ['charge']]), 30_000)
    slow.resolve()
    expect((await running).value).toBe('paid')
    expect(names().slice(2)).toEqual([['slow'], []])
  })
})

test('a step that took no effect may become another one: its fingerprint binds nobody', async () => {
  const once = openShop().process()
  let asked = 1
  const run = vi.fn(() => {
    if (asked === 1) throw new NotBegunError('too many requests')
    return 'ran'
  })
  const checkout = define(once, (op) => op.step('charge', { run, fingerprint: { asked } }))
  await thrown(checkout.run('1', {}))
  asked = 2
  expect((await checkout.run('1', {})).value).toBe('ran')
})

test('a function, a step, its lookup and its undo are given the claim of their attempt, and keys of their own', async () => {
  const here = openShop()
  const given: Record<string, object> = {}
  const take = (what: string, { key, token, fence, attempt, signal }: StepContext): void => {
    given[what] = { key, token, fence, attempt, aborted: signal.aborted }
  }
  const seen: { op?: object } = {}
  const checkout = define(here.process({ sweepEveryMs: false }), async (op) => {
    const { key, attempt, token, fence, signal } = op
    seen.op = { key, attempt, token, fence, aborted: signal.aborted, derived: op.keyFor('step:plain') }
    await op.step('plain', { run: (step) => take('run', step), undo: (step) => take('undo', step) })
    await op.step('limited', { timeoutMs: 5_000, run: (step) => take('limited', step) })
    await op.step('doubtful', {
      run: () => Promise.reject(new Error('no answer')),
      lookup: (step) => (take('lookup', step), { found: 1 }),
      retry: { attempts: 2, firstMs: 1 },
    })
    throw new FinalError('no')
  })
  const failing = thrown(checkout.run('1', {}))
  await here.clock.advance(100)
  await failing
  const { token, fence } = [...here.data.entries.values()][0]!
  const subject = { scope: 'shop/operations/checkout', id: '1' }
  const claim = { token, fence, attempt: 1, aborted: false }
  expect(seen.op).toEqual({ key: subject, ...claim, derived: deriveKey(subject, 'step:plain') })
  expect(given).toEqual({
    run: { key: deriveKey(subject, 'step:plain'), ...claim },
    undo: { key: deriveKey(subject, 'undo:plain'), ...claim },
    limited: { key: deriveKey(subject, 'step:limited'), ...claim },
    lookup: { key: deriveKey(subject, 'step:doubtful'), ...claim },
  })
})

test('a step with a timeoutMs follows the signal of its attempt, and throws what its code throws at once', async () => {
  const here = openShop()
  const signals: AbortSignal[] = []
  const once = here.process({ sweepEveryMs: false, attemptMs: 1_000, leaseMs: 1_000 })
  const checkout = define(once, (op) =>
    op.step('a', {
      timeoutMs: 60_000,
      run: ({ signal }) => {
        signals.push(signal)
        return never
      },
    }),
  )
  const failing = codeOf(checkout.run('1', {}))
  await here.clock.advance(1_000)
  expect(signals[0]!.reason).toMatchObject({ code: 'DEADLINE_PASSED' })
  await here.clock.advance(1_000)
  expect(await failing).toBe('DEADLINE_PASSED')
  const throwing = once.operation('throwing', {}, (op) =>
    op.step('a', {
      timeoutMs: 60_000,
      run: () => {
        throw new FinalError('no such card')
      },
    }),
  )
  expect((await thrown(throwing.run('1', {}))).message).toBe('no such card')
})

// What a call used is gone when it is over: no timer waits, no listener is left, and nothing holds what the effect was given, while
// the process goes on with the same `once`.

import { getEventListeners } from 'node:events'
import { setImmediate } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { define, openShop } from '../../test/operations/shop.ts'
import type { Body } from '../../test/operations/shop.ts'
import { sleep } from './clock.ts'
import { FinalError } from './errors.ts'
import type { Op } from './call.ts'
import type { Step, StepContext } from './operations.ts'

setFlagsFromString('--expose-gc')
const collectGarbage = runInNewContext('gc') as () => void

/** Every signal that a controller made, as long as anything holds it. */
let signals: WeakRef<AbortSignal>[] = []

beforeEach(() => {
  signals = []
  class Watched extends AbortController {
    constructor() {
      super()
      signals.push(new WeakRef(this.signal))
    }
  }
  vi.stubGlobal('AbortController', Watched)
})
afterEach(() => void vi.unstubAllGlobals())

function openGround() {
  const { clock, process } = openShop()
  const once = process({ sweepEveryMs: false })
  let step: Step<unknown> | undefined
  const body: Body = (op) => {
    const { run, ...options } = step!
    const listening = (context: StepContext): unknown => {
      // As code does that has more than one signal at hand.
      context.signal.addEventListener('abort', () => op.signal.aborted)
      return run(context)
    }
    return op.step('charge', { ...options, run: listening })
  }
  const checkout = define(once, body, { attempts: 1 })
  const given: WeakRef<object>[] = []
  return {
    clock,
    once,
    checkout,
    given,
    /** What an effect is given, with a listener that it never removes. */
    take(op: Op | StepContext): void {
      given.push(new WeakRef(op), new WeakRef(op.signal))
      op.signal.addEventListener('abort', () => op.token)
    },
    async inStep(id: string, run: Step<unknown>): Promise<void> {
      step = run
      await checkout.run(id, {})
    },
  }
}

type Ground = ReturnType<typeof openGround>

interface Kind {
  readonly what: string
  call(ground: Ground, id: string): Promise<unknown>
  /** How far the clock moves meanwhile. Default not at all. */
  readonly takesMs?: number
}

const kinds: readonly Kind[] = [
  { what: 'an effect that returns', call: ({ once, take }, id) => once.run(id, (op) => take(op)) },
  {
    what: 'an effect that throws',
    call: ({ once, take }, id) =>
      once.run(id, (op) => {
        take(op)
        throw new Error('down')
      }),
  },
  {
    what: 'an effect that fails for good',
    call: ({ once, take }, id) =>
      once.run(id, (op) => {
        take(op)
        throw new FinalError('declined')
      }),
  },
  {
    what: 'an effect that outlives its first lease',
    takesMs: 100_000,
    call: ({ once, take, clock }, id) =>
      once.run(id, (op) => {
        take(op)
        return sleep(clock, 90_000, { signal: op.signal })
      }),
  },
  {
    what: 'an effect that outlives its deadline',
    takesMs: 200_000,
    call: ({ once, take, clock }, id) =>
      once.run(
        id,
        (op) => {
          take(op)
          return sleep(clock, 150_000)
        },
        { attemptMs: 1_000 },
      ),
  },
  {
    what: 'callers that wait for one another',
    takesMs: 10_000,
    call: ({ once, take, clock }, id) => {
      const effect = (op: Op): Promise<void> => {
        take(op)
        return sleep(clock, 1_000)
      }
      return Promise.all([once.run(id, effect), once.run(id, effect), once.run(id, effect)])
    },
  },
  { what: 'a step', call: ({ inStep, take }, id) => inStep(id, { run: (context) => take(context) }) },
  {
    what: 'a step that ends within its timeoutMs',
    call: ({ inStep, take }, id) => inStep(id, { timeoutMs: 5_000, run: (context) => take(context) }),
  },
  {
    what: 'a step that outlives its timeoutMs',
    takesMs: 100_000,
    call: ({ inStep, take, clock }, id) =>
      inStep(id, {
        timeoutMs: 1_000,
        run: (context) => {
          take(context)
          return sleep(clock, 50_000)
        },
      }),
  },
  {
    what: 'a worker that is stopped',
    takesMs: 10_000,
    async call({ once, checkout, clock }) {
      const worker = once.recover([checkout])
      await sleep(clock, 5_000)
      await worker.stop()
    },
  },
]

const calls = 20
const roundsMax = 20

function alive<T extends object>(all: readonly WeakRef<T>[]): T[] {
  return all.map((each) => each.deref()).filter((each) => each !== undefined)
}

test.each(kinds)('after $what, no timer, no listener and nothing that it was given is left', async (kind) => {
  const ground = openGround()
  for (let n = 0; n < calls; n++) {
    const ended = kind.call(ground, `${n}`).catch(() => {})
    await ground.clock.advance(kind.takesMs ?? 0)
    await ended
  }
  await ground.inStep('last', { run: () => 'done' }) // so that nothing here holds the last step
  expect(ground.clock.pending).toBe(0)
  const held = (): number => alive(ground.given).length + alive(signals).length
  for (let rounds = 0; rounds < roundsMax && held() > 1; rounds++) {
    await setImmediate()
    collectGarbage()
  }
  // The engine may hold on to what it touched last. What leaks is held for every call.
  expect(alive(ground.given).length).toBeLessThan(calls / 2)
  const left = alive(signals)
  expect(left.length, 'signals, with the one by which close() is told').toBeLessThan(calls / 2)
  expect(getEventListeners(left[0]!, 'abort')).toHaveLength(0)
})

test('steps that ended leave no listener at the signal of their attempt, however many there were', async () => {
  const { once } = openGround()
  const listeners = once.operation('many', {}, async (op) => {
    for (let n = 0; n < calls; n++) await op.step(`step ${n}`, { timeoutMs: 5_000, run: () => n })
    return getEventListeners(op.signal, 'abort').length
  })
  expect((await listeners.run('1', {})).value).toBe(0)
})

test('a sweeper waits with one timer and one listener, however often it has swept', async () => {
  const { clock, process } = openShop()
  const once = process({ sweepEveryMs: 1_000 })
  await clock.advance(calls * 1_000)
  expect(clock.pending).toBe(1)
  expect(getEventListeners(signals[0]!.deref()!, 'abort')).toHaveLength(1)
  await once.close()
  expect(clock.pending).toBe(0)
})

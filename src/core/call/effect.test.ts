import { describe, expect, test, vi } from 'vitest'
import { manualClock } from '../../testing/manual-clock.ts'
import { OnceError } from '../errors.ts'
import { deriveKey, key } from '../key.ts'
import { createOp, isObject, isThenable, startEffect } from './effect.ts'
import type { Ended, Op } from './effect.ts'

const claim = { key: key('payments', '42'), token: 't', attempt: 2, fence: 9 }
const settings = { attemptMs: 1_000, leaseMs: 300 }
const late = new OnceError('DEADLINE_PASSED', { message: 'late' })
const lost = new OnceError('CLAIM_LOST', { message: 'lost' })
const hung = (): Promise<never> => new Promise<never>(() => {})

function start(effect: (op: Op) => unknown) {
  const clock = manualClock()
  const onDeadline = vi.fn(() => late)
  const running = startEffect(clock, { claim, settings, onDeadline }, effect)
  const ended: Ended[] = []
  void Promise.resolve(running.ended).then((how) => ended.push(how))
  return { clock, onDeadline, running, ended }
}

describe('an effect', () => {
  test('is given its claim, and functions that need no op', () => {
    const { running } = start(({ keyFor, ...op }) => [op.key, op.attempt, op.token, op.fence, keyFor('a')])
    expect(running.ended).toMatchObject({ is: 'returned' })
    const given = createOp(claim, () => AbortSignal.abort('why'))
    const { keyFor } = given
    expect(keyFor('a')).toBe(deriveKey(claim.key, 'a'))
    expect(given).toMatchObject(claim)
    expect(given.signal.reason).toBe('why')
  })

  test('that returns no promise, or throws, has ended at once, and leaves no timer', () => {
    const failure = new Error('down')
    const [returned, threw] = [
      start(() => 5),
      start(() => {
        throw failure
      }),
    ]
    expect(returned.running.ended).toEqual({ is: 'returned', value: 5 })
    expect(threw.running.ended).toEqual({ is: 'threw', thrown: failure })
    expect([returned.clock.pending, threw.clock.pending]).toEqual([0, 0])
  })

  test('that returns a promise, or what can be awaited, ends with it', async () => {
    const failure = new Error('down')
    // oxlint-disable-next-line unicorn/no-thenable
    const builder = Object.assign(() => {}, { then: (done: (value: string) => void) => done('built') })
    const all = [start(async () => 5), start(() => Promise.reject(failure)), start(() => builder)]
    for (const { clock } of all) await clock.advance(0)
    expect(all.map(({ ended }) => ended[0])).toEqual([
      { is: 'returned', value: 5 },
      { is: 'threw', thrown: failure },
      { is: 'returned', value: 'built' },
    ])
    expect(all.map(({ clock }) => clock.pending)).toEqual([0, 0, 0])
  })

  test('that outlives its deadline is told by its signal, and given up a lease later', async () => {
    let signal: AbortSignal | undefined
    const { clock, ended, onDeadline } = start((op) => ((signal = op.signal), hung()))
    await clock.advance(999)
    expect([signal!.aborted, onDeadline.mock.calls.length]).toEqual([false, 0])
    await clock.advance(1)
    expect(signal!.reason).toBe(late)
    await clock.advance(299)
    expect(ended).toEqual([])
    await clock.advance(1)
    expect(ended).toEqual([{ is: 'hung', thrown: late }])
    expect(onDeadline).toHaveBeenCalledTimes(1)
    expect(clock.pending).toBe(0)
  })

  test('whose claim is lost is told so once, and has a lease from then on', async () => {
    const signals: AbortSignal[] = []
    const { clock, running, ended, onDeadline } = start((op) => (signals.push(op.signal), hung()))
    await clock.advance(500)
    running.abort(lost)
    running.abort(late)
    expect(signals[0]!.reason).toBe(lost)
    // A signal that is asked for later is aborted as well, and it is the same.
    expect(running.signal()).toBe(signals[0])
    await clock.advance(299)
    expect(ended).toEqual([])
    await clock.advance(1)
    expect(ended).toEqual([{ is: 'hung', thrown: lost }])
    expect(onDeadline).not.toHaveBeenCalled()
    expect(clock.pending).toBe(0)
  })

  test('that asks for its signal after it aborted gets one that has', () => {
    const { running } = start(hung)
    running.abort(lost)
    expect(running.signal().reason).toBe(lost)
  })

  test('that ends within its last lease ends as it did', async () => {
    const gate = Promise.withResolvers<string>()
    const { clock, ended } = start(() => gate.promise)
    await clock.advance(1_200)
    gate.resolve('just in time')
    await clock.advance(10_000)
    expect(ended).toEqual([{ is: 'returned', value: 'just in time' }])
  })

  test('that has ended sets no timer when its claim is lost afterwards', async () => {
    const { clock, running } = start(async () => 5)
    await clock.advance(0)
    running.abort(lost)
    expect(clock.pending).toBe(0)
    expect(running.signal().reason).toBe(lost)
  })
})

test('objects and functions are objects, and those with a then can be awaited', () => {
  // oxlint-disable-next-line unicorn/no-thenable
  const thenable = { then: () => {} }
  expect([{}, [], () => {}, null, undefined, 'text', 5].map(isObject)).toEqual([
    true,
    true,
    true,
    false,
    false,
    false,
    false,
  ])
  expect([thenable, Object.assign(() => {}, thenable), Promise.resolve()].map(isThenable)).toEqual([true, true, true])
  // oxlint-disable-next-line unicorn/no-thenable
  expect([{}, { then: 5 }, null, undefined, 'then'].map(isThenable)).toEqual([false, false, false, false, false])
})

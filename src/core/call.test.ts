// What every kind of call has in common: how it is read, and how each verdict of the store is told.

import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { memoryData, memoryStore } from '../stores/memory.ts'
import { manualClock } from '../testing/manual-clock.ts'
import { keyFrom, undoneAsNotStored, valueOf } from './call.ts'
import { FinalError } from './errors.ts'
import { key } from './key.ts'
import { createOnce } from './once.ts'
import type { OnceOptions } from './settings.ts'
import type { Store, Verdict } from './store.ts'

function world(options: Partial<OnceOptions> = {}) {
  const clock = manualClock()
  const data = memoryData(clock)
  const store = memoryStore({ data })
  const process = (more: Partial<OnceOptions> = {}) =>
    createOnce({ store, scope: 'payments', clock, sweepEveryMs: false, waitMs: 0, ...options, ...more })
  return { clock, data, store, process }
}

const heard: (readonly [name: string, event: object])[] = []
const listeners = ['replayed', 'mismatched', 'doubted', 'expired'].map((name) => ({
  channel: `onceonly:${name}`,
  listener(event: unknown): void {
    const { keyHash: _keyHash, scope: _scope, ...rest } = event as Record<string, unknown>
    heard.push([name, rest])
  },
}))
beforeEach(() => {
  heard.length = 0
  for (const { channel, listener } of listeners) subscribe(channel, listener)
})
afterEach(() => listeners.forEach(({ channel, listener }) => unsubscribe(channel, listener)))

describe('a verdict', () => {
  /** A store that answers every claim so, after 40 ms. */
  async function told(verdict: Verdict, options: Partial<OnceOptions> = {}): Promise<unknown> {
    const { clock, store, process } = world()
    const answering: Store = {
      ...store,
      claim: () => new Promise((resolve) => void clock.schedule(() => resolve(verdict), 40)),
    }
    await clock.advance(1_000)
    const call = process({ store: answering, ...options })
      .run('42', () => expect.fail('the effect ran'))
      .catch((error: unknown) => error)
    await clock.advance(100)
    return call
  }

  test('that is busy says when to ask again, in whole milliseconds', async () => {
    expect(await told({ is: 'busy', retryAfterMs: 12.3 })).toMatchObject({
      code: 'IN_FLIGHT',
      executed: 'unknown',
      retryable: true,
      retryAfterMs: 13,
      message: expect.stringContaining('payments/42 is running. Ask again with the same key, at the latest in 13 ms'),
    })
    expect(heard).toEqual([])
  })

  test('that is a mismatch, a doubt or an expired key is told as an event, and with the key', async () => {
    expect(await told({ is: 'mismatch' })).toMatchObject({
      code: 'MISMATCH',
      message: expect.stringContaining('payments/42'),
    })
    expect(await told({ is: 'doubt', attempt: 3 })).toMatchObject({
      code: 'IN_DOUBT',
      message: expect.stringContaining('Attempt 3 for payments/42 began and never reported'),
    })
    expect(await told({ is: 'expired' })).toMatchObject({
      code: 'EXPIRED',
      message: expect.stringContaining('payments/42'),
    })
    expect(heard).toEqual([
      ['mismatched', {}],
      ['doubted', { attempt: 3 }],
      ['expired', {}],
    ])
  })

  test('that is settled is replayed with its attempt, and says how long that took', async () => {
    const settled = { is: 'settled', outcome: Buffer.from('j"paid"'), version: 0, attempt: 4 } as const
    expect(await told(settled)).toEqual({ value: 'paid', replayed: true, attempt: 4 })
    expect(heard).toEqual([['replayed', { attempt: 4, durationMs: 40 }]])
  })

  test('that is settled by another version is brought up to date, once and only then', async () => {
    const upgrade = vi.fn((value: unknown, version: number) => [value, version])
    const of = (version: number): Verdict => ({ is: 'settled', outcome: Buffer.from('j1'), version, attempt: 1 })
    expect(await told(of(1), { version: 2, upgrade })).toMatchObject({ value: [1, 1] })
    expect(await told(of(2), { version: 2, upgrade })).toMatchObject({ value: 1 })
    expect(await told(of(0), { upgrade })).toMatchObject({ value: 1 })
    expect(await told(of(1), { upgrade })).toMatchObject({ value: [1, 1] })
    expect(upgrade).toHaveBeenCalledTimes(2)
    const cause = new Error('too old')
    const refuse = (): never => {
      throw cause
    }
    expect(await told(of(1), { version: 2, upgrade: refuse })).toMatchObject({
      code: 'OUTCOME_UNREADABLE',
      executed: 'yes',
      message: expect.stringContaining('The outcome of payments/42 was written by version 1'),
      cause,
    })
  })

  test('that is settled for every version is replayed as it is', async () => {
    const upgrade = vi.fn()
    const outcome = Buffer.from('rany;j1')
    expect(await told({ is: 'settled', outcome, version: 5, attempt: 1 }, { upgrade })).toMatchObject({ value: 1 })
    expect(upgrade).not.toHaveBeenCalled()
  })
})

describe('an outcome', () => {
  const subject = key('payments', '42')

  test('is its value, its failure, or the error that says why there is none', () => {
    const error = new FinalError('declined')
    expect(valueOf(subject, { kind: 'value', value: 5 })).toBe(5)
    expect(() => valueOf(subject, { kind: 'failure', error })).toThrow(error)
    expect(() => valueOf(subject, { kind: 'not-stored', reason: 'It is too large.' })).toThrow(
      expect.objectContaining({
        code: 'OUTCOME_NOT_STORED',
        executed: 'yes',
        message: expect.stringContaining(
          'payments/42 did run, but its value could not be stored: It is too large. It will',
        ),
      }),
    )
    expect(undoneAsNotStored(subject, 'a. b.')).toMatchObject({
      code: 'OUTCOME_NOT_STORED',
      executed: 'no',
      message: expect.stringContaining('cannot be stored: a. b. The effect'),
    })
  })

  test('of a key given as text is in the scope, and one given as a key is that key', () => {
    expect(keyFrom('payments', '42')).toEqual(subject)
    expect(keyFrom('other', subject)).toEqual(subject)
    expect(() => keyFrom('payments', { scope: 'a' } as never)).toThrow('expected id to be a string')
  })
})

describe('duplicates that wait', () => {
  test('wait together only when they would get the same result', async () => {
    const { clock, store, process } = world({ waitMs: 60_000 })
    const gate = Promise.withResolvers<string>()
    const first = process().run('42', () => gate.promise, { fingerprint: 1, onTakeover: 'refuse', onExpired: 'run' })
    await clock.advance(0)
    const claim = vi.spyOn(store, 'claim')
    const once = process()
    const duplicates = (['run', 'refuse'] as const).flatMap((onTakeover) =>
      (['run', 'refuse'] as const).flatMap((onExpired) =>
        [1, 2].map(() => once.run('42', () => 'never', { fingerprint: 1, onTakeover, onExpired })),
      ),
    )
    await clock.advance(0)
    expect(claim).toHaveBeenCalledTimes(8)
    claim.mockClear()
    await clock.advance(20)
    // One of the two of each group asks for both.
    expect(claim).toHaveBeenCalledTimes(4)
    gate.resolve('first')
    await first
    await clock.advance(1_000)
    expect(new Set((await Promise.all(duplicates)).map(({ value }) => value))).toEqual(new Set(['first']))
    expect(clock.pending).toBe(0)
  })
})

// Lane batching: who shares a dispatch with whom, and that every request gets its own answer, also when things go wrong.

import { setImmediate } from 'node:timers/promises'
import { describe, expect, test, vi } from 'vitest'
import { manualClock } from '../testing/manual-clock.ts'
import { systemClock } from './clock.ts'
import { lane } from './lane.ts'
import type { LaneOptions } from './lane.ts'

/** A lane of numbers, answered doubled, whose dispatches end when the test says so. */
function slowLane(options: Partial<LaneOptions<number, number>> = {}) {
  const batches: { readonly batch: readonly number[]; end(): void; fail(error: Error): void }[] = []
  const ask = lane<number, number>({
    batchMax: 100,
    dispatchesMax: 1,
    dispatch(batch) {
      const { promise, resolve, reject } = Promise.withResolvers<readonly number[]>()
      batches.push({ batch, end: () => resolve(batch.map((each) => each * 2)), fail: reject })
      return promise
    },
    ...options,
  })
  return { ask, batches, asked: () => batches.map(({ batch }) => batch) }
}

test('an idle lane dispatches at once, without a timer', async () => {
  const { ask, batches } = slowLane()
  const answer = ask(1)
  await Promise.resolve()
  expect(batches).toHaveLength(1)
  batches[0]!.end()
  expect(await answer).toBe(2)
})

test('calls made in one go are one batch, and each gets its own answer', async () => {
  const { ask, batches, asked } = slowLane()
  const answers = Promise.all([1, 2, 3].map(ask))
  await setImmediate()
  expect(asked()).toEqual([[1, 2, 3]])
  batches[0]!.end()
  expect(await answers).toEqual([2, 4, 6])
})

test('what arrives while a batch is under way forms the next one', async () => {
  const { ask, batches, asked } = slowLane()
  const answers = [ask(1)]
  await setImmediate()
  answers.push(ask(2))
  await setImmediate()
  answers.push(ask(3))
  await setImmediate()
  expect(asked()).toEqual([[1]])
  batches[0]!.end()
  await setImmediate()
  expect(asked()).toEqual([[1], [2, 3]])
  batches[1]!.end()
  expect(await Promise.all(answers)).toEqual([2, 4, 6])
})

test('more requests than batchMin are shared among the dispatches that are free', async () => {
  const { ask, asked } = slowLane({ batchMin: 2, batchMax: 4, dispatchesMax: 3 })
  void ask(0)
  await setImmediate()
  for (const each of [1, 2, 3, 4, 5, 6]) void ask(each)
  await setImmediate()
  expect(asked()).toEqual([[0], [1, 2, 3], [4, 5, 6]])
})

test('no dispatch takes less than batchMin while there are as many', async () => {
  const { ask, asked } = slowLane({ batchMin: 2, batchMax: 4, dispatchesMax: 3 })
  for (const each of [1, 2, 3]) void ask(each)
  await setImmediate()
  expect(asked()).toEqual([[1, 2], [3]])
})

test('no dispatch takes more than batchMax, in the order of arrival', async () => {
  const { ask, batches, asked } = slowLane({ batchMax: 2 })
  const answers = Promise.all([1, 2, 3, 4, 5].map(ask))
  for (const index of [0, 1, 2]) {
    await setImmediate()
    expect(batches).toHaveLength(index + 1)
    batches[index]!.end()
  }
  expect(await answers).toEqual([2, 4, 6, 8, 10])
  expect(asked()).toEqual([[1, 2], [3, 4], [5]])
})

test('no more than dispatchesMax are under way at once, and whichever ends first makes room', async () => {
  const { ask, batches, asked } = slowLane({ batchMax: 1, dispatchesMax: 2 })
  const answers = Promise.all([1, 2, 3].map(ask))
  await setImmediate()
  expect(asked()).toEqual([[1], [2]])
  batches[1]!.end()
  await setImmediate()
  expect(asked()).toEqual([[1], [2], [3]])
  batches[2]!.end()
  batches[0]!.end()
  expect(await answers).toEqual([2, 4, 6])
})

test('a dispatch that rejects fails its own batch and no other', async () => {
  const { ask, batches } = slowLane({ batchMax: 2 })
  const answers = Promise.allSettled([1, 2, 3].map(ask))
  await setImmediate()
  batches[0]!.fail(new Error('no'))
  await setImmediate()
  batches[1]!.end()
  const failed = { status: 'rejected', reason: new Error('no') }
  expect(await answers).toEqual([failed, failed, { status: 'fulfilled', value: 6 }])
})

test('a dispatch that throws instead of rejecting fails its batch, and the lane goes on', async () => {
  let broken = true
  const ask = lane<number, number>({
    batchMax: 10,
    dispatchesMax: 1,
    dispatch(batch) {
      if (broken) throw new Error('thrown')
      return Promise.resolve(batch)
    },
  })
  await expect(ask(1)).rejects.toThrow('thrown')
  broken = false
  expect(await ask(2)).toBe(2)
})

test('a dispatch with too few or too many answers is a bug that everybody of its batch is told', async () => {
  const ask = lane<number, number>({ batchMax: 10, dispatchesMax: 1, dispatch: async (batch) => batch.slice(1) })
  const answers = await Promise.allSettled([ask(1), ask(2)])
  for (const answer of answers) {
    expect(answer).toMatchObject({
      status: 'rejected',
      reason: new Error('Bug! A batch of 2 requests was answered by 1 replies.'),
    })
  }
})

test('a caller that asks again as soon as it is answered is served', async () => {
  const ask = lane<number, number>({ batchMax: 4, dispatchesMax: 1, dispatch: async (batch) => batch })
  const callers = [1, 2, 3, 4, 5, 6, 7].map(async (caller) => {
    for (let round = 0; round < 20; round++) expect(await ask(caller * 100 + round)).toBe(caller * 100 + round)
  })
  await Promise.all(callers)
})

test('what arrives while a batch is gathered belongs to it', async () => {
  const gathered = Promise.withResolvers<void>()
  const { ask, batches, asked } = slowLane({ gather: () => gathered.promise })
  const answers = [ask(1)]
  await setImmediate()
  answers.push(ask(2))
  await setImmediate()
  expect(asked()).toEqual([])
  gathered.resolve()
  await setImmediate()
  expect(asked()).toEqual([[1, 2]])
  batches[0]!.end()
  expect(await Promise.all(answers)).toEqual([2, 4])
})

describe('a lane that gathers turns', () => {
  /** Each in a task of its own within the same turn, as a server reads requests from its sockets: microtasks run in between. */
  async function askInTurn(ask: (each: number) => Promise<number>, all: readonly number[]): Promise<void> {
    for (const each of all) {
      void ask(each)
      for (let task = 0; task < 20; task++) await Promise.resolve()
    }
  }

  test('sends the first request of a turn at once, and those after it together at its end', async () => {
    const { ask, asked } = slowLane({ dispatchesMax: 4, gatherTurns: systemClock })
    await askInTurn(ask, [1, 2, 3])
    expect(asked()).toEqual([[1]])
    await setImmediate()
    expect(asked()).toEqual([[1], [2, 3]])
    await askInTurn(ask, [4, 5])
    expect(asked()).toEqual([[1], [2, 3], [4]])
    await setImmediate()
    expect(asked()).toEqual([[1], [2, 3], [4], [5]])
  })

  test('does not hold as many as batchMin', async () => {
    const { ask, asked } = slowLane({ dispatchesMax: 4, batchMin: 2, gatherTurns: systemClock })
    await askInTurn(ask, [1, 2, 3, 4, 5, 6])
    expect(asked()).toEqual([[1], [2, 3], [4, 5]])
    await setImmediate()
    expect(asked()).toEqual([[1], [2, 3], [4, 5], [6]])
  })

  test('sends no part of a turn because a dispatch has ended', async () => {
    const { ask, batches, asked } = slowLane({ dispatchesMax: 4, gatherTurns: systemClock })
    await askInTurn(ask, [1, 2])
    batches[0]!.end()
    await askInTurn(ask, [3])
    expect(asked()).toEqual([[1]])
    await setImmediate()
    expect(asked()).toEqual([[1], [2, 3]])
  })

  test('sends what is left of a turn when a dispatch is free again', async () => {
    const { ask, batches, asked } = slowLane({ gatherTurns: systemClock })
    await askInTurn(ask, [1, 2])
    await setImmediate()
    expect(asked()).toEqual([[1]])
    batches[0]!.end()
    await setImmediate()
    expect(asked()).toEqual([[1], [2]])
  })

  test('does so under the timers that a test has replaced, too', async () => {
    vi.useFakeTimers({ toFake: ['setImmediate'] })
    try {
      const { ask, asked } = slowLane({ dispatchesMax: 4, gatherTurns: systemClock })
      await askInTurn(ask, [1, 2])
      await setImmediate()
      expect(asked()).toEqual([[1], [2]])
    } finally {
      vi.useRealTimers()
    }
  })

  test('knows no turns on the clock of a test', async () => {
    const { ask, asked } = slowLane({ dispatchesMax: 4, gatherTurns: manualClock() })
    await askInTurn(ask, [1, 2])
    expect(asked()).toEqual([[1], [2]])
  })
})

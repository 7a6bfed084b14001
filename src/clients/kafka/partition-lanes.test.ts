// Lanes by themselves: order, one batch of a partition at a time, and what a lane that was dropped may still do.
import { expect, test } from 'vitest'
import { systemClock } from '../../core/clock.ts'
import type { KafkaRecord } from '../kafka.ts'
import { createLanes, type KafkaBatch, type LanesOptions } from './partition-lanes.ts'

const record = (partition: number, offset: number): KafkaRecord => ({
  topic: 't',
  partition,
  offset: BigInt(offset),
  key: undefined,
  value: undefined,
  headers: {},
  timestampMs: undefined,
  raw: undefined,
})

const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

function open(handle: (batch: KafkaBatch) => Promise<void>, more: Partial<LanesOptions> = {}) {
  const commits: string[] = []
  const lanes = createLanes({
    clock: systemClock,
    partitionsAtOnce: 8,
    batchMax: 2,
    handle,
    commit: async ({ partition }, next) => void commits.push(`${partition}:${next}`),
    onEnd: (error) => {
      throw error
    },
    onProgress: () => {},
    ...more,
  })
  return { lanes, commits }
}

test('the records of a partition are handled in order and one batch at a time, partitions at once', async () => {
  const running = new Map<number, number>()
  const seen: string[] = []
  let [most, mostOfOne] = [0, 0]
  const { lanes } = open(async ({ partition, records }) => {
    running.set(partition, (running.get(partition) ?? 0) + 1)
    mostOfOne = Math.max(mostOfOne, running.get(partition)!)
    most = Math.max(
      most,
      [...running.values()].reduce((sum, each) => sum + each, 0),
    )
    await settled()
    for (const { offset } of records) seen.push(`${partition}:${offset}`)
    running.set(partition, running.get(partition)! - 1)
  })
  for (let offset = 0; offset < 5; offset++) for (const partition of [0, 1]) lanes.push(record(partition, offset))
  await lanes.drop(0, [])
  while (seen.length < 10) await settled()
  for (const partition of [0, 1]) {
    expect(seen.filter((each) => each.startsWith(`${partition}:`))).toEqual(
      [0, 1, 2, 3, 4].map((offset) => `${partition}:${offset}`),
    )
  }
  expect({ most, mostOfOne }).toEqual({ most: 2, mostOfOne: 1 })
})

test('no more partitions are handled at once than may be', async () => {
  let [running, most, done] = [0, 0, 0]
  const { lanes } = open(
    async () => {
      most = Math.max(most, ++running)
      await settled()
      running--
      done++
    },
    { partitionsAtOnce: 3 },
  )
  for (let partition = 0; partition < 10; partition++) lanes.push(record(partition, 0))
  while (done < 10) await settled()
  expect(most).toBe(3)
})

test('a lane that is dropped finishes its message, commits it while it is waited for, and takes no other', async () => {
  let release = (): void => {}
  const held = new Promise<void>((resolve) => (release = resolve))
  const { lanes, commits } = open(async ({ records, commit }) => {
    await held
    await commit(records.at(-1)!.offset + 1n)
  })
  for (const offset of [0, 1, 2]) lanes.push(record(0, offset))
  await settled()
  const dropped = lanes.drop(Infinity)
  release()
  await dropped
  expect(commits).toEqual(['0:2'])
  expect(lanes.waiting()).toBe(0)
})

test('a lane whose partition is gone commits nothing, whatever it has handled', async () => {
  let release = (): void => {}
  const held = new Promise<void>((resolve) => (release = resolve))
  const refusals: unknown[] = []
  const { lanes, commits } = open(async ({ records, commit, signal }) => {
    await held
    expect(signal.aborted).toBe(true)
    await commit(records.at(-1)!.offset + 1n).catch((error: unknown) => refusals.push(error))
  })
  lanes.push(record(0, 0))
  await settled()
  await lanes.drop(0)
  release()
  await settled()
  await settled()
  expect(commits).toEqual([])
  expect(refusals).toEqual([new Error('partition 0 of t is no longer ours')])
})

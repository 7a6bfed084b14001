// What is fetched and not yet done with, a lane per partition. Invariants: the records of a partition are handled one batch after another
// in their order, and a lane that was dropped commits nothing: its partition may be another member's by then.

import { type Clock, sleep } from '../../core/clock.ts'
import type { KafkaRecord } from '../kafka.ts'

/** Records of one partition, in their order. */
export interface KafkaBatch {
  readonly topic: string
  readonly partition: number
  readonly records: readonly KafkaRecord[]
  /** Aborts when the partition is taken away or the consumer stops: finish the message that is being handled, and take no other. */
  readonly signal: AbortSignal
  /** Commits that everything before this offset is done with. Rejects when the partition is no longer ours. */
  commit(next: bigint): Promise<void>
}

export interface PartitionName {
  readonly topic: string
  readonly partition: number
}

export type CommitOffset = (of: PartitionName, next: bigint) => Promise<void>

export interface LanesOptions {
  readonly clock: Clock
  readonly partitionsAtOnce: number
  readonly batchMax: number
  handle(batch: KafkaBatch): Promise<void>
  readonly commit: CommitOffset
  /** A bug: `handle` does not throw. */
  onEnd(error: unknown): void
  /** Some records of the partition are done with. */
  onProgress(of: PartitionName): void
}

export interface PartitionLanes {
  push(record: KafkaRecord): void
  /** Records that wait, of one partition or of all. */
  waiting(of?: PartitionName): number
  /**
   * Ends these lanes, or all. Resolves when what is being handled is done, and after `waitMs` at the latest, from when on it can
   * commit no more.
   */
  drop(waitMs: number, partitions?: readonly PartitionName[]): Promise<void>
}

interface Lane extends PartitionName {
  readonly controller: AbortController
  readonly records: KafkaRecord[]
  gone: boolean
  running: Promise<void> | undefined
}

export const nameOf = ({ topic, partition }: PartitionName): string => `${partition} ${topic}`

export function createLanes(options: LanesOptions): PartitionLanes {
  const lanes = new Map<string, Lane>()
  const slots = createSlots(options.partitionsAtOnce)

  const start = (lane: Lane): void => {
    lane.running ??= run(lane, options, slots).finally(() => (lane.running = undefined))
  }

  const laneOf = (of: PartitionName): Lane => {
    const found = lanes.get(nameOf(of))
    if (found) return found
    const { topic, partition } = of
    const lane: Lane = {
      topic,
      partition,
      controller: new AbortController(),
      records: [],
      gone: false,
      running: undefined,
    }
    lanes.set(nameOf(of), lane)
    return lane
  }

  return {
    push(record) {
      const lane = laneOf(record)
      lane.records.push(record)
      start(lane)
    },
    waiting(of) {
      if (of) return lanes.get(nameOf(of))?.records.length ?? 0
      return [...lanes.values()].reduce((sum, { records }) => sum + records.length, 0)
    },
    async drop(waitMs, partitions) {
      const dropped = [...lanes.values()].filter(
        (lane) => !partitions || partitions.some((of) => nameOf(of) === nameOf(lane)),
      )
      for (const lane of dropped) {
        lanes.delete(nameOf(lane))
        lane.controller.abort()
      }
      const idle = Promise.all(dropped.map(async ({ running }) => running))
      if (waitMs === Infinity) await idle
      else if (waitMs > 0) await soonerOf(idle, waitMs, options.clock)
      for (const lane of dropped) lane.gone = true
    },
  }
}

async function run(lane: Lane, options: LanesOptions, slots: () => Promise<() => void>): Promise<void> {
  const { signal } = lane.controller
  while (lane.records.length > 0 && !signal.aborted) {
    const release = await slots()
    try {
      if (!signal.aborted) await options.handle(batchOf(lane, options))
    } catch (error) {
      options.onEnd(error)
      return
    } finally {
      release()
    }
    options.onProgress(lane)
  }
}

function batchOf(lane: Lane, { batchMax, commit }: LanesOptions): KafkaBatch {
  return {
    topic: lane.topic,
    partition: lane.partition,
    records: lane.records.splice(0, batchMax),
    signal: lane.controller.signal,
    commit: async (next) => {
      if (lane.gone) throw new Error(`partition ${lane.partition} of ${lane.topic} is no longer ours`)
      await commit(lane, next)
    },
  }
}

async function soonerOf(work: Promise<unknown>, waitMs: number, clock: Clock): Promise<void> {
  const controller = new AbortController()
  await Promise.race([work, sleep(clock, waitMs, { signal: controller.signal })])
  controller.abort()
}

/** At most `count` at once. Resolves with the function that gives the slot back. */
function createSlots(count: number): () => Promise<() => void> {
  let free = count
  const queue: (() => void)[] = []
  const release = (): void => {
    const next = queue.shift()
    if (next) next()
    else free++
  }
  return async () => {
    if (free > 0) free--
    else await new Promise<void>((resolve) => queue.push(resolve))
    return release
  }
}

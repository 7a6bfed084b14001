// A member of a group by Confluent's client: polls, and hands what comes to lanes.

import { backoffMs, backoffs } from '../../../core/backoff.ts'
import { sleep, systemClock, systemRandom } from '../../../core/clock.ts'
import type { KafkaGroupOptions } from '../../kafka.ts'
import { called, type ConfluentError, type PolledConsumer } from './library.ts'
import { watchHalts } from '../member.ts'
import { createLanes, nameOf, type PartitionLanes, type PartitionName } from '../partition-lanes.ts'

// A lane that holds this many records takes no more until half of them are done with. Pausing costs what was fetched ahead.
const laneMax = 1_000
const pollMax = 500

/** Resolves after `stopping`. Rejects when the member has to begin anew. */
export async function serveMember(
  open: () => Promise<PolledConsumer>,
  options: KafkaGroupOptions,
  stopping: AbortSignal,
): Promise<void> {
  const polled = await open()
  const halts = watchHalts(options.sessionMs, () => void lanes.drop(0))
  const { lanes, takeSome } = laneMember(polled, options, halts.check)
  try {
    for (let idle = 0; !stopping.aborted;) {
      halts.check()
      idle = (await takeSome().catch(survived(options))) > 0 ? 0 : idle + 1
      if (idle > 0) await sleep(systemClock, backoffMs(backoffs.kafkaPoll, idle, systemRandom), { signal: stopping })
    }
    await lanes.drop(Infinity)
  } finally {
    halts.stop()
    await lanes.drop(0)
    await polled.close()
  }
}

// ERR__FATAL: a static member whose instanceId another member has.
const fatalCode = -150

/** Librdkafka goes on by itself after any other error. */
function survived({ onError, onEnd }: KafkaGroupOptions): (error: ConfluentError) => number {
  return (error) => {
    if (error.code === fatalCode) onEnd(error)
    else onError(error)
    return 0
  }
}

interface LaneMember {
  readonly lanes: PartitionLanes
  /** Takes what is there now, and returns how much it was. */
  takeSome(): Promise<number>
}

function laneMember(polled: PolledConsumer, options: KafkaGroupOptions, stillThere: () => void): LaneMember {
  const { consumer } = polled
  const paused = new Map<string, PartitionName>()
  const lanes: PartitionLanes = createLanes({
    ...options,
    clock: systemClock,
    commit: async ({ topic, partition }, next) => {
      stillThere()
      await called((done) => consumer.commitCb([{ topic, partition, offset: Number(next) }], done))
    },
    onProgress(of) {
      if (!paused.has(nameOf(of)) || lanes.waiting(of) > laneMax / 2) return
      paused.delete(nameOf(of))
      consumer.resume([of])
    },
  })
  const revoked = async (partitions: readonly PartitionName[], lost: boolean): Promise<void> => {
    for (const of of partitions) paused.delete(nameOf(of))
    await lanes.drop(lost ? 0 : options.handoverMs, partitions)
  }
  const takeSome = async (): Promise<number> => {
    const records = await polled.poll(pollMax, revoked)
    for (const record of records) lanes.push(record)
    for (const { topic, partition } of records) {
      const of = { topic, partition }
      if (lanes.waiting(of) < laneMax || paused.has(nameOf(of))) continue
      paused.set(nameOf(of), of)
      consumer.pause([of])
    }
    return records.length
  }
  return { lanes, takeSome }
}

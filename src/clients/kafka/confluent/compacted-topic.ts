// A compacted topic, in which a program keeps the last word per key. The program says which partition: the one that follows from a key is
// another when there are more partitions, and the last word would not be found.

import { backoffMs, backoffs } from '../../../core/backoff.ts'
import { sleep, systemClock, systemRandom } from '../../../core/clock.ts'
import type { KafkaRecord } from '../../kafka.ts'
import {
  called,
  type ConfluentAdmin,
  type ConfluentConsumer,
  type ConfluentError,
  type ConfluentMessage,
  type ConfluentTopic,
  recordOf,
} from './library.ts'
import type { PartitionName } from '../partition-lanes.ts'

const adminMs = 10_000

// ERR_TOPIC_ALREADY_EXISTS: another process has just created it.
const existsCode = 36

// The broker does not compact the segment that it writes to. With a small one a reader has little to read.
const config = { 'cleanup.policy': 'compact', 'segment.bytes': '8388608', 'min.cleanable.dirty.ratio': '0.1' }

// More than most outboxes have shards. Each costs the broker a few files.
const partitionsUsual = 16

export async function requireCompacted(open: () => ConfluentAdmin, topic: string): Promise<number> {
  const admin = open()
  const describe = async (): Promise<number> => {
    const [found] = await called<ConfluentTopic[]>((done) => admin.describeTopics([topic], { timeout: adminMs }, done))
    return found?.error ? 0 : (found?.partitions.length ?? 0)
  }
  try {
    const there = await describe()
    if (there > 0) return there
    const created = { topic, num_partitions: partitionsUsual, replication_factor: -1, config }
    try {
      await called((done) => admin.createTopic(created, adminMs, done))
      return partitionsUsual
    } catch (error) {
      if ((error as ConfluentError).code !== existsCode) throw error
      return await describe()
    }
  } finally {
    admin.disconnect()
  }
}

export interface CompactedReading {
  readonly of: PartitionName
  readonly until: bigint
  readonly timeoutMs: number
}

// OFFSET_BEGINNING.
const beginning = -2
const pollMax = 1_000

export async function* readCompacted(
  open: () => Promise<ConfluentConsumer>,
  { of, until, timeoutMs }: CompactedReading,
): AsyncGenerator<KafkaRecord> {
  const deadlineMs = systemClock.elapsed() + timeoutMs
  const consumer = await open()
  try {
    consumer.on('event.error', () => {})
    consumer.setDefaultConsumeTimeout(0)
    consumer.setDefaultIsTimeoutOnlyForFirstMessage(true)
    consumer.assign([{ ...of, offset: beginning }])
    for (let idle = 0; ;) {
      const messages = await called<ConfluentMessage[]>((done) => consumer.consume(pollMax, done))
      yield* messages.map(recordOf)
      const last = messages.at(-1)
      if (last && BigInt(last.offset) >= until) return
      if (systemClock.elapsed() > deadlineMs) {
        throw new Error(
          `partition ${of.partition} of ${of.topic} could not be read to offset ${until} within ${timeoutMs} ms`,
        )
      }
      idle = last ? 0 : idle + 1
      if (idle > 0) await sleep(systemClock, backoffMs(backoffs.kafkaPoll, idle, systemRandom))
    }
  } finally {
    await called((done) => consumer.disconnect(done)).catch(() => undefined)
  }
}

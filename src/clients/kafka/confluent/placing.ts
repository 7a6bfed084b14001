// Where a partition that comes is read from, when that is the caller's to say and not the group's.

import type { ComingPartition, KafkaGroupOptions } from '../../kafka.ts'
import type { PartitionName } from '../partition-lanes.ts'
import { called, type ConfluentAdmin, type ConfluentConsumer, type ConfluentTopic } from './library.ts'

export interface Placing {
  readonly startAt: NonNullable<KafkaGroupOptions['startAt']>
  readonly consumer: ConfluentConsumer
  openAdmin(): ConfluentAdmin
}

const askMs = 10_000

/** The same partitions, with an offset for those that have one. */
export async function placed(
  { startAt, consumer, openAdmin }: Placing,
  partitions: readonly PartitionName[],
): Promise<readonly (PartitionName & { readonly offset?: number })[]> {
  if (partitions.length === 0) return []
  const ids = await topicIds(openAdmin, [...new Set(partitions.map(({ topic }) => topic))])
  const coming = await Promise.all(
    partitions.map(async ({ topic, partition }): Promise<ComingPartition> => {
      const { lowOffset, highOffset } = await called<{ lowOffset: number; highOffset: number }>((done) =>
        consumer.queryWatermarkOffsets(topic, partition, askMs, done),
      )
      return { topic, partition, topicId: ids.get(topic)!, low: BigInt(lowOffset), high: BigInt(highOffset) }
    }),
  )
  const offsets = await startAt(coming)
  return coming.map(({ topic, partition }, position) => {
    const offset = offsets[position]
    return { topic, partition, ...(offset !== undefined && { offset: Number(offset) }) }
  })
}

async function topicIds(openAdmin: () => ConfluentAdmin, topics: readonly string[]): Promise<Map<string, string>> {
  const admin = openAdmin()
  try {
    const found = await called<ConfluentTopic[]>((done) => admin.describeTopics(topics, { timeout: askMs }, done))
    for (const { name, error } of found) if (error) throw Object.assign(new Error(`no topic ${name}`), error)
    return new Map(found.map(({ name, topicId }) => [name, topicId.base64]))
  } finally {
    admin.disconnect()
  }
}

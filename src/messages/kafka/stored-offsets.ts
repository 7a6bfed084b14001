// Offsets in the database of an inbox, written in the transaction of mark and effect. Kafka is told them, too, for those who watch the
// group. Invariants: a stored offset never goes back, and is true whoever wrote it, as everything before it is done with. A partition without one
// begins where the group has committed. What belongs to a topic of the same name that was deleted is not believed.

import type { KafkaGroupOptions, PartitionName } from '../../clients/kafka.ts'
import type { StoredOffsets } from '../broker.ts'

export interface OffsetKeeper {
  readonly startAt: NonNullable<KafkaGroupOptions['startAt']>
  write(tx: unknown, of: PartitionName, next: bigint): Promise<void>
}

export function keepOffsets(offsets: StoredOffsets, group: string): OffsetKeeper {
  const sources = new Map<string, string>()
  const nameOf = ({ topic, partition }: PartitionName): string => `${topic} ${partition}`
  return {
    startAt: (partitions) =>
      Promise.all(
        partitions.map(async (of) => {
          const source = `${group} ${nameOf(of)} ${of.topicId}`
          sources.set(nameOf(of), source)
          const next = await offsets.next(source)
          if (next === undefined) return undefined
          if (next <= of.high) return next < of.low ? of.low : next
          // The broker has lost messages that were handled, and others will have their numbers.
          await offsets.forget(source)
          return undefined
        }),
      ),
    write: (tx, of, next) => offsets.write(tx, sources.get(nameOf(of))!, next),
  }
}

// One shape for three clients of Kafka, each taken as the user has it. What each can be trusted with was tried on a real broker, and is
// declared in its `abilities`. A promise that needs more is refused by name, in messages/kafka.ts.

import type { CommitOffset, KafkaBatch, PartitionName } from './kafka/partition-lanes.ts'

export {
  called,
  closeProducer,
  confluentClient,
  type ConfluentClient,
  type ConfluentError,
  type ConfluentLibrary,
  type ConfluentProducer,
  type PolledConsumer,
  produce,
} from './kafka/confluent.ts'
export { kafkajsClient, type KafkajsKafka } from './kafka/kafkajs.ts'
export { type Halts, watchHalts } from './kafka/member.ts'
export { platformaticClient, type PlatformaticLibrary } from './kafka/platformatic.ts'
export type { KafkaBatch, PartitionName } from './kafka/partition-lanes.ts'

/** A record as it is on the broker. */
export interface KafkaRecord {
  readonly topic: string
  readonly partition: number
  readonly offset: bigint
  readonly key: Uint8Array | undefined
  /** Undefined for a tombstone. */
  readonly value: Uint8Array | undefined
  readonly headers: Readonly<Record<string, string>>
  readonly timestampMs: number | undefined
  /** As the client has it. */
  readonly raw: unknown
}

/** A record to send. The partition follows from the key, in the way of Java's client (murmur2) with every client. */
export interface KafkaOutput {
  readonly topic: string
  readonly key: string | undefined
  readonly value: Uint8Array
  readonly headers: Readonly<Record<string, string>>
}

export interface KafkaAbilities {
  /** Its consumer hands out nothing of an aborted transaction. */
  readonly readCommitted: boolean
  /** Transactions that take offsets along and are fenced by the generation of the group. */
  readonly transactions: boolean
  readonly staticMembership: boolean
  /** The group protocol of KIP-848, in which the broker assigns the partitions. */
  readonly consumerProtocol: boolean
  /** A partition that comes can be read from an offset of ours, before anything else of it is read. */
  readonly placing: boolean
}

/** An idempotent producer. One that has returned an error is closed and replaced: its sequence numbers may be the broker's no more. */
export interface KafkaProducer {
  /**
   * Sends all, and waits until the broker has them in every replica that is in sync. The result has undefined or an error for each. Of
   * one partition no later record is sent after one that failed.
   */
  send(outputs: readonly KafkaOutput[]): Promise<readonly (Error | undefined)[]>
  /** Waits for nothing that is still under way. */
  close(): Promise<void>
}

export interface KafkaGroupOptions {
  readonly topics: readonly string[]
  readonly group: string
  readonly isolation: 'read_committed' | 'read_uncommitted'
  /** Where a group begins that has committed nothing. */
  readonly begin: 'earliest' | 'latest'
  readonly instanceId: string | undefined
  readonly protocol: 'classic' | 'consumer'
  readonly sessionMs: number
  /** Partitions that are handled at once. */
  readonly partitionsAtOnce: number
  /** Records of one `handle`. */
  readonly batchMax: number
  /** How long a partition that is taken away waits for what is being handled. */
  readonly handoverMs: number
  /** Where to read partitions that come from. Undefined, and for an answer that is undefined: from where the group has committed. */
  readonly startAt: ((partitions: readonly ComingPartition[]) => Promise<readonly (bigint | undefined)[]>) | undefined
  /** Never called twice at once for a partition. Resolves when all records are done with, or soon after the batch's signal. */
  handle(batch: KafkaBatch): Promise<void>
  /** What the client survives. */
  onError(error: unknown): void
  /** What it does not. */
  onEnd(error: unknown): void
}

/** A partition that a member is given. */
export interface ComingPartition extends PartitionName {
  /** Another one when the topic was deleted and created again. */
  readonly topicId: string
  /** The first offset that is there. */
  readonly low: bigint
  /** The offset after the last one. */
  readonly high: bigint
}

/** A member of a group. `stop` finishes what is being handled, and leaves the group. */
export interface KafkaMember {
  stop(): Promise<void>
}

export interface KafkaClient {
  readonly name: '@confluentinc/kafka-javascript' | '@platformatic/kafka' | 'kafkajs'
  readonly abilities: KafkaAbilities
  /** Whether the broker will refuse this very record each time: too large, no such topic, not permitted. */
  isFinal(error: unknown): boolean
  producer(): Promise<KafkaProducer>
  join(options: KafkaGroupOptions): Promise<KafkaMember>
}

export type { CommitOffset }

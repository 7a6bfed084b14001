// The slice of @confluentinc/kafka-javascript that we use. Some of these methods are missing in its own types.

import type { KafkaRecord } from '../../kafka.ts'
import type { PartitionName } from '../partition-lanes.ts'

export type Callback<T = unknown> = (error: ConfluentError | null | undefined, answer: T) => void

export interface ConfluentError extends Error {
  readonly code: number
  readonly isTxnRequiresAbort?: boolean
}

export interface Connection {
  connect(options: { readonly timeout: number }, done: Callback): unknown
  on(event: string, listener: (...given: never[]) => void): unknown
}

export interface ConfluentProducer extends Connection {
  produce(
    topic: string,
    partition: number | null,
    value: Buffer,
    key: string | null,
    timestamp: null,
    opaque: unknown,
    headers: readonly Record<string, string>[],
  ): unknown
  setPollInBackground(on: boolean): unknown
  disconnect(flushMs: number, done: Callback): unknown
  initTransactions(timeoutMs: number, done: Callback): void
  beginTransaction(done: Callback): void
  commitTransaction(timeoutMs: number, done: Callback): void
  abortTransaction(timeoutMs: number, done: Callback): void
  sendOffsetsToTransaction(
    offsets: readonly ConfluentOffset[],
    consumer: ConfluentConsumer,
    timeoutMs: number,
    done: Callback,
  ): void
}

export interface ConfluentOffset extends PartitionName {
  readonly offset: number
}

export interface ConfluentMessage extends ConfluentOffset {
  readonly value: Buffer | null
  readonly key?: Buffer | string | null
  readonly timestamp?: number
  readonly headers?: readonly Readonly<Record<string, Buffer | string>>[]
}

export interface ConfluentConsumer extends Connection {
  subscribe(topics: readonly string[]): unknown
  setDefaultConsumeTimeout(timeoutMs: number): void
  setDefaultIsTimeoutOnlyForFirstMessage(on: boolean): void
  consume(max: number, done: Callback<ConfluentMessage[]>): void
  commitCb(offsets: readonly ConfluentOffset[], done: Callback): unknown
  committed(
    partitions: readonly PartitionName[],
    timeoutMs: number,
    done: Callback<(PartitionName & { offset?: number })[]>,
  ): unknown
  queryWatermarkOffsets(
    topic: string,
    partition: number,
    timeoutMs: number,
    done: Callback<{ readonly lowOffset: number; readonly highOffset: number }>,
  ): unknown
  seek(to: ConfluentOffset, timeoutMs: number, done: Callback): unknown
  pause(partitions: readonly PartitionName[]): unknown
  resume(partitions: readonly PartitionName[]): unknown
  assign(partitions: readonly (PartitionName & { readonly offset?: number })[]): unknown
  unassign(): unknown
  incrementalAssign(partitions: readonly (PartitionName & { readonly offset?: number })[]): unknown
  incrementalUnassign(partitions: readonly PartitionName[]): unknown
  rebalanceProtocol(): string
  assignmentLost(): boolean
  disconnect(done: Callback): unknown
}

export interface ConfluentAdmin {
  describeTopics(
    topics: readonly string[],
    options: { readonly timeout: number },
    done: Callback<ConfluentTopic[]>,
  ): void
  createTopic(topic: ConfluentNewTopic, timeoutMs: number, done: Callback): void
  disconnect(): unknown
}

export interface ConfluentTopic {
  readonly name: string
  readonly topicId: { readonly base64: string }
  readonly partitions: readonly unknown[]
  readonly error?: { readonly code: number }
}

export interface ConfluentNewTopic {
  readonly topic: string
  readonly num_partitions: number
  /** -1: as the broker is set. */
  readonly replication_factor: number
  readonly config: Readonly<Record<string, string>>
}

/** A consumer between whose polls, and only there, partitions come and go. */
export interface PolledConsumer {
  readonly consumer: ConfluentConsumer
  /**
   * Lets partitions come and go, then returns what is there now, at most `max` records. `revoked` is awaited before a partition goes.
   * `lost` partitions are another member's already.
   */
  poll(
    max: number,
    revoked: (partitions: readonly PartitionName[], lost: boolean) => Promise<void>,
  ): Promise<readonly KafkaRecord[]>
  close(): Promise<void>
}

export function recordOf(message: ConfluentMessage): KafkaRecord {
  const { topic, partition, offset, key, value, timestamp } = message
  const headers = Object.fromEntries(
    (message.headers ?? []).flatMap((header) => Object.entries(header).map(([name, text]) => [name, text.toString()])),
  )
  return {
    topic,
    partition,
    offset: BigInt(offset),
    key: key === null || key === undefined ? undefined : Buffer.from(key),
    value: value ?? undefined,
    headers,
    timestampMs: timestamp,
    raw: message,
  }
}

/** A call with a callback as a promise. */
export function called<T>(call: (done: Callback<T>) => unknown): Promise<T> {
  return new Promise((resolve, reject) => call((error, answer) => (error ? reject(error) : resolve(answer))))
}

// What inbox and relay know of a broker: the message that comes in, the message that goes out, and what a consumer does with the
// inbox's answer. A file per broker translates. Headers have lower-case names here, and the attributes of a CloudEvent are `ce-id`,
// `ce-source`, …, whatever prefix the broker's own binding has.

/** A message as a consumer gets it, whatever broker it came from. */
export interface Message<Raw = unknown> {
  /** How its sender named it: the header that our relay writes, or the broker's own message id. Undefined when there is neither. */
  readonly id?: string
  /** The topic, queue, subject or stream that it came from. */
  readonly topic: string
  /** Messages of one key are to be handled in the order in which they were sent. */
  readonly key?: string
  readonly body: Uint8Array
  readonly headers: Readonly<Record<string, string>>
  /** When it was sent, by the sender's or the broker's clock. Undefined when neither says so. */
  readonly sentAtMs?: number
  /** Which delivery of the message this is, 1 for the first, where the broker counts. */
  readonly delivery?: number
  /** The message as the broker's client has it. */
  readonly raw: Raw
}

/** A message that a relay publishes. */
export interface Outgoing {
  /** The same for every attempt: it becomes the transport's own id for duplicates, and the header `ce-id`. */
  readonly id: string
  readonly topic: string
  /** Messages of one key must arrive in the order in which they are given. */
  readonly key?: string
  readonly body: Uint8Array
  readonly headers: Readonly<Record<string, string>>
}

/** What became of one message: undefined when the broker has confirmed it, else why it has not. */
export type Published = Error | undefined

/** The way out of a relay. */
export interface Publisher {
  /** Names the transport in errors and events: 'rabbitmq'. */
  readonly name: string
  /**
   * Publish, and wait until the broker has confirmed. An answer for each message, in their order. After a message that failed, no
   * later one of the same key is sent (`inOrderOfKeys` does this where the transport does not). Never throws for a message: an error
   * thrown here concerns all of them, and says nothing of whether some have arrived.
   */
  publish(messages: readonly Outgoing[]): Promise<readonly Published[]>
  close?(): Promise<void>
}

/** A row of a relay: its id, and where it lies, which is the relay's own to read. */
export interface PlacedRow {
  readonly id: string
  readonly place: string
}

/** A shard of an outbox that a relay has taken. */
export interface RelayShard {
  readonly shard: number
  /** Grows whenever a relay takes the shard. What a relay of an older epoch publishes must be refused. */
  readonly epoch: number
  /** Of these rows the ones that are not marked as sent. */
  unsent(rows: readonly PlacedRow[]): Promise<readonly PlacedRow[]>
}

/** The way out of one shard, from when a relay has taken it until it takes it anew. */
export interface ShardPublisher {
  /** As `publish` of a Publisher. After an error that it throws, the relay takes the shard anew. */
  publish(rows: readonly (Outgoing & PlacedRow)[]): Promise<readonly Published[]>
  /** These rows are marked as sent. No relay asks for them again. */
  marked(ids: readonly string[]): void
  close(): Promise<void>
}

/** The way out of a relay that remembers at the broker what it has published, so that the next relay of a shard does not publish it again. */
export interface ShardedPublisher {
  readonly name: string
  openShard(shard: RelayShard): ShardPublisher
}

/** A consumer that runs. */
export interface Consuming {
  /** Take no more messages, finish and acknowledge the ones that are being handled, and end. */
  stop(): Promise<void>
  /** Resolves after `stop`. Rejects when the consumer cannot go on. */
  readonly ended: Promise<void>
}

/** What a consumer is to do with a message that it gave to an inbox. */
export type Delivered =
  /** Its `acknowledge` was called. */
  | { readonly acknowledged: true }
  /** It was not, and the message is to come again after this time. */
  | { readonly acknowledged: false; readonly retryAfterMs: number; readonly error: unknown }

/** What a consumer needs of an inbox. `Tx` is what a handler writes with. */
export interface Receiver<Tx> {
  /** Names the consumer: each has its own marks. */
  readonly consumer: string
  /** How often it tries a message before it parks it. Undefined when it does not count. */
  readonly attempts?: number
  /** When it calls `acknowledge`: before the handler for 'at-most-once', else after it. */
  readonly delivery?: 'effectively-once' | 'at-most-once' | 'at-least-once'
  /**
   * Handle a message, and call `acknowledge` at the place that the inbox's delivery asks for. Never throws: an error of the handler,
   * of the store or of `acknowledge` is in the answer.
   */
  deliver(message: Message, handler: MessageHandler<Tx>, acknowledge: () => Promise<void>): Promise<Delivered>
  /** The same for a batch. `acknowledge` is called once with the positions of the messages that are done with, if there are any. */
  deliverBatch(
    messages: readonly Message[],
    handler: BatchHandler<Tx>,
    acknowledge: (positions: readonly number[]) => Promise<void>,
  ): Promise<readonly Delivered[]>
}

/** How far a consumer is in a source that numbers its messages, kept beside the marks of an inbox. */
export interface StoredOffsets {
  /** The first message that is not done with. Undefined when nothing is stored. */
  next(source: string): Promise<bigint | undefined>
  /** Everything before `next` is done with, if the transaction commits: that of a handler, or without one its own. It never goes back. */
  write(tx: unknown, source: string, next: bigint): Promise<void>
  forget(source: string): Promise<void>
}

export type MessageHandler<Tx, M = Message> = (tx: Tx, message: M) => unknown
export type BatchHandler<Tx, M = Message> = (tx: Tx, fresh: readonly M[]) => unknown

/** Not sent, because the one before it of the same key was not confirmed. */
export class NotSentError extends Error {
  override readonly name = 'NotSentError'
}

/**
 * Sends each key's messages one after another, and different keys at once. The first of a key that fails ends that key. Messages
 * without a key are sent at once.
 */
export async function inOrderOfKeys(
  messages: readonly Outgoing[],
  send: (message: Outgoing) => Promise<void>,
): Promise<readonly Published[]> {
  const published: Published[] = messages.map(() => undefined)
  const sendOne = async (position: number): Promise<void> => {
    try {
      await send(messages[position]!)
    } catch (error) {
      published[position] = error instanceof Error ? error : new Error(String(error))
    }
  }
  const lanes = new Map<string, number[]>()
  const free: number[] = []
  messages.forEach(({ key }, position) => {
    if (key === undefined) return void free.push(position)
    const lane = lanes.get(key)
    if (lane) lane.push(position)
    else lanes.set(key, [position])
  })
  const sendLane = async (lane: readonly number[]): Promise<void> => {
    for (const [index, position] of lane.entries()) {
      await sendOne(position)
      const failed = published[position]
      if (!failed) continue
      for (const later of lane.slice(index + 1)) {
        published[later] = new NotSentError(`message ${messages[later]!.id} was not sent: ${failed.message}`)
      }
      return
    }
  }
  await Promise.all([...free.map(sendOne), ...[...lanes.values()].map(sendLane)])
  return published
}

// The slice of @nats-io/jetstream (3.0 and later) that we use, and the headers of @nats-io/transport-node. The connection comes back by
// itself after a loss, as often as its owner allows. What is sent meanwhile waits.

export interface NatsHeaders {
  keys(): string[]
  values(name: string): string[]
  append(name: string, value: string): void
}

export interface NatsMessage {
  readonly subject: string
  readonly data: Uint8Array
  readonly headers: NatsHeaders | undefined
  /** When the stream stored it. */
  readonly time: Date
  readonly info: { readonly stream: string; readonly streamSequence: number; readonly deliveryCount: number }
  /** Resolves with true when the server says that it has the acknowledgement, and with false when one was sent before. */
  ackAck(options: { timeout: number }): Promise<boolean>
  nak(delayMs: number): void
  working(): void
}

export interface NatsMessages extends AsyncIterable<NatsMessage> {
  close(): Promise<unknown>
}

export interface NatsConsumerInfo {
  readonly stream_name: string
  readonly name: string
  readonly config: {
    readonly ack_policy: string
    /** In nanoseconds. */
    readonly ack_wait?: number
    /** In nanoseconds, in the place of `ack_wait` for the first deliveries. */
    readonly backoff?: readonly number[]
    /** -1 is no limit. */
    readonly max_deliver?: number
  }
}

/** A pull consumer: `jetstream(connection).consumers.get(stream, name)`. */
export interface NatsPullConsumer {
  fetch(options: { max_messages: number; expires: number }): Promise<NatsMessages>
  info(): Promise<NatsConsumerInfo>
}

export interface NatsPublishOptions<Headers> {
  readonly msgID: string
  readonly timeout: number
  readonly headers: Headers
  readonly expect?: { readonly streamName: string }
}

/** What `jetstream(connection)` returns. */
export interface NatsJetStream<Headers> {
  publish(
    subject: string,
    payload: Uint8Array,
    options: NatsPublishOptions<Headers>,
  ): Promise<{ readonly stream: string }>
}

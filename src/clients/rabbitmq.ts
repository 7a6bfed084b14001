// The slice of amqplib that we use, version 0.10 and later. A channel that has ended throws at every call. A connection or channel
// without a listener for `error` ends the process.

export interface AmqpMessage {
  readonly content: Buffer
  readonly fields: { readonly deliveryTag: number; readonly exchange: string; readonly routingKey: string }
  readonly properties: {
    readonly messageId?: unknown
    readonly contentType?: unknown
    readonly timestamp?: unknown
    readonly headers?: Readonly<Record<string, unknown>> | undefined
  }
}

/** Says that it has ended, and before that why, if there was a fault. */
export interface AmqpEnding {
  on(event: 'close', listener: () => void): unknown
  on(event: 'error', listener: (error: Error) => void): unknown
}

export interface AmqpChannel extends AmqpEnding {
  prefetch(count: number): Promise<unknown>
  /** The message is null when the server has ended the consumer: the queue is gone. */
  consume(queue: string, onMessage: (message: AmqpMessage | null) => void): Promise<{ readonly consumerTag: string }>
  cancel(consumerTag: string): Promise<unknown>
  ack(message: AmqpMessage): void
  nack(message: AmqpMessage, allUpTo: boolean, requeue: boolean): void
  close(): Promise<void>
}

export interface AmqpProperties {
  readonly messageId: string
  /** In seconds. */
  readonly timestamp: number
  readonly persistent: boolean
  /** A message that no queue takes comes back, as `return`, and is confirmed after that. */
  readonly mandatory: boolean
  readonly contentType?: string
  readonly headers: Readonly<Record<string, string>>
}

export interface AmqpConfirmChannel extends AmqpEnding {
  on(event: 'close', listener: () => void): unknown
  on(event: 'error', listener: (error: Error) => void): unknown
  on(event: 'return', listener: (message: AmqpMessage) => void): unknown
  publish(
    exchange: string,
    routingKey: string,
    content: Buffer,
    properties: AmqpProperties,
    confirmed: (error: unknown) => void,
  ): boolean
  close(): Promise<void>
}

/** What `connect` of amqplib resolves to. */
export interface AmqpConnection extends AmqpEnding {
  createChannel(): Promise<AmqpChannel>
  createConfirmChannel(): Promise<AmqpConfirmChannel>
  close(): Promise<void>
}

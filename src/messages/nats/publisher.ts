// Publishes to JetStream and waits for the acknowledgement of each message. Invariant: a message counts as published when a stream has
// said that it has it.

import type { NatsHeaders, NatsJetStream } from '../../clients/nats.ts'
import { inOrderOfKeys } from '../broker.ts'
import type { Outgoing, Publisher } from '../broker.ts'
import { writeHeaders } from './message.ts'

export interface NatsPublication<Headers extends NatsHeaders> {
  readonly jetstream: NatsJetStream<Headers>
  headers(): Headers
  subjectOf(message: Outgoing): string
  readonly stream: string | undefined
  readonly timeoutMs: number
}

export function createPublisher<Headers extends NatsHeaders>(options: NatsPublication<Headers>): Publisher {
  return {
    name: 'nats',
    publish: (messages) => inOrderOfKeys(messages, (message) => send(options, message)),
  }
}

async function send<Headers extends NatsHeaders>(options: NatsPublication<Headers>, message: Outgoing): Promise<void> {
  const { jetstream, stream, timeoutMs } = options
  const subject = options.subjectOf(message)
  const headers = options.headers()
  writeHeaders(message, headers)
  try {
    await jetstream.publish(subject, message.body, {
      msgID: message.id,
      timeout: timeoutMs,
      headers,
      ...(stream !== undefined && { expect: { streamName: stream } }),
    })
  } catch (error) {
    const why = error instanceof Error ? error.message || error.name : String(error)
    throw new Error(
      `message ${message.id} to subject ${subject} was not acknowledged by ${stream === undefined ? 'a stream' : `stream ${stream}`}: ` +
        `${why}. Check that a stream has this subject, and that JetStream is up.`,
      { cause: error },
    )
  }
}

// Whether a consumer of JetStream can keep what we promise. Checked before the first message, and again after every failure, as a
// consumer may be changed while we run.

import type { NatsConsumerInfo } from '../../clients/nats.ts'

export interface Fit {
  /** How long the server waits for a word about a message before it delivers it again. */
  readonly ackWaitMs: number
  /** It delivers a message as often as it takes. */
  readonly hasNoLimit: boolean
}

/** The server's own default. */
const ackWaitMsUsual = 30_000

/** `attempts`: how often the inbox tries a message before it parks it. Throws when the consumer will not do. */
export function checkConsumer({ stream_name, name, config }: NatsConsumerInfo, attempts: number | undefined): Fit {
  const who = `natsConsumer: the consumer ${name} of stream ${stream_name}`
  if (config.ack_policy !== 'explicit') {
    throw new UnfitConsumer(
      `${who} has ack_policy "${config.ack_policy}", with which messages count as done before they are. ` +
        'Create it with ack_policy "explicit".',
    )
  }
  const { max_deliver: deliveries = -1 } = config
  if (attempts !== undefined && deliveries > 0 && deliveries < attempts) {
    throw new UnfitConsumer(
      `${who} has max_deliver ${deliveries}, and the inbox tries a message ${attempts} times before it parks it. JetStream leaves a ` +
        `message behind after max_deliver, and tells no one. Set max_deliver to -1, or to more than ${attempts}.`,
    )
  }
  // Where there is a backoff, the server goes by it and not by ack_wait.
  const waits = config.backoff?.length ? config.backoff : [config.ack_wait ?? ackWaitMsUsual * 1e6]
  return { ackWaitMs: Math.min(...waits) / 1e6, hasNoLimit: deliveries <= 0 }
}

export class UnfitConsumer extends Error {
  override readonly name = 'UnfitConsumer'
}

/** No retry cures these: the consumer or its stream is not there, or the connection was closed for good. */
export function isHopeless(error: unknown): boolean {
  if (!(error instanceof Error)) return false
  return (
    error instanceof UnfitConsumer ||
    error.name === 'ClosedConnectionError' ||
    /consumer not found|stream not found/.test(error.message)
  )
}

// A publisher for a relay. Invariants: one send at a time, and a producer that has failed or timed out is never used again. The broker
// takes a sequence number that it has seen for a duplicate: a producer that guesses wrongly would lose messages without an error.

import type { KafkaClient, KafkaProducer } from '../../clients/kafka.ts'
import { type Clock, systemClock } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { checkOptions, optional, positiveMs } from '../../core/options.ts'
import { inOrderOfKeys, NotSentError, type Outgoing, type Published, type Publisher } from '../broker.ts'
import { aKafkaClient } from './client-options.ts'
import { outputOf } from './headers.ts'

export interface KafkaPublisherOptions {
  /** `confluentClient(…)`, `kafkajsClient(…)` or `platformaticClient(…)`. */
  readonly client: KafkaClient
  /** How long the broker may take to confirm. Then the producer is replaced, and the messages are not confirmed. Default 30 s. */
  readonly timeoutMs?: number
}

/**
 * Publishes for a relay with an idempotent producer, which waits for all replicas in sync. The id of a message becomes the header `ce_id`,
 * and its key decides the partition as Java's client does.
 *
 * @example
 * import { Kafka } from 'kafkajs'
 * import { kafkajsClient, kafkaPublisher } from 'onceonly/kafka'
 *
 * const publisher = kafkaPublisher({ client: kafkajsClient(new Kafka({ brokers: ['localhost:9092'] })) })
 * await publisher.publish([{ id: '1', topic: 'orders', key: 'order-42', body: Buffer.from('{}'), headers: {} }])
 */
export function kafkaPublisher(options: KafkaPublisherOptions): Publisher {
  checkOptions('kafkaPublisher', options, { client: aKafkaClient, timeoutMs: optional(positiveMs) })
  const { client, timeoutMs = 30_000 } = options
  let producer: Promise<KafkaProducer> | undefined
  let before: Promise<unknown> = Promise.resolve()

  const discard = (): void => {
    const old = producer
    producer = undefined
    // Its end is nothing to wait for. Whatever it still sends is a duplicate of what the relay sends again.
    void old?.then((opened) => opened.close()).catch(() => {})
  }

  const sendNow = async (messages: readonly Outgoing[]): Promise<readonly Published[]> => {
    try {
      const published = await within(timeoutMs, systemClock, async () => {
        producer ??= client.producer()
        return (await producer).send(messages.map(outputOf))
      })
      if (published.some(Boolean)) discard()
      return published
    } catch (error) {
      discard()
      const failed = error instanceof Error ? error : new Error(String(error))
      return messages.map(() => failed)
    }
  }

  const send = (messages: readonly Outgoing[]): Promise<readonly Published[]> => {
    const sent = before.then(() => sendNow(messages))
    before = sent
    return sent
  }

  const sendOne = async (message: Outgoing): Promise<void> => {
    const [failed] = await send([message])
    if (failed) throw failed
  }

  const sendWave = async (messages: readonly Outgoing[]): Promise<readonly Published[]> => {
    const published = await send(messages)
    // One message that the broker will never take fails all that were sent with it. By themselves the others arrive.
    const poisoned = messages.length > 1 && published.some((each) => each && client.isFinal(each))
    if (!poisoned) return published
    const failed = messages.filter((_, position) => published[position])
    const again = await inOrderOfKeys(failed, sendOne)
    return published.map((each, position) => each && again[failed.indexOf(messages[position]!)])
  }

  return {
    name: 'kafka',
    publish: (messages) => inWaves(messages, sendWave),
    async close() {
      await before
      const old = producer
      producer = undefined
      await (await old?.catch(() => undefined))?.close()
    },
  }
}

/** A message of this size may be refused for its size, and what is sent with it is not. Limits below this are unusual. */
const largeBytes = 32_768

/**
 * Kafka keeps the order within a partition only. So a key whose messages go to several topics waits at each change of topic and after
 * each large message, and goes no further after a message that failed. Mostly all messages are one wave.
 */
async function inWaves(
  messages: readonly Outgoing[],
  send: (wave: readonly Outgoing[]) => Promise<readonly Published[]>,
): Promise<readonly Published[]> {
  const last = new Map<string, { topic: string; wave: number; isLarge: boolean }>()
  const waveOf = messages.map(({ key, topic, body }) => {
    if (key === undefined) return 0
    const before = last.get(key) ?? { topic, wave: 0, isLarge: false }
    const wave = before.topic === topic && !before.isLarge ? before.wave : before.wave + 1
    last.set(key, { topic, wave, isLarge: body.length >= largeBytes })
    return wave
  })
  const published: Published[] = messages.map(() => undefined)
  const failedKeys = new Map<string, Error>()
  for (let wave = 0; waveOf.includes(wave); wave++) {
    const sent: number[] = []
    for (const [position, { id, key }] of messages.entries()) {
      if (waveOf[position] !== wave) continue
      const failed = key === undefined ? undefined : failedKeys.get(key)
      if (failed) published[position] = new NotSentError(`message ${id} was not sent: ${failed.message}`)
      else sent.push(position)
    }
    const results = sent.length === 0 ? [] : await send(sent.map((position) => messages[position]!))
    for (const [index, position] of sent.entries()) {
      const failed = results[index]
      const { key } = messages[position]!
      published[position] = failed
      if (failed && key !== undefined) failedKeys.set(key, failed)
    }
  }
  return published
}

async function within<T>(timeoutMs: number, clock: Clock, work: () => Promise<T>): Promise<T> {
  let cancel = (): void => {}
  const late = new Promise<never>((_, reject) => {
    const message = `Kafka has not confirmed within ${timeoutMs} ms, so it is unknown whether the messages have arrived. They are sent again.`
    cancel = clock.schedule(() => reject(new OnceError('OUTCOME_UNKNOWN', { message })), timeoutMs)
  })
  try {
    return await Promise.race([work(), late])
  } finally {
    cancel()
  }
}

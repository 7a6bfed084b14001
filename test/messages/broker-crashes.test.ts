// A broker that is killed (-9) and comes back while messages are published and consumed: every message takes effect once, and, where
// the broker allows it, the effects of each key are in the order in which its messages were sent.
import { AckPolicy, jetstream, jetstreamManager } from '@nats-io/jetstream'
import { connect as connectNats, headers, nanos } from '@nats-io/transport-node'
import { connect } from 'amqplib'
import { expect, test } from 'vitest'
import type { Consuming, Outgoing, Publisher } from '../../src/messages/broker.ts'
import { natsConsumer, natsPublisher } from '../../src/messages/nats.ts'
import { rabbitmqConsumer, rabbitmqPublisher } from '../../src/messages/rabbitmq.ts'
import { startNats } from '../servers/nats.ts'
import { needs } from '../servers/needs.ts'
import { pollUntil } from '../servers/poll.ts'
import { startRabbitmq } from '../servers/rabbitmq.ts'
import type { Running } from '../servers/server.ts'
import { type Remembering, rememberingReceiver } from './remembering-receiver.ts'

const keys = ['a', 'b', 'c', 'd', 'e']
const batch = 25
const crashes = 3

interface Ground {
  readonly server: Running
  readonly topic: string
  readonly publisher: Publisher
  readonly total: number
  readonly inOrder: boolean
  consume(inbox: Remembering, handler: (tx: string[], id: string, key: string) => unknown): Consuming
}

// What a relay does, without its database: what failed is sent again before anything later of its key.
async function relay(
  publisher: Publisher,
  messages: readonly Outgoing[],
  sent: (count: number) => void,
): Promise<number> {
  let left = [...messages]
  let failures = 0
  while (left.length > 0) {
    const now = left.slice(0, batch)
    const published = await publisher.publish(now).catch((error: Error) => now.map(() => error))
    const failed = now.filter((_, at) => published[at] !== undefined)
    failures += failed.length
    left = [...failed, ...left.slice(batch)]
    sent(messages.length - left.length)
    if (failed.length > 0) await new Promise((resolve) => setTimeout(resolve, 50))
  }
  return failures
}

async function crashAndCompare({ server, topic, publisher, total, inOrder, consume }: Ground): Promise<void> {
  const inbox = rememberingReceiver(20)
  const messages = Array.from({ length: total }, (_, at): Outgoing => {
    const key = keys[at % keys.length]!
    return { id: `m${at}`, topic, key, body: Buffer.from(`${at}`), headers: { 'ce-type': 'test' } }
  })
  const failing = new Set(messages.filter((_, at) => at % 97 === 0).map(({ id }) => id))
  const consuming = consume(inbox, async (tx, id, key) => {
    await new Promise((resolve) => setTimeout(resolve, 5))
    if (failing.delete(id)) throw new Error('once')
    tx.push(`${key} ${id}`)
  })
  let sent = 0
  const relaying = relay(publisher, messages, (count) => (sent = count))
  for (let crash = 1; crash <= crashes; crash += 1) {
    // In the middle of publishing, and when much of what was sent has not been handled.
    const markAt = (total * crash) / (crashes + 1)
    await pollUntil('some to be sent and handled', () => sent >= markAt && inbox.effects.length >= markAt / 2)
    await server.crash()
    await server.restart()
  }
  const failures = await relaying
  await pollUntil('all to be handled', () => new Set(inbox.effects).size === total)
  await consuming.stop()
  await publisher.close?.()
  // Something was under way when the server died, or this test shows nothing.
  expect(failures + inbox.deliveries.length - total).toBeGreaterThan(0)
  const sentOf = (key: string): string[] =>
    messages.filter((message) => message.key === key).map(({ id }) => `${key} ${id}`)
  const effectsOf = (key: string): string[] => inbox.effects.filter((effect) => effect.startsWith(key))
  if (inOrder) for (const key of keys) expect(effectsOf(key)).toEqual(sentOf(key))
  else expect(inbox.effects.toSorted()).toEqual(keys.flatMap(sentOf).toSorted())
}

needs('rabbitmq', { ours: true }).describe('RabbitMQ', () => {
  test('killed while messages are published and consumed, it loses none, and none takes effect twice or out of order', async () => {
    await using server = await startRabbitmq()
    const topic = 'orders'
    const first = await connect(server.url)
    const channel = await first.createChannel()
    // Without a single active consumer a queue that comes back may send later messages before those that were in hand.
    const settings = { 'x-queue-type': 'quorum', 'x-delivery-limit': -1, 'x-single-active-consumer': true }
    await channel.assertQueue(topic, { durable: true, arguments: settings })
    await first.close()
    await server.queueKept(topic)
    await crashAndCompare({
      server,
      topic,
      total: 1_000,
      inOrder: true,
      publisher: rabbitmqPublisher({ connect: () => connect(server.url) }),
      consume: (inbox, handler) =>
        rabbitmqConsumer({ connect: () => connect(server.url), queue: topic, inbox, prefetch: 20 }, (tx, { id, key }) =>
          handler(tx, id!, key!),
        ),
    })
  })
})

needs('nats', { ours: true }).describe('NATS', () => {
  // JetStream delivers later messages before those that were in hand when it died. With one at a time there are none.
  const ways = [
    { name: 'none takes effect twice', total: 1_000, inOrder: false, inFlight: 20, more: {} },
    {
      name: 'one by one, none takes effect out of order',
      total: 200,
      inOrder: true,
      inFlight: 1,
      more: { max_ack_pending: 1 },
    },
  ]
  for (const { name, total, inOrder, inFlight, more } of ways) {
    test(`killed while messages are published and consumed, it loses none, and ${name}`, async () => {
      await using server = await startNats()
      const connection = await connectNats({ servers: server.url, maxReconnectAttempts: -1, reconnectTimeWait: 50 })
      const manager = await jetstreamManager(connection)
      await manager.streams.add({ name: 'orders', subjects: ['orders.>'] })
      const config = { durable_name: 'test', ack_policy: AckPolicy.Explicit, ack_wait: nanos(2_000), ...more }
      await manager.consumers.add('orders', config)
      const consumer = await jetstream(connection).consumers.get('orders', 'test')
      await crashAndCompare({
        server,
        topic: 'orders.placed',
        total,
        inOrder,
        publisher: natsPublisher({ jetstream: jetstream(connection), headers, stream: 'orders', timeoutMs: 1_000 }),
        consume: (inbox, handler) =>
          natsConsumer({ consumer, inbox, inFlight, timeoutMs: 1_000 }, (tx, { id, key }) => handler(tx, id!, key!)),
      })
      await connection.close()
    })
  }
})

// RabbitMQ as inbox and relay use it, on a real server.
import { connect } from 'amqplib'
import type { Channel, ChannelModel, ConfirmChannel } from 'amqplib'
import { beforeAll, expect, test } from 'vitest'
import type { Message, Outgoing, Published } from '../../src/messages/broker.ts'
import { rabbitmqConsumer, rabbitmqPublisher } from '../../src/messages/rabbitmq.ts'
import { startFaultProxy } from '../servers/fault-proxy.ts'
import { needs } from '../servers/needs.ts'
import { rabbitmq } from '../servers/rabbitmq.ts'
import { sharedUrl } from '../servers/shared.ts'
import { soon } from '../soon.ts'
import { eventually } from './eventually.ts'
import { rememberingReceiver } from './remembering-receiver.ts'

const outgoing = (id: string, topic: string, more: Partial<Outgoing> = {}): Outgoing => ({
  id,
  topic,
  body: Buffer.from(`body of ${id}`),
  headers: { 'ce-type': 'test', 'content-type': 'text/plain' },
  ...more,
})

const ids = (count: number, prefix = 'm'): string[] => Array.from({ length: count }, (_, at) => `${prefix}${at}`)

// What the tests ask the server themselves.
async function withChannel<T>(url: string, use: (channel: ConfirmChannel) => Promise<T>): Promise<T> {
  const connection = await connect(url)
  connection.on('error', () => {})
  try {
    const channel = await connection.createConfirmChannel()
    channel.on('error', () => {})
    return await use(channel)
  } finally {
    await connection.close().catch(() => {})
  }
}

async function declareQueue(url: string, more: Record<string, unknown> = {}): Promise<string> {
  const queue = `q-${crypto.randomUUID()}`
  await withChannel(url, (channel) =>
    channel.assertQueue(queue, { durable: true, arguments: { 'x-queue-type': 'quorum', ...more } }),
  )
  return queue
}

const put = (url: string, queue: string, messageIds: readonly string[]): Promise<void> =>
  withChannel(url, async (channel) => {
    for (const messageId of messageIds)
      channel.sendToQueue(queue, Buffer.from(messageId), { messageId, persistent: true })
    await channel.waitForConfirms()
  })

// All that is ready in the queue, taken out of it.
const takeAll = (url: string, queue: string): Promise<string[]> =>
  withChannel(url, async (channel) => {
    const taken: string[] = []
    for (;;) {
      const message = await channel.get(queue, { noAck: true })
      if (!message) return taken
      taken.push(String(message.properties.messageId))
    }
  })

// Connections of which the tests see what they receive, and when their consumer is cancelled.
interface Watched {
  readonly connections: ChannelModel[]
  received: number
  cancelled: number
  connect(): Promise<ChannelModel>
}

function watching(url: string): Watched {
  const watched: Watched = {
    connections: [],
    received: 0,
    cancelled: 0,
    async connect() {
      const connection = await connect(url)
      watched.connections.push(connection)
      const createChannel = connection.createChannel.bind(connection)
      connection.createChannel = async () => {
        const channel = await createChannel()
        channel.on('delivery', () => (watched.received += 1))
        const cancel = channel.cancel.bind(channel)
        channel.cancel = async (consumerTag) => {
          const cancelled = await cancel(consumerTag)
          watched.cancelled += 1
          return cancelled
        }
        return channel
      }
      return connection
    },
  }
  return watched
}

needs('rabbitmq').describe('RabbitMQ', () => {
  let url = ''
  beforeAll(async () => void (url = await sharedUrl(rabbitmq)))

  test('a published message arrives as it was sent, and is confirmed and acknowledged', async () => {
    const queue = await declareQueue(url)
    const inbox = rememberingReceiver(20)
    const publisher = rabbitmqPublisher({ connect: () => connect(url) })
    const headers = { 'ce-type': 'order.placed', 'ce-time': '2026-01-02T03:04:05.678Z', traceparent: '00-a-b-01' }
    const all = { ...headers, 'content-type': 'application/json' }
    expect(await publisher.publish([outgoing('m0', queue, { key: 'order-1', headers: all })])).toEqual([undefined])
    const seen: Message[] = []
    const consuming = rabbitmqConsumer({ connect: () => connect(url), queue, inbox }, (tx, message) => {
      seen.push(message)
      tx.push(message.id!)
    })
    await eventually('the message', () => inbox.effects.length === 1)
    await consuming.stop()
    expect(seen[0]).toMatchObject({ id: 'm0', topic: queue, key: 'order-1', sentAtMs: Date.parse(headers['ce-time']) })
    expect(seen[0]!.headers).toMatchObject({ ...all, 'ce-id': 'm0', 'ce-partitionkey': 'order-1' })
    expect(Buffer.from(seen[0]!.body).toString()).toBe('body of m0')
    expect(await takeAll(url, queue)).toEqual([])
    await publisher.close!()
  })

  test('the attributes of a CloudEvent, the id and the time are where others look for them', async () => {
    const queue = await declareQueue(url)
    const publisher = rabbitmqPublisher({ connect: () => connect(url) })
    await publisher.publish([outgoing('m0', queue, { key: 'k' })])
    const { properties } = await withChannel(
      url,
      async (channel) => (await channel.get(queue, { noAck: true })) || never(),
    )
    expect(properties).toMatchObject({ messageId: 'm0', contentType: 'text/plain', deliveryMode: 2 })
    expect(properties.headers).toMatchObject({
      'cloudEvents:id': 'm0',
      'cloudEvents:type': 'test',
      'cloudEvents:partitionkey': 'k',
    })
    expect(Math.abs(properties.timestamp * 1_000 - Date.now())).toBeLessThan(600_000)
    await publisher.close!()
  })

  test('a message of another sender has what it says, whatever its headers are', async () => {
    const queue = await declareQueue(url)
    const inbox = rememberingReceiver(20)
    await withChannel(url, async (channel) => {
      const headers = {
        Number: 1,
        Deep: { big: { '!': 'int64', value: 2 ** 60 }, list: [true, null] },
        cloudEvents_subject: 'order-1',
      }
      channel.sendToQueue(queue, Buffer.from('x'), { messageId: 'm0', timestamp: 1_700_000_000, headers })
      channel.sendToQueue(queue, Buffer.from('x'), { timestamp: 1_700_000_000_123 })
      await channel.waitForConfirms()
    })
    const consuming = rabbitmqConsumer({ connect: () => connect(url), queue, inbox, prefetch: 1 }, () => {})
    await eventually('both', () => inbox.seen.length === 2)
    await consuming.stop()
    expect(inbox.seen[0]).toMatchObject({ id: 'm0', sentAtMs: 1_700_000_000_000 })
    expect(inbox.seen[0]!.headers).toMatchObject({ number: '1', 'ce-subject': 'order-1' })
    expect(inbox.seen[0]!.headers['deep']).toContain('"list":[true,null]')
    expect(inbox.seen[1]).toMatchObject({ sentAtMs: 1_700_000_000_123 })
    expect(inbox.seen[1]).not.toHaveProperty('id')
    expect(inbox.seen[1]).not.toHaveProperty('key')
  })

  test('a message that comes twice takes effect once', async () => {
    const queue = await declareQueue(url)
    const inbox = rememberingReceiver(20)
    await put(url, queue, ['m0', 'm0', 'm1', 'm0'])
    const consuming = rabbitmqConsumer({ connect: () => connect(url), queue, inbox, prefetch: 1 }, (tx, { id }) =>
      tx.push(id!),
    )
    await eventually('all', () => inbox.deliveries.length === 4)
    await consuming.stop()
    expect(inbox.effects).toEqual(['m0', 'm1'])
    expect(await takeAll(url, queue)).toEqual([])
  })

  test('a message that fails more often than its queue delivers it is tried again all the same, and is not dropped', async () => {
    const queue = await declareQueue(url, { 'x-delivery-limit': 1 })
    const inbox = rememberingReceiver(20)
    await put(url, queue, ['m0'])
    const counts: (number | undefined)[] = []
    const consuming = rabbitmqConsumer({ connect: () => connect(url), queue, inbox }, (tx, { id, delivery }) => {
      counts.push(delivery)
      if (counts.length < 6) throw new Error('not yet')
      tx.push(id!)
    })
    await eventually('the sixth try', () => inbox.effects.length === 1)
    await consuming.stop()
    expect(counts).toEqual(Array.from({ length: 6 }, () => undefined))
    expect(await takeAll(url, queue)).toEqual([])
  })

  test('a message that waits for its next try does not keep the others waiting', async () => {
    const queue = await declareQueue(url)
    const inbox = rememberingReceiver(600_000)
    await put(url, queue, ['bad', ...ids(20)])
    const consuming = rabbitmqConsumer({ connect: () => connect(url), queue, inbox, prefetch: 2 }, (tx, { id }) => {
      if (id === 'bad') throw new Error('never')
      tx.push(id!)
    })
    await eventually('the others', () => inbox.effects.length === 20)
    await consuming.stop()
    expect(inbox.effects).toEqual(ids(20))
    expect(inbox.deliveries.filter((id) => id === 'bad')).toHaveLength(1)
    expect(await takeAll(url, queue)).toEqual(['bad'])
  })

  test('a message that ends its consumer more often than the delivery limit goes to the dead letters', async () => {
    const dead = await declareQueue(url)
    const limits = { 'x-delivery-limit': 2, 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': dead }
    const queue = await declareQueue(url, limits)
    const inbox = rememberingReceiver(20)
    const watched = watching(url)
    await put(url, queue, ['bad'])
    const counts: (number | undefined)[] = []
    const consuming = rabbitmqConsumer({ connect: watched.connect, queue, inbox }, async (_tx, { delivery }) => {
      counts.push(delivery)
      await watched.connections.at(-1)!.close()
      throw new Error('gone')
    })
    const letters: string[] = []
    await eventually('the dead letter', async () => letters.push(...(await takeAll(url, dead))) > 0)
    await consuming.stop()
    expect(letters).toEqual(['bad'])
    expect(counts).toEqual([undefined, 2, 3])
  })

  test('messages of one key are handled in their order, also when one of them fails', async () => {
    const queue = await declareQueue(url)
    const inbox = rememberingReceiver(20)
    const publisher = rabbitmqPublisher({ connect: () => connect(url) })
    const sent = ids(30).map((id, at) => outgoing(id, queue, { key: `k${at % 3}` }))
    expect((await publisher.publish(sent)).filter(Boolean)).toEqual([])
    const failed = new Set<string>()
    const consuming = rabbitmqConsumer(
      { connect: () => connect(url), queue, inbox, prefetch: 15 },
      async (tx, { id, key }) => {
        await new Promise((resolve) => setImmediate(resolve))
        if (Number(id!.slice(1)) % 4 === 0 && !failed.has(id!)) {
          failed.add(id!)
          throw new Error('once')
        }
        tx.push(`${key} ${id}`)
      },
    )
    await eventually('all', () => inbox.effects.length === 30)
    await consuming.stop()
    for (const key of ['k0', 'k1', 'k2']) {
      const inOrder = sent.filter((message) => message.key === key).map(({ id }) => `${key} ${id}`)
      expect(inbox.effects.filter((effect) => effect.startsWith(key))).toEqual(inOrder)
    }
    await publisher.close!()
  })

  test('no more messages than prefetch are handled at once, also when the connection is lost under them', async () => {
    const queue = await declareQueue(url)
    const watched = watching(url)
    const inbox = rememberingReceiver(20)
    await put(url, queue, ids(40))
    let release = (): void => {}
    const released = new Promise<void>((resolve) => (release = resolve))
    const consuming = rabbitmqConsumer({ connect: watched.connect, queue, inbox, prefetch: 4 }, async (tx, { id }) => {
      await released
      tx.push(id!)
    })
    await eventually('four handlers', () => inbox.running === 4)
    await watched.connections[0]!.close()
    await eventually('four more on the second connection', () => watched.received === 8)
    expect(inbox.deliveries).toHaveLength(4)
    release()
    await eventually('all', () => inbox.effects.length === 40)
    await consuming.stop()
    expect(inbox.runningMax).toBe(4)
    expect([...inbox.effects].sort()).toEqual(ids(40).sort())
    expect(await takeAll(url, queue)).toEqual([])
  })

  test('an acknowledgement on a channel that has ended is harmless: the message comes again and has no second effect', async () => {
    const queue = await declareQueue(url)
    const { connections, connect: open } = watching(url)
    const inbox = rememberingReceiver(20)
    await put(url, queue, ids(3))
    const consuming = rabbitmqConsumer({ connect: open, queue, inbox, prefetch: 1 }, async (tx, { id }) => {
      if (connections.length === 1) await connections[0]!.close()
      tx.push(id!)
    })
    await eventually('the message to come again', () => inbox.deliveries.length >= 4)
    await consuming.stop()
    expect(inbox.effects).toEqual(ids(3))
    expect(inbox.deliveries).toEqual(['m0', 'm0', 'm1', 'm2'])
    expect(await takeAll(url, queue)).toEqual([])
  })

  test('stop ends what is being handled, acknowledges it, and leaves the rest in the queue', async () => {
    const queue = await declareQueue(url)
    const inbox = rememberingReceiver(20)
    const watched = watching(url)
    await put(url, queue, ids(20))
    let release = (): void => {}
    const released = new Promise<void>((resolve) => (release = resolve))
    const consuming = rabbitmqConsumer({ connect: watched.connect, queue, inbox, prefetch: 5 }, async (tx, { id }) => {
      await released
      tx.push(id!)
    })
    await eventually('five handlers', () => inbox.running === 5)
    const stopped = consuming.stop()
    await eventually('the consumer to be cancelled', () => watched.cancelled === 1)
    release()
    await stopped
    await consuming.ended
    expect([...inbox.effects].sort()).toEqual(ids(5))
    expect((await takeAll(url, queue)).sort()).toEqual(ids(20).slice(5).sort())
  })

  test('stop does not wait for a server that does not answer, and what it had delivered comes again', async () => {
    const queue = await declareQueue(url)
    await using proxy = await startFaultProxy({ target: { url } })
    const inbox = rememberingReceiver(20)
    await put(url, queue, ids(1))
    let release = (): void => {}
    const released = new Promise<void>((resolve) => (release = resolve))
    const consuming = rabbitmqConsumer({ connect: () => connect(proxy.url), queue, inbox }, async (tx, { id }) => {
      await released
      tx.push(id!)
    })
    await eventually('the handler', () => inbox.running === 1)
    await proxy.setMode('blackHole')
    release()
    await soon('stop', consuming.stop())
    expect(inbox.effects).toEqual(['m0'])
    await proxy.setMode('reset')
    const again: string[] = []
    await eventually('the message', async () => again.push(...(await takeAll(url, queue))) > 0)
    expect(again).toEqual(['m0'])
    const hanging = rabbitmqConsumer({ connect: () => new Promise<never>(() => {}), queue, inbox }, () => {})
    await soon('stop', hanging.stop())
  })

  test('a queue that is not there ends the consumer, and the error says what to do', async () => {
    const inbox = rememberingReceiver(20)
    const consuming = rabbitmqConsumer({ connect: () => connect(url), queue: 'not-there', inbox }, () => {})
    await expect(consuming.ended).rejects.toThrow(/cannot consume from not-there .* Declare the queue/)
    await consuming.stop()
  })

  test('a consumer whose queue is deleted and declared again goes on', async () => {
    const queue = await declareQueue(url)
    const inbox = rememberingReceiver(20)
    const open = async (): Promise<ChannelModel> => {
      const connection = await connect(url)
      const channel = await connection.createChannel()
      await channel.assertQueue(queue, { durable: true, arguments: { 'x-queue-type': 'quorum' } })
      await channel.close()
      return connection
    }
    const consuming = rabbitmqConsumer({ connect: open, queue, inbox }, (tx, { id }) => tx.push(id!))
    await put(url, queue, ['m0'])
    await eventually('the first', () => inbox.effects.length === 1)
    await withChannel(url, (channel) => channel.deleteQueue(queue))
    await eventually('the queue to be back', () => withChannel(url, (channel) => exists(channel, queue)))
    await put(url, queue, ['m1'])
    await eventually('the second', () => inbox.effects.length === 2)
    await consuming.stop()
  })

  test('a message that no queue takes is a failure, although it is confirmed, and ends its key', async () => {
    const queue = await declareQueue(url)
    const publisher = rabbitmqPublisher({ connect: () => connect(url) })
    const published = await publisher.publish([
      outgoing('m0', queue, { key: 'k' }),
      outgoing('lost', 'no-such-queue', { key: 'k' }),
      outgoing('m1', queue, { key: 'k' }),
      outgoing('m2', queue, { key: 'other' }),
      outgoing('lost', 'no-such-queue'),
      outgoing('lost', 'no-such-queue'),
      outgoing('m3', queue),
    ])
    expect(published.map(said)).toEqual(['', 'returned', 'not sent', '', 'returned', 'returned', ''])
    expect((await takeAll(url, queue)).sort()).toEqual(['m0', 'm2', 'm3'])
    await publisher.close!()
  })

  test('an exchange and a routing key of one’s own', async () => {
    const queue = await declareQueue(url)
    const exchange = `e-${crypto.randomUUID()}`
    await withChannel(url, async (channel) => {
      await channel.assertExchange(exchange, 'topic', { durable: true })
      await channel.bindQueue(queue, exchange, 'orders.#')
    })
    const routingKeyOf = ({ topic, key }: Outgoing): string => `${topic}.${key}`
    const publisher = rabbitmqPublisher({ connect: () => connect(url), exchange, routingKeyOf })
    const published = await publisher.publish([
      outgoing('m0', 'orders', { key: 'a' }),
      outgoing('m1', 'bills', { key: 'a2' }),
    ])
    expect(published.map(said)).toEqual(['', 'returned'])
    expect(await takeAll(url, queue)).toEqual(['m0'])
    await publisher.close!()
    await expect(publisher.publish([])).rejects.toThrow('closed')
  })

  test('what was not confirmed when the connection ended has failed, and the next publish has another connection', async () => {
    const queue = await declareQueue(url)
    await using proxy = await startFaultProxy({ target: { url } })
    const publisher = rabbitmqPublisher({ connect: () => connect(proxy.url) })
    expect(await publisher.publish([outgoing('m0', queue)])).toEqual([undefined])
    await proxy.setMode('dropReply')
    const publishing = publisher.publish([outgoing('m1', queue, { key: 'k' }), outgoing('m2', queue, { key: 'k' })])
    await eventually(
      'm1 at the broker',
      async () => (await withChannel(url, (channel) => channel.checkQueue(queue))).messageCount === 2,
    )
    await proxy.setMode('pass')
    expect((await publishing).map(said)).toEqual(['not confirmed', 'not sent'])
    expect(await publisher.publish([outgoing('m1', queue), outgoing('m2', queue)])).toEqual([undefined, undefined])
    expect(await takeAll(url, queue)).toEqual(['m0', 'm1', 'm1', 'm2'])
    await publisher.close!()
  })

  test('a message that is not confirmed in time has failed, and the next publish has another connection', async () => {
    const queue = await declareQueue(url)
    await using proxy = await startFaultProxy({ target: { url } })
    let connections = 0
    const open = (): Promise<ChannelModel> => connect(++connections === 1 ? proxy.url : url)
    const publisher = rabbitmqPublisher({ connect: open, timeoutMs: 1_000 })
    expect(await publisher.publish([outgoing('m0', queue)])).toEqual([undefined])
    await proxy.setMode('blackHole')
    expect((await publisher.publish([outgoing('m1', queue)])).map(said)).toEqual(['not confirmed'])
    expect(await publisher.publish([outgoing('m1', queue)])).toEqual([undefined])
    expect(connections).toBe(2)
    await publisher.close!()
  })

  test('options are checked by name', () => {
    const right = { connect: () => connect(url), queue: 'q', inbox: rememberingReceiver(20) }
    expect(() => rabbitmqConsumer({ ...right, prefetch: 0 }, () => {})).toThrow('expected prefetch')
    expect(() => rabbitmqConsumer({ ...right, preFetch: 1 } as typeof right, () => {})).toThrow(
      'did you mean "prefetch"',
    )
    expect(() => rabbitmqPublisher({ exchange: 'e' } as never)).toThrow('expected connect to be a function')
  })
})

function never(): never {
  throw new Error('expected a message')
}

async function exists(channel: Channel, queue: string): Promise<boolean> {
  return channel.checkQueue(queue).then(
    () => true,
    () => false,
  )
}

// What became of a message, in two words.
function said(published: Published): string {
  if (!published) return ''
  return /returned|not sent|not confirmed/.exec(published.message)?.[0] ?? published.message
}

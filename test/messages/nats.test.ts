// NATS JetStream as inbox and relay use it, on a real server.
import { AckPolicy, jetstream, jetstreamManager, type Consumer, type ConsumerConfig } from '@nats-io/jetstream'
import { connect, headers, nanos, type NatsConnection } from '@nats-io/transport-node'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { NatsPullConsumer } from '../../src/clients/nats.ts'
import type { Message, Outgoing, Published } from '../../src/messages/broker.ts'
import { natsConsumer, natsPublisher, type NatsPublisherOptions } from '../../src/messages/nats.ts'
import { manualClock } from '../../src/testing/manual-clock.ts'
import { startFaultProxy } from '../servers/fault-proxy.ts'
import { nats } from '../servers/nats.ts'
import { needs } from '../servers/needs.ts'
import { sharedUrl } from '../servers/shared.ts'
import { soon } from '../soon.ts'
import { eventually } from './eventually.ts'
import { rememberingReceiver } from './remembering-receiver.ts'

const ids = (count: number, prefix = 'm'): string[] => Array.from({ length: count }, (_, at) => `${prefix}${at}`)

const outgoing = (id: string, topic: string, more: Partial<Outgoing> = {}): Outgoing => ({
  id,
  topic,
  body: Buffer.from(`body of ${id}`),
  headers: { 'ce-type': 'test', 'content-type': 'text/plain' },
  ...more,
})

needs('nats').describe('NATS', () => {
  let url = ''
  let connection: NatsConnection
  beforeAll(async () => {
    url = await sharedUrl(nats)
    connection = await connect({ servers: url })
  })
  afterAll(() => connection?.close())

  interface Place {
    readonly stream: string
    readonly subject: string
    readonly consumer: Consumer
    // Messages that are neither delivered nor acknowledged, and those that are delivered and not acknowledged.
    // The server counts a new message as waiting some time after it has acknowledged it.
    left(): Promise<{ waiting: number; inHand: number }>
    // Messages in the stream: counted when they are stored.
    stored(): Promise<number>
  }

  async function place(config: Partial<ConsumerConfig> = {}): Promise<Place> {
    const stream = `s-${crypto.randomUUID()}`
    const manager = await jetstreamManager(connection)
    await manager.streams.add({ name: stream, subjects: [`${stream}.>`] })
    await manager.consumers.add(stream, { durable_name: 'test', ack_policy: AckPolicy.Explicit, ...config })
    const consumer = await jetstream(connection).consumers.get(stream, 'test')
    return {
      stream,
      subject: `${stream}.a`,
      consumer,
      async left() {
        const { num_pending: waiting, num_ack_pending: inHand } = await consumer.info()
        return { waiting, inHand }
      },
      async stored() {
        return (await manager.streams.info(stream)).state.messages
      },
    }
  }

  const publisherOf = (more: Partial<NatsPublisherOptions<ReturnType<typeof headers>>> = {}) =>
    natsPublisher({ jetstream: jetstream(connection), headers, ...more })

  async function put(subject: string, messageIds: readonly string[]): Promise<void> {
    for (const id of messageIds) {
      const carried = headers()
      carried.append('ce-id', id)
      await jetstream(connection).publish(subject, id, { headers: carried })
    }
  }

  test('a published message arrives as it was sent, and is acknowledged', async () => {
    const { stream, subject, consumer, left } = await place()
    const inbox = rememberingReceiver(20)
    const sent = { 'ce-type': 'order.placed', 'ce-time': '2026-01-02T03:04:05.678Z', traceparent: '00-a-b-01' }
    const key = ' Müller "50 %"\r\nx: y '
    const all = { ...sent, 'content-type': 'application/json' }
    expect(await publisherOf({ stream }).publish([outgoing('m0', subject, { key, headers: all })])).toEqual([undefined])
    const seen: Message[] = []
    const consuming = natsConsumer({ consumer, inbox }, (tx, message) => {
      seen.push(message)
      tx.push(message.id!)
    })
    await eventually('the message', () => inbox.effects.length === 1)
    await consuming.stop()
    const sentAtMs = Date.parse(sent['ce-time'])
    expect(seen[0]).toMatchObject({ id: 'm0', topic: subject, key, sentAtMs, delivery: 1 })
    expect(seen[0]!.headers).toMatchObject({ ...all, 'ce-id': 'm0', 'ce-partitionkey': key, 'nats-msg-id': 'm0' })
    expect(Buffer.from(seen[0]!.body).toString()).toBe('body of m0')
    expect(await left()).toEqual({ waiting: 0, inHand: 0 })
  })

  test('a message that comes twice takes effect once, and one that is published twice at once is stored once', async () => {
    const { subject, consumer } = await place()
    const inbox = rememberingReceiver(20)
    await put(subject, ['m0', 'm0', 'm1', 'm0'])
    expect(await publisherOf().publish([outgoing('m2', subject), outgoing('m2', subject)])).toEqual([
      undefined,
      undefined,
    ])
    const consuming = natsConsumer({ consumer, inbox, inFlight: 1 }, (tx, { id }) => tx.push(id!))
    await eventually('all', () => inbox.deliveries.length === 5)
    await consuming.stop()
    expect(inbox.effects).toEqual(['m0', 'm1', 'm2'])
    expect(inbox.deliveries).toEqual(['m0', 'm0', 'm1', 'm0', 'm2'])
  })

  test('a message whose handler fails comes again after its pause, and the server has counted', async () => {
    const { subject, consumer, left } = await place()
    const inbox = rememberingReceiver(20)
    await put(subject, ['m0'])
    const counts: (number | undefined)[] = []
    const consuming = natsConsumer({ consumer, inbox }, (tx, { id, delivery }) => {
      counts.push(delivery)
      if (counts.length < 3) throw new Error('not yet')
      tx.push(id!)
    })
    await eventually('the third try', () => inbox.effects.length === 1)
    await consuming.stop()
    expect(counts).toEqual([1, 2, 3])
    expect(await left()).toEqual({ waiting: 0, inHand: 0 })
  })

  test('where deliveries are limited, a message that fails is tried again in place and not left behind', async () => {
    const { subject, consumer, left } = await place({ max_deliver: 2 })
    const inbox = rememberingReceiver(20)
    await put(subject, ['m0'])
    const counts: (number | undefined)[] = []
    const consuming = natsConsumer({ consumer, inbox }, (tx, { id, delivery }) => {
      counts.push(delivery)
      if (counts.length < 6) throw new Error('not yet')
      tx.push(id!)
    })
    await eventually('the sixth try', () => inbox.effects.length === 1)
    await consuming.stop()
    expect(counts).toEqual([1, 1, 1, 1, 1, 1])
    expect(await left()).toEqual({ waiting: 0, inHand: 0 })
  })

  test('a message that waits for its next try does not keep the others waiting', async () => {
    const { subject, consumer } = await place()
    const inbox = rememberingReceiver(600_000)
    await put(subject, ['bad', ...ids(20)])
    const consuming = natsConsumer({ consumer, inbox, inFlight: 1 }, (tx, { id }) => {
      if (id === 'bad') throw new Error('never')
      tx.push(id!)
    })
    await eventually('the others', () => inbox.effects.length === 20)
    await consuming.stop()
    expect(inbox.effects).toEqual(ids(20))
    expect(inbox.deliveries.filter((id) => id === 'bad')).toHaveLength(1)
  })

  test('messages of one key are handled in their order, also when one of them fails', async () => {
    const { subject, consumer } = await place()
    const inbox = rememberingReceiver(20)
    const sent = ids(30).map((id, at) => outgoing(id, subject, { key: `k${at % 3}` }))
    expect((await publisherOf().publish(sent)).filter(Boolean)).toEqual([])
    const failed = new Set<string>()
    const consuming = natsConsumer({ consumer, inbox, inFlight: 15 }, async (tx, { id, key }) => {
      await new Promise((resolve) => setImmediate(resolve))
      if (Number(id!.slice(1)) % 4 === 0 && !failed.has(id!)) {
        failed.add(id!)
        throw new Error('once')
      }
      tx.push(`${key} ${id}`)
    })
    await eventually('all', () => inbox.effects.length === 30)
    await consuming.stop()
    for (const key of ['k0', 'k1', 'k2']) {
      const inOrder = sent.filter((message) => message.key === key).map(({ id }) => `${key} ${id}`)
      expect(inbox.effects.filter((effect) => effect.startsWith(key))).toEqual(inOrder)
    }
  })

  test('a message in hand for longer than ack_wait is not delivered again', async () => {
    const { subject, consumer, left } = await place({ ack_wait: nanos(600) })
    const inbox = rememberingReceiver(20)
    await publisherOf().publish(ids(2).map((id) => outgoing(id, subject, { key: 'k' })))
    let release = (): void => {}
    const released = new Promise<void>((resolve) => (release = resolve))
    // The second one waits for the first, and is in hand all the same.
    const consuming = natsConsumer({ consumer, inbox, inFlight: 3 }, async (tx, { id }) => {
      await released
      tx.push(id!)
    })
    await eventually('both in hand', async () => inbox.running === 1 && (await left()).inHand === 2)
    await new Promise((resolve) => setTimeout(resolve, 2_000))
    expect((await consumer.info()).num_redelivered).toBe(0)
    release()
    await eventually('both', () => inbox.effects.length === 2)
    await consuming.stop()
    expect(inbox.deliveries).toEqual(['m0', 'm1'])
    expect(await left()).toEqual({ waiting: 0, inHand: 0 })
  })

  test('no more messages than inFlight are asked for, and no more are handled at once', async () => {
    const { subject, consumer, left } = await place()
    const inbox = rememberingReceiver(20)
    await put(subject, ids(40))
    let release = (): void => {}
    const released = new Promise<void>((resolve) => (release = resolve))
    const consuming = natsConsumer({ consumer, inbox, inFlight: 4 }, async (tx, { id }) => {
      await released
      tx.push(id!)
    })
    await eventually('four handlers', () => inbox.running === 4)
    expect(await left()).toEqual({ waiting: 36, inHand: 4 })
    release()
    await eventually('all', () => inbox.effects.length === 40)
    await consuming.stop()
    expect(inbox.runningMax).toBe(4)
    expect(inbox.effects.toSorted()).toEqual(ids(40).toSorted())
  })

  test('an acknowledgement whose answer is lost has no second effect', async () => {
    const { stream, subject } = await place({ ack_wait: nanos(1_000) })
    await using proxy = await startFaultProxy({ target: { url } })
    const through = await connect({ servers: proxy.url, maxReconnectAttempts: -1, reconnectTimeWait: 100 })
    const consumer = await jetstream(through).consumers.get(stream, 'test')
    const inbox = rememberingReceiver(20)
    await publisherOf().publish(ids(3).map((id) => outgoing(id, subject, { key: 'k' })))
    const consuming = natsConsumer({ consumer, inbox, inFlight: 1, timeoutMs: 300 }, async (tx, { id }) => {
      if (inbox.effects.length === 0) await proxy.setMode('dropRequest')
      tx.push(id!)
    })
    await eventually('the first effect', () => inbox.effects.length === 1)
    await proxy.setMode('pass')
    await eventually('all', () => inbox.effects.length === 3)
    await eventually('the first one again', () => inbox.deliveries.filter((id) => id === 'm0').length === 2)
    await consuming.stop()
    expect(inbox.effects.toSorted()).toEqual(ids(3))
    await through.close()
  })

  test('stop ends what is being handled, acknowledges it, and leaves the rest to others at once', async () => {
    const { subject, consumer, left } = await place()
    const inbox = rememberingReceiver(20)
    await put(subject, ids(20))
    const releases: (() => void)[] = []
    const consuming = natsConsumer({ consumer, inbox, inFlight: 5 }, async (tx, { id }) => {
      await new Promise<void>((resolve) => releases.push(resolve))
      tx.push(id!)
    })
    await eventually('five handlers', () => releases.length === 5)
    let isStopped = false
    const stopped = consuming.stop().then(() => (isStopped = true))
    releases[0]!()
    await eventually('the first effect', () => inbox.effects.length === 1)
    // Long enough for a stop that does not wait for the other four.
    await new Promise((resolve) => setTimeout(resolve, 300))
    expect(isStopped).toBe(false)
    for (const release of releases) release()
    await stopped
    await consuming.ended
    expect(inbox.effects.toSorted()).toEqual(ids(5))
    expect(await left()).toEqual({ waiting: 15, inHand: 0 })
  })

  test('a stop while nothing is there loses nothing that comes at that moment', async () => {
    const { subject, consumer, left } = await place()
    const inbox = rememberingReceiver(20)
    // Its questions stay open until a message comes, and a stop does not end them.
    let asked = 0
    const patient: NatsPullConsumer = {
      info: () => consumer.info(),
      fetch({ max_messages }) {
        asked++
        return consumer.fetch({ max_messages, expires: 60_000 })
      },
    }
    const options = { consumer: patient, inbox, inFlight: 1, clock: manualClock(1_800_000_000_000) }
    const consuming = natsConsumer(options, (tx, { id }) => tx.push(id!))
    await put(subject, ['m0'])
    await eventually('the question after the first', () => asked === 2)
    const stopped = consuming.stop()
    await put(subject, ['m1'])
    await stopped
    // It came, and was given back: another consumer has it at once, and not after ack_wait.
    const other = rememberingReceiver(20)
    const next = natsConsumer({ consumer, inbox: other }, (tx, { id }) => tx.push(id!))
    await eventually('the second', () => other.effects.length === 1)
    await next.stop()
    expect([...inbox.effects, ...other.effects]).toEqual(['m0', 'm1'])
    expect(await left()).toEqual({ waiting: 0, inHand: 0 })
  })

  test('a consumer that leaves messages behind before the inbox parks them is refused', async () => {
    const few = await place({ max_deliver: 3 })
    const inbox = { ...rememberingReceiver(20), attempts: 10 }
    const refused = natsConsumer({ consumer: few.consumer, inbox }, () => {})
    await expect(soon('it', refused.ended)).rejects.toThrow(
      /max_deliver 3, and the inbox tries a message 10 times .* Set max_deliver to -1/,
    )
    const enough = await place({ max_deliver: 10 })
    await natsConsumer({ consumer: enough.consumer, inbox }, () => {}).stop()
  })

  test('a consumer without explicit acknowledgements is refused', async () => {
    const { consumer } = await place({ ack_policy: AckPolicy.None })
    const consuming = natsConsumer({ consumer, inbox: rememberingReceiver(20) }, () => {})
    await expect(soon('it', consuming.ended)).rejects.toThrow('ack_policy "none"')
  })

  test('a consumer that is deleted ends, and so does one whose connection is closed', async () => {
    const { stream, consumer } = await place()
    const deleted = natsConsumer({ consumer, inbox: rememberingReceiver(20) }, () => {})
    const manager = await jetstreamManager(connection)
    await manager.consumers.delete(stream, 'test')
    await expect(deleted.ended).rejects.toThrow('consumer not found')
    const other = await connect({ servers: url })
    const { stream: second } = await place()
    const open = await jetstream(other).consumers.get(second, 'test')
    const closed = natsConsumer({ consumer: open, inbox: rememberingReceiver(20) }, () => {})
    await other.close()
    await expect(closed.ended).rejects.toThrow('closed connection')
  })

  test('a message that no stream takes is a failure and ends its key, and so is one for another stream', async () => {
    const { stream, subject, consumer } = await place()
    const elsewhere = await place()
    const published = await publisherOf({ stream, timeoutMs: 1_000 }).publish([
      outgoing('m0', subject, { key: 'k' }),
      outgoing('lost', `nowhere-${crypto.randomUUID()}`, { key: 'k' }),
      outgoing('m1', subject, { key: 'k' }),
      outgoing('m2', subject, { key: 'other' }),
      outgoing('wrong', elsewhere.subject),
      outgoing('m3', subject),
    ])
    expect(published.map(said)).toEqual(['', 'not acknowledged', 'not sent', '', 'not acknowledged', ''])
    const inbox = rememberingReceiver(20)
    const consuming = natsConsumer({ consumer, inbox }, (tx, { id }) => tx.push(id!))
    await eventually('three', () => inbox.effects.length === 3)
    await consuming.stop()
    expect(inbox.deliveries.toSorted()).toEqual(['m0', 'm2', 'm3'])
    expect(await elsewhere.stored()).toBe(0)
  })

  test('a message whose acknowledgement is lost has failed, and the same id is not stored again', async () => {
    const { subject, stored } = await place()
    await using proxy = await startFaultProxy({ target: { url } })
    const through = await connect({ servers: proxy.url, maxReconnectAttempts: -1, reconnectTimeWait: 100 })
    const publisher = natsPublisher({ jetstream: jetstream(through), headers, timeoutMs: 500 })
    expect(await publisher.publish([outgoing('m0', subject)])).toEqual([undefined])
    await proxy.setMode('dropReply')
    const lost = await publisher.publish([outgoing('m1', subject, { key: 'k' }), outgoing('m2', subject, { key: 'k' })])
    expect(lost.map(said)).toEqual(['not acknowledged', 'not sent'])
    await proxy.setMode('pass')
    const again = [outgoing('m1', subject, { key: 'k' }), outgoing('m2', subject, { key: 'k' })]
    await eventually('both', async () => (await publisher.publish(again)).every((each) => each === undefined))
    expect(await stored()).toBe(3)
    await through.close()
  })

  test('a subject of one’s own', async () => {
    const { stream, stored } = await place()
    const publisher = publisherOf({ subjectOf: ({ topic, key }) => `${stream}.${topic}.${key}` })
    expect(await publisher.publish([outgoing('m0', 'orders', { key: 'a' })])).toEqual([undefined])
    expect(await stored()).toBe(1)
  })

  test('options are checked by name', async () => {
    const { consumer } = await place()
    const right = { consumer, inbox: rememberingReceiver(20) }
    expect(() => natsConsumer({ ...right, inFlight: 0 }, () => {})).toThrow('expected inFlight')
    expect(() => natsConsumer({ ...right, inflight: 1 } as typeof right, () => {})).toThrow('did you mean "inFlight"')
    expect(() => natsPublisher({ jetstream: jetstream(connection) } as never)).toThrow(
      'expected headers to be a function',
    )
  })
})

// What became of a message, in two words.
function said(published: Published): string {
  if (!published) return ''
  return /not sent|not acknowledged/.exec(published.message)?.[0] ?? published.message
}

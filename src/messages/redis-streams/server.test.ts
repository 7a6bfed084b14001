// Redis Streams on a real server, through both clients: what goes out comes in, once at the inbox, whatever fails in between.

import { fork } from 'node:child_process'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { once } from 'node:events'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import { createClient } from 'redis'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { rememberingReceiver } from '../../../test/messages/remembering-receiver.ts'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import { startRedis } from '../../../test/servers/redis.ts'
import { redisCommand } from '../../../test/servers/redis/command.ts'
import type { Running } from '../../../test/servers/server.ts'
import { numbered, outgoing } from '../../../test/messages/outgoing.ts'
import type { NodeRedisClient } from '../../clients/redis.ts'
import type { Outgoing } from '../broker.ts'
import { redisStreamConsumer, redisStreamPublisher } from '../redis-streams.ts'
import type { RedisClient, StreamMessage } from '../redis-streams.ts'

const noteId = (tx: string[], message: StreamMessage): void => void tx.push(message.id!)
const group = 'shipping'
let streams = 0
const newStream = (): string => `orders-${process.pid}-${streams++}`

function gate(): { readonly opened: Promise<void>; open(): void } {
  const { promise, resolve } = Promise.withResolvers<void>()
  return { opened: promise, open: resolve }
}

interface Connected {
  readonly client: RedisClient
  close(): void
}

async function withNodeRedis(url: string, RESP: 2 | 3): Promise<Connected> {
  const client = createClient({ url, RESP })
  client.on('error', () => {})
  await client.connect()
  return { client, close: () => client.destroy() }
}

function withIoRedis(url: string): Connected {
  const client = new Redis(url)
  client.on('error', () => {})
  return { client, close: () => client.disconnect() }
}

needs('redis').describe('Redis Streams', () => {
  let server: Running
  let connected: Connected
  let client: RedisClient
  beforeAll(async () => {
    server = await startRedis()
    connected = await withNodeRedis(server.url, 2)
    client = connected.client
  })
  afterAll(async () => {
    connected.close()
    await server.stop()
  })

  async function send(stream: string, messages: readonly Outgoing[]): Promise<void> {
    const published = await redisStreamPublisher({ client, streamOf: () => stream }).publish(messages)
    expect(published.filter((each) => each !== undefined)).toEqual([])
  }
  const pendingIn = async (stream: string): Promise<number> =>
    Number(((await redisCommand(server.url, 'XPENDING', stream, group)) as unknown[])[0])

  describe.each([
    ['node-redis, RESP 2', () => withNodeRedis(server.url, 2)],
    ['node-redis, RESP 3', () => withNodeRedis(server.url, 3)],
    ['ioredis', async () => withIoRedis(server.url)],
  ] as const)('%s', (_, connect) => {
    test('what a relay publishes arrives with its id, key, body and headers, whatever bytes they are', async () => {
      const own = await connect()
      const stream = newStream()
      const sent = [
        outgoing('text', { topic: stream, key: 'customer 7', headers: { 'ce-type': 'order.placed', empty: '' } }),
        outgoing('bytes', { topic: stream, body: Uint8Array.of(0, 255, 128, 10) }),
        outgoing('headers', { topic: stream, headers: { body: 'mine', key: 'theirs', headers: 'ours', 'x y': 'ü' } }),
      ]
      expect(await redisStreamPublisher({ client: own.client }).publish(sent)).toEqual([
        undefined,
        undefined,
        undefined,
      ])
      const inbox = rememberingReceiver()
      const place = { client: own.client, stream, group, consumerName: 'one' }
      const consuming = redisStreamConsumer({ ...place, inbox }, noteId)
      await pollUntil('all to arrive', () => inbox.effects.length === sent.length)
      await consuming.stop()
      for (const { id, key, body, headers } of sent) {
        const arrived = inbox.seen.find((message) => message.id === id)!
        expect(arrived).toMatchObject({ topic: stream, delivery: 1, headers })
        expect(Buffer.from(arrived.body)).toEqual(Buffer.from(body))
        expect(arrived.key).toBe(key)
        expect(arrived.sentAtMs).toBeGreaterThan(1_700_000_000_000)
      }
      expect(await pendingIn(stream)).toBe(0)
      own.close()
    })

    test('what a consumer had in hand when it ended is the first that it handles when it is back', async () => {
      const own = await connect()
      const stream = newStream()
      await send(
        stream,
        numbered(3, () => ({ key: 'k' })),
      )
      const place = { client: own.client, stream, group, consumerName: 'one' }
      const before = rememberingReceiver(3_600_000)
      const first = redisStreamConsumer({ ...place, inbox: before }, () => {
        throw new Error('not now')
      })
      await pollUntil('it to fail', () => before.seen.length === 1)
      await first.stop()
      expect(await pendingIn(stream)).toBe(3)
      await send(stream, [outgoing('later', { key: 'k' })])
      const inbox = rememberingReceiver()
      const second = redisStreamConsumer({ ...place, inbox }, noteId)
      await pollUntil('the last one to be done', () => inbox.effects.includes('later'))
      await second.stop()
      expect(inbox.effects).toEqual(['m0', 'm1', 'm2', 'later'])
      expect(await pendingIn(stream)).toBe(0)
      own.close()
    })
  })

  test('a message that was sent twice has one effect, and both are acknowledged', async () => {
    const stream = newStream()
    await send(stream, [outgoing('a'), outgoing('a'), outgoing('b')])
    const inbox = rememberingReceiver()
    const consuming = redisStreamConsumer({ client, stream, group, consumerName: 'one', inbox }, noteId)
    await pollUntil('all to be acknowledged', async () => inbox.seen.length >= 3 && (await pendingIn(stream)) === 0)
    await consuming.stop()
    expect(inbox.effects.toSorted()).toEqual(['a', 'b'])
  })

  test('a message that failed is handled again before the next of its key, and other keys do not wait', async () => {
    const stream = newStream()
    await send(
      stream,
      numbered(12, (n) => ({ key: n % 2 === 0 ? 'even' : 'odd' })),
    )
    const inbox = rememberingReceiver(50)
    let failures = 0
    const consuming = redisStreamConsumer({ client, stream, group, consumerName: 'one', inbox }, (tx, message) => {
      if (message.id === 'm4' && failures++ < 2) throw new Error('not now')
      tx.push(message.id!)
    })
    await pollUntil('all to be done', () => inbox.effects.length === 12)
    await consuming.stop()
    for (const rest of [0, 1]) {
      const ids = inbox.effects.filter((id) => Number(id.slice(1)) % 2 === rest)
      expect(ids).toEqual([0, 2, 4, 6, 8, 10].map((n) => `m${n + rest}`))
    }
    expect(failures).toBe(3)
    expect(await pendingIn(stream)).toBe(0)
  })

  test('no more messages are taken than may be in flight', async () => {
    const stream = newStream()
    await send(stream, numbered(12))
    const inbox = rememberingReceiver()
    let running = 0
    let most = 0
    const { opened, open } = gate()
    const place = { client, stream, group, consumerName: 'one' }
    const consuming = redisStreamConsumer({ ...place, inbox, inFlight: 3 }, async (tx, message) => {
      most = Math.max(most, ++running)
      await opened
      running -= 1
      tx.push(message.id!)
    })
    await pollUntil('three to be handled', () => running === 3)
    expect(await pendingIn(stream)).toBe(3)
    open()
    await pollUntil('all to be done', () => inbox.effects.length === 12)
    await consuming.stop()
    expect(most).toBe(3)
  })

  test('a message is pending until its handler is done, and a consumer that is stopped finishes it', async () => {
    const stream = newStream()
    await send(stream, numbered(2))
    const inbox = rememberingReceiver()
    const { opened, open } = gate()
    const place = { client, stream, group, consumerName: 'one' }
    const consuming = redisStreamConsumer({ ...place, inbox }, async (tx, message) => {
      await opened
      tx.push(message.id!)
    })
    await pollUntil('two to be handled', () => inbox.seen.length === 2)
    expect(await pendingIn(stream)).toBe(2)
    let isStopped = false
    const stopped = consuming.stop().then(() => (isStopped = true))
    await send(stream, [outgoing('later')])
    const askedAtMs = performance.now()
    await pollUntil('the last question to be answered', () => performance.now() > askedAtMs + 1_000)
    expect(isStopped).toBe(false)
    open()
    await stopped
    await consuming.ended
    expect(inbox.effects.toSorted()).toEqual(['m0', 'm1'])
    expect(await pendingIn(stream)).toBe(0)
    const after = rememberingReceiver()
    const next = redisStreamConsumer({ ...place, inbox: after }, noteId)
    await pollUntil('the last one', () => after.effects.length === 1)
    await next.stop()
    expect(after.effects).toEqual(['later'])
  })

  test('a message is kept from others for as long as its handler runs', async () => {
    const stream = newStream()
    await send(stream, [outgoing('long')])
    const [first, second] = [rememberingReceiver(), rememberingReceiver()]
    const place = { client, stream, group, claimAfterMs: 3_000 }
    const { opened, open } = gate()
    let beganMs = 0
    // With its one hand full it asks for nothing, so that only its heartbeat speaks for it.
    const busy = { ...place, consumerName: 'one', inFlight: 1, inbox: first }
    const one = redisStreamConsumer(busy, async (tx, message) => {
      beganMs = performance.now()
      await opened
      tx.push(message.id!)
    })
    await pollUntil('it to be handled', () => beganMs > 0)
    const other = redisStreamConsumer({ ...place, consumerName: 'other', inbox: second }, noteId)
    await pollUntil('its first time to be over', () => performance.now() > beganMs + 5_000)
    open()
    await one.stop()
    await other.stop()
    expect(first.effects).toEqual(['long'])
    expect(second.seen).toEqual([])
  })

  test('what a consumer was handling when it was killed goes to another', async () => {
    const stream = newStream()
    await send(stream, numbered(4))
    const program = join(import.meta.dirname, '../../../test/messages/hanging-stream-consumer.ts')
    const child = fork(program, [server.url, stream, group], { execArgv: [] })
    await once(child, 'message')
    const exited = once(child, 'exit')
    child.kill('SIGKILL')
    await exited
    const inbox = rememberingReceiver()
    const place = { client, stream, group, consumerName: 'other', claimAfterMs: 1_000 }
    const consuming = redisStreamConsumer({ ...place, inbox }, noteId)
    await pollUntil('all to be done', () => inbox.effects.length === 4, { timeoutMs: 12_000 })
    await consuming.stop()
    expect(inbox.effects.toSorted()).toEqual(['m0', 'm1', 'm2', 'm3'])
    expect(inbox.seen.map(({ delivery }) => delivery)).toContain(2)
    expect(await pendingIn(stream)).toBe(0)
  })

  test('messages whose reply was lost on its way are read again', async () => {
    const stream = newStream()
    const real = client as NodeRedisClient
    let lost: unknown
    const losing: NodeRedisClient = {
      withTypeMapping: (mapping) => real.withTypeMapping(mapping),
      async sendCommand(command, options) {
        const reply = await real.sendCommand(command, options)
        if (command.at(-1) !== '>' || reply === null || lost !== undefined) return reply
        lost = reply
        throw new Error('the connection was lost')
      },
    }
    await send(
      stream,
      numbered(3, () => ({ key: 'k' })),
    )
    const inbox = rememberingReceiver()
    // Nobody claims them within the time of this test.
    const place = { client: losing, stream, group, consumerName: 'one', inFlight: 3, claimAfterMs: 3_600_000 }
    const consuming = redisStreamConsumer({ ...place, inbox }, noteId)
    await pollUntil('a reply to be lost', () => lost !== undefined)
    await send(stream, [outgoing('last', { key: 'k' })])
    await pollUntil('the last one to be done', () => inbox.effects.includes('last'))
    await consuming.stop()
    expect(inbox.effects).toEqual(['m0', 'm1', 'm2', 'last'])
  })

  test('pending messages that a trimmed stream has lost are told, and do not stop the consumer', async () => {
    const stream = newStream()
    await send(stream, numbered(3))
    await redisCommand(server.url, 'XGROUP', 'CREATE', stream, group, '0')
    await redisCommand(server.url, 'XREADGROUP', 'GROUP', group, 'dead', 'COUNT', '1', 'STREAMS', stream, '>')
    await redisCommand(server.url, 'XREADGROUP', 'GROUP', group, 'one', 'COUNT', '1', 'STREAMS', stream, '>')
    await redisCommand(server.url, 'XTRIM', stream, 'MAXLEN', '1')
    const told: unknown[] = []
    const listener = (message: unknown): void => void told.push(message)
    subscribe('onceonly:messages-trimmed', listener)
    const inbox = rememberingReceiver()
    const place = { client, stream, group, consumerName: 'one', claimAfterMs: 1 }
    const consuming = redisStreamConsumer({ ...place, inbox }, noteId)
    await pollUntil('all to be told', () => told.length === 2 && inbox.effects.length === 1)
    await consuming.stop()
    unsubscribe('onceonly:messages-trimmed', listener)
    expect(told).toMatchObject([
      { broker: 'redis-streams', consumer: 'remembering', count: 1 },
      { broker: 'redis-streams', consumer: 'remembering', count: 1 },
    ])
    expect(inbox.effects).toEqual(['m2'])
    expect(await pendingIn(stream)).toBe(0)
  })

  test('a stream is trimmed to about the length that its publisher was given', async () => {
    const stream = newStream()
    await redisStreamPublisher({ client, streamOf: () => stream, maxLength: 100 }).publish(numbered(1_000))
    expect(Number(await redisCommand(server.url, 'XLEN', stream))).toBeLessThan(400)
  })

  test('a name that is no stream ends the consumer, and fails only its own messages of a publisher', async () => {
    const name = newStream()
    const stream = newStream()
    await redisCommand(server.url, 'SET', name, 'a string')
    const inbox = rememberingReceiver()
    const consuming = redisStreamConsumer({ client, stream: name, group, consumerName: 'one', inbox }, noteId)
    await expect(consuming.ended).rejects.toThrow(/remembering cannot read .* as shipping \(WRONGTYPE.*Check the name/)
    const published = await redisStreamPublisher({ client }).publish([
      outgoing('a1', { topic: name, key: 'a' }),
      outgoing('a2', { topic: stream, key: 'a' }),
      outgoing('b1', { topic: stream, key: 'b' }),
    ])
    expect(published.map((each) => each?.message)).toEqual([
      expect.stringMatching(/^WRONGTYPE/),
      expect.stringMatching(/^message a2 was not sent: WRONGTYPE/),
      undefined,
    ])
  })
})

needs('redis', { ours: true }).describe('Redis Streams whose server is killed', () => {
  test('every message has one effect, in the order of its key, though the server is killed three times', async () => {
    await using server = await startRedis({ config: { appendonly: 'yes', appendfsync: 'always' } })
    const { client, close } = await withNodeRedis(server.url, 2)
    const stream = newStream()
    const inbox = rememberingReceiver(10)
    const place = { client, stream, group, consumerName: 'one', timeoutMs: 1_000 }
    const consuming = redisStreamConsumer({ ...place, inbox }, noteId)
    const sent = numbered(600, (n) => ({ key: `key ${n % 7}` }))
    let confirmed = 0
    const publishing = publishUntilConfirmed(client, stream, sent, (count) => (confirmed += count))
    for (const share of [100, 300, 500]) {
      await pollUntil(`${share} to be confirmed`, () => confirmed >= share)
      await server.crash()
      await server.restart()
    }
    await publishing
    await pollUntil('all to be done', () => inbox.effects.length >= sent.length)
    await consuming.stop()
    close()
    expect(inbox.effects.toSorted()).toEqual(sent.map(({ id }) => id).toSorted())
    for (const key of new Set(sent.map((each) => each.key))) {
      const ids = sent.flatMap((each) => (each.key === key ? each.id : []))
      expect(inbox.effects.filter((id) => ids.includes(id))).toEqual(ids)
    }
  })
})

/** As a relay does: batch after batch, each until the broker has confirmed all of it. */
async function publishUntilConfirmed(
  client: RedisClient,
  stream: string,
  sent: readonly Outgoing[],
  onConfirmed: (count: number) => void,
): Promise<void> {
  const publisher = redisStreamPublisher({ client, streamOf: () => stream, timeoutMs: 1_000 })
  for (let at = 0; at < sent.length; at += 20) {
    let left: readonly Outgoing[] = sent.slice(at, at + 20)
    await pollUntil('a batch to be confirmed', async () => {
      const published = await publisher.publish(left)
      onConfirmed(published.filter((each) => each === undefined).length)
      left = left.filter((_, index) => published[index] !== undefined)
      return left.length === 0
    })
  }
}

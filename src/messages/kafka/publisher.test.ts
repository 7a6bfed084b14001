// The publisher on a real broker, with each client: what arrives, in which order, and what is said of what does not.
import { randomBytes, randomUUID } from 'node:crypto'
import { expect, onTestFinished, test } from 'vitest'
import {
  clientsOn,
  confluentOn,
  createTopic,
  kafkajsOn,
  memoryReceiver,
  platformaticOn,
  sharedKafka,
} from '../../../test/messages/kafka/world.ts'
import { startFaultProxy } from '../../../test/servers/fault-proxy.ts'
import { freePort } from '../../../test/servers/free-port.ts'
import { startKafka } from '../../../test/servers/kafka.ts'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import { kafkaConsumer, type KafkaMessage, kafkaPublisher } from '../kafka.ts'
import type { Outgoing, Publisher } from '../broker.ts'

const outgoing = (topic: string, count: number, keys = 5): Outgoing[] =>
  Array.from({ length: count }, (_, position) => ({
    id: `id-${position}`,
    topic,
    key: `key-${position % keys}`,
    body: Buffer.from(String(position)),
    headers: { 'ce-type': 'counted', 'ce-source': '/tests', 'content-type': 'text/plain', traceparent: '00-a-b-01' },
  }))

function closedAfterwards(publisher: Publisher): Publisher {
  onTestFinished(() => publisher.close!())
  return publisher
}

/** Reads with kafkajs until `count` messages are there. */
async function readAll(url: string, topic: string, count: number): Promise<KafkaMessage[]> {
  const read: KafkaMessage[] = []
  const consuming = kafkaConsumer(
    {
      client: clientsOn['kafkajs']!(url),
      topics: [topic],
      group: randomUUID(),
      inbox: {
        ...memoryReceiver(),
        deliver: async (message, handler, acknowledge) => {
          await handler(undefined, message)
          await acknowledge()
          return { acknowledged: true }
        },
      },
    },
    (_, message) => void read.push(message),
  )
  await pollUntil(`${count} messages in ${topic}`, () => read.length >= count)
  await consuming.stop()
  return read
}

needs(['kafka', 'confluent']).describe('kafkaPublisher', () => {
  for (const [name, clientOn] of Object.entries(clientsOn)) {
    test(`${name}: what is confirmed has arrived, once, in the order of each key, with its id, type and headers`, async () => {
      const url = await sharedKafka()
      const topic = await createTopic(url, 3)
      const publisher = closedAfterwards(kafkaPublisher({ client: clientOn(url) }))
      const messages = outgoing(topic, 200)
      // Four calls at once, of which Platformatic would lose three if they were sent at once.
      const parts = [0, 1, 2, 3].map((part) => publisher.publish(messages.slice(part * 50, part * 50 + 50)))
      expect((await Promise.all(parts)).flat()).toEqual(messages.map(() => undefined))
      const read = await readAll(url, topic, 200)
      expect(read.map(({ id }) => id!).sort()).toEqual(messages.map(({ id }) => id!).sort())
      for (const key of new Set(messages.map((each) => each.key))) {
        const order = (from: readonly { key?: string; body: Uint8Array }[]): string[] =>
          from.filter((each) => each.key === key).map((each) => Buffer.from(each.body).toString())
        expect(order(read)).toEqual(order(messages))
      }
      const { id, body, key, topic: from, headers, sentAtMs } = read.find((each) => each.id === 'id-7')!
      expect({ id, key, from, body: Buffer.from(body).toString() }).toEqual({
        id: 'id-7',
        key: 'key-2',
        from: topic,
        body: '7',
      })
      expect(headers).toEqual({ ...messages[7]!.headers, 'ce-id': 'id-7' })
      expect(sentAtMs).toBeGreaterThan(0)
    })

    test(`${name}: a message for a topic that does not exist fails by itself, with what follows of its key`, async () => {
      const url = await sharedKafka()
      const topic = await createTopic(url, 3)
      const publisher = closedAfterwards(kafkaPublisher({ client: clientOn(url) }))
      const messages = outgoing(topic, 6, 3)
      messages[1] = { ...messages[1]!, topic: `missing-${randomUUID()}` }
      const published = await publisher.publish(messages)
      expect(published.map((each) => each === undefined)).toEqual([true, false, true, true, false, true])
      expect(await publisher.publish([messages[4]!])).toEqual([undefined])
      expect((await readAll(url, topic, 5)).map(({ id }) => id!).sort()).toEqual([
        'id-0',
        'id-2',
        'id-3',
        'id-4',
        'id-5',
      ])
    })

    test(`${name}: a message that is too large for the broker fails by itself, with what follows of its key`, async () => {
      const url = await sharedKafka()
      const topic = await createTopic(url, 1)
      const publisher = closedAfterwards(kafkaPublisher({ client: clientOn(url) }))
      const messages = outgoing(topic, 6, 4)
      messages[1] = { ...messages[1]!, body: randomBytes(1_200_000) }
      const published = await publisher.publish(messages)
      expect(published.map((each) => each === undefined)).toEqual([true, false, true, true, true, false])
      expect((await readAll(url, topic, 4)).map(({ id }) => id!).sort()).toEqual(['id-0', 'id-2', 'id-3', 'id-4'])
    })

    test(`${name}: replies that are lost make no duplicates, and a producer that timed out is not used again`, async () => {
      const port = await freePort()
      await using proxy = await startFaultProxy({ target: { url: `kafka://127.0.0.1:${port}` } })
      await using server = await startKafka({ proxied: { port, advertisedPort: proxy.port } })
      const topic = await createTopic(server.url, 1)
      const publisher = closedAfterwards(kafkaPublisher({ client: clientOn(proxy.url), timeoutMs: 3_000 }))
      expect(await publisher.publish(outgoing(topic, 1))).toEqual([undefined])
      await proxy.setMode('dropReply')
      const late = await publisher.publish([{ ...outgoing(topic, 1)[0]!, id: 'late' }])
      expect(late[0]).toMatchObject({ code: 'OUTCOME_UNKNOWN', message: expect.stringContaining('3000 ms') as string })
      await proxy.setMode('pass')
      // Reused, a producer would number these as the one whose fate it does not know, and the broker would drop them as seen.
      for (const id of ['a', 'b', 'c']) {
        await pollUntil(`${id} to be confirmed`, async () => {
          const [failed] = await publisher.publish([{ ...outgoing(topic, 1)[0]!, id }])
          return failed === undefined
        })
      }
      const ids = (await readAll(server.url, topic, 5)).map(({ id }) => id)
      expect([...new Set(ids)]).toEqual(['id-0', 'late', 'a', 'b', 'c'])
    })
  }

  test('all clients send a key to the same partition', async () => {
    const url = await sharedKafka()
    const partitions: string[] = []
    for (const clientOn of Object.values(clientsOn)) {
      const topic = await createTopic(url, 7)
      const publisher = closedAfterwards(kafkaPublisher({ client: clientOn(url) }))
      await publisher.publish(outgoing(topic, 20, 20))
      const read = await readAll(url, topic, 20)
      const found = read.map(({ key, raw }) => `${key} ${raw.partition}`)
      partitions.push(found.sort().join('\n'))
    }
    expect(new Set(partitions).size).toBe(1)
  })
})

needs('confluent').test('settings that would break the promise of an idempotent producer are refused by name', () => {
  for (const setting of [{ 'enable.idempotence': false }, { acks: 1 }, { 'enable.gapless.guarantee': false }]) {
    expect(() => confluentOn('kafka://127.0.0.1:1', setting)).toThrow(Object.keys(setting)[0]!)
  }
  expect(() => kafkaPublisher({ client: kafkajsOn('kafka://127.0.0.1:1') as never })).toThrow(
    /expected client to be confluentClient/,
  )
  expect(() => kafkaPublisher({ client: platformaticOn('kafka://127.0.0.1:1'), timeout: 3 } as never)).toThrow(
    /did you mean "timeoutMs"/,
  )
})

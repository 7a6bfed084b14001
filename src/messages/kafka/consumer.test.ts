// The consumer on a real broker, with each client: what reaches the inbox, in which order, and what is committed when.
import { randomUUID } from 'node:crypto'
import { expect, onTestFinished, test } from 'vitest'
import {
  clientsOn,
  committedOffsets,
  confluentOn,
  createTopic,
  kafkajsOn,
  memoryReceiver,
  platformaticOn,
  sendTexts,
  sharedKafka,
} from '../../../test/messages/kafka/world.ts'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import type { Consuming, Receiver } from '../broker.ts'
import { kafkaConsumer, type KafkaClient, type KafkaConsumerOptions, kafkajsClient } from '../kafka.ts'

const texts = (count: number, keys = 4): (readonly [string, string])[] =>
  Array.from({ length: count }, (_, position) => [`key-${position % keys}`, `text-${position}`])

/** Platformatic must be told that the topics have no transactions. */
function isolationOf(client: KafkaClient): Pick<KafkaConsumerOptions<undefined>, 'isolation'> {
  return client.abilities.readCommitted ? {} : { isolation: 'read_uncommitted' }
}

function stoppedAfterwards(consuming: Consuming): Consuming {
  onTestFinished(() => consuming.stop())
  return consuming
}

const sessionMs = 6_000

needs(['kafka', 'confluent']).describe('kafkaConsumer', () => {
  for (const [name, clientOn] of Object.entries(clientsOn)) {
    test(`${name}: every message reaches the inbox in the order of its partition, and a second run begins after the last commit`, async () => {
      const url = await sharedKafka()
      const [topic, group] = [await createTopic(url, 3), randomUUID()]
      const sent = texts(300)
      await sendTexts(url, topic, sent)
      const client = clientOn(url)
      const inbox = memoryReceiver()
      const options = { client, topics: [topic], group, inbox, sessionMs, ...isolationOf(client) }
      const first = stoppedAfterwards(kafkaConsumer(options, () => {}))
      await pollUntil('all effects', () => inbox.effects.length >= 300)
      await first.stop()
      await first.ended
      for (const key of new Set(sent.map(([each]) => each))) {
        const ofKey = sent.filter((each) => each[0] === key).map(([, text]) => text)
        expect(inbox.effects.filter((text) => ofKey.includes(text))).toEqual(ofKey)
      }
      expect((await committedOffsets(url, group, topic)).reduce((sum, each) => sum + Math.max(each, 0), 0)).toBe(300)
      await sendTexts(url, topic, [['key-0', 'more']])
      const again = stoppedAfterwards(kafkaConsumer(options, () => {}))
      await pollUntil('the new message', () => inbox.effects.includes('more'))
      await again.stop()
      expect(inbox).toMatchObject({ duplicates: 0, effects: { length: 301 } })
    })

    test(`${name}: a message that fails holds up its partition, in order, and no other`, async () => {
      const url = await sharedKafka()
      const [topic, group] = [await createTopic(url, 2), randomUUID()]
      const client = clientOn(url)
      const inbox = memoryReceiver()
      await sendTexts(url, topic, [
        ['a', 'a1', 0],
        ['a', 'a2', 0],
        ['b', 'b1', 1],
        ['a', 'a3', 0],
        ['b', 'b2', 1],
      ])
      let broken = true
      const tries: string[] = []
      const consuming = stoppedAfterwards(
        kafkaConsumer({ client, topics: [topic], group, inbox, sessionMs, ...isolationOf(client) }, (_, message) => {
          tries.push(message.id!)
          if (message.id === 'a2' && broken) throw new Error('not now')
        }),
      )
      await pollUntil(
        'b to be done and a2 to be tried often',
        () => inbox.effects.includes('b2') && (tries.includes('a3') || tries.filter((id) => id === 'a2').length >= 5),
      )
      expect(inbox.effects.filter((text) => text.startsWith('a'))).toEqual(['a1'])
      broken = false
      await pollUntil('the rest', () => inbox.effects.length === 5)
      await consuming.stop()
      expect(inbox.effects.filter((text) => text.startsWith('a'))).toEqual(['a1', 'a2', 'a3'])
      expect((await committedOffsets(url, group, topic)).toSorted((a, b) => a - b)).toEqual([2, 3])
    })

    test(`${name}: an offset is committed after its handler, never before`, async () => {
      const url = await sharedKafka()
      const [topic, group] = [await createTopic(url, 1), randomUUID()]
      const client = clientOn(url)
      const inbox = memoryReceiver()
      await sendTexts(url, topic, [
        ['a', 'first'],
        ['a', 'second'],
      ])
      let begun = false
      let release = (): void => {}
      const held = new Promise<void>((resolve) => (release = resolve))
      const consuming = stoppedAfterwards(
        kafkaConsumer(
          { client, topics: [topic], group, inbox, sessionMs, ...isolationOf(client) },
          async (_, message) => {
            if (message.id !== 'second') return
            begun = true
            await held
          },
        ),
      )
      // Also when the test fails: a stop waits for the handler.
      onTestFinished(() => release())
      await pollUntil('the second to be begun', () => begun)
      let stopped = false
      const stop = consuming.stop().then(() => (stopped = true))
      expect((await committedOffsets(url, group, topic))[0]).toBe(1)
      expect(stopped).toBe(false)
      release()
      await stop
      expect((await committedOffsets(url, group, topic))[0]).toBe(2)
      expect(inbox.effects).toEqual(['first', 'second'])
    })

    test(`${name}: a batch handler gets batches of a partition, and the offset stays below what is not done`, async () => {
      const url = await sharedKafka()
      const [topic, group] = [await createTopic(url, 1), randomUUID()]
      const client = clientOn(url)
      const inbox = memoryReceiver()
      await sendTexts(url, topic, texts(50, 1))
      const sizes: number[] = []
      let failures = 3
      const consuming = stoppedAfterwards(
        kafkaConsumer(
          { client, topics: [topic], group, inbox, sessionMs, batchMax: 20, ...isolationOf(client) },
          {
            batch: async (_, fresh) => {
              sizes.push(fresh.length)
              if (sizes.length > 1 && failures-- > 0) throw new Error('not now')
            },
          },
        ),
      )
      await pollUntil('all effects', () => inbox.effects.length >= 50)
      await consuming.stop()
      expect(inbox.effects).toEqual(texts(50).map(([, text]) => text))
      expect(Math.max(...sizes)).toBeLessThanOrEqual(20)
      expect(await committedOffsets(url, group, topic)).toEqual([50])
    })

    test(`${name}: when a second member joins and leaves, nothing is lost and each partition stays in order`, async () => {
      const url = await sharedKafka()
      const [topic, group] = [await createTopic(url, 4), randomUUID()]
      const client = clientOn(url)
      // One inbox for both, as the database is one.
      const inbox = memoryReceiver()
      const options = { client, topics: [topic], group, inbox, sessionMs, ...isolationOf(client) }
      const slow = async (): Promise<void> => void (await new Promise((resolve) => setTimeout(resolve, 5)))
      const first = stoppedAfterwards(kafkaConsumer(options, slow))
      const sent = texts(600, 12)
      await sendTexts(url, topic, sent.slice(0, 300))
      await pollUntil('some effects', () => inbox.effects.length > 50)
      const second = stoppedAfterwards(kafkaConsumer(options, slow))
      await sendTexts(url, topic, sent.slice(300))
      await pollUntil('half of the effects', () => inbox.effects.length > 400)
      await second.stop()
      await pollUntil('all effects', () => inbox.effects.length >= 600)
      await first.stop()
      expect([...inbox.effects].sort()).toEqual(sent.map(([, text]) => text).sort())
      for (const key of new Set(sent.map(([each]) => each))) {
        const ofKey = sent.filter((each) => each[0] === key).map(([, text]) => text)
        expect(inbox.effects.filter((text) => ofKey.includes(text))).toEqual(ofKey)
      }
    })
  }

  test('the offset of a batch stays below the first message that is not done with', async () => {
    const url = await sharedKafka()
    const [topic, group] = [await createTopic(url, 1), randomUUID()]
    await sendTexts(url, topic, texts(6, 1))
    let broken = true
    const given: string[][] = []
    // Everything but the third is done with at once.
    const inbox: Receiver<undefined> = {
      ...memoryReceiver(),
      async deliverBatch(messages, _, acknowledge) {
        given.push(messages.map(({ id }) => id!))
        const isBad = ({ id }: { id?: string }): boolean => broken && id === 'text-2'
        await acknowledge(messages.flatMap((message, position) => (isBad(message) ? [] : [position])))
        return messages.map((message) =>
          isBad(message)
            ? { acknowledged: false, retryAfterMs: 20, error: new Error('not now') }
            : { acknowledged: true },
        )
      },
    }
    const options = { client: confluentOn(url), topics: [topic], group, inbox, sessionMs, batchMax: 6 }
    const consuming = stoppedAfterwards(kafkaConsumer(options, { batch: () => {} }))
    await pollUntil('the third to be tried again', () => given.filter((ids) => ids.includes('text-2')).length >= 3)
    expect(await committedOffsets(url, group, topic)).toEqual([2])
    expect(given.at(-1)).toEqual(['text-2'])
    broken = false
    await pollUntil('all to be committed', async () => (await committedOffsets(url, group, topic))[0] === 6)
    await consuming.stop()
  })

  test('static membership and the new group protocol work with Confluent', async () => {
    const url = await sharedKafka()
    for (const more of [{ instanceId: 'one' }, { protocol: 'consumer' }] as const) {
      const [topic, group] = [await createTopic(url, 2), randomUUID()]
      const inbox = memoryReceiver()
      await sendTexts(url, topic, texts(20))
      const consuming = stoppedAfterwards(
        kafkaConsumer({ client: confluentOn(url), topics: [topic], group, inbox, sessionMs, ...more }, () => {}),
      )
      await pollUntil(`all effects with ${JSON.stringify(more)}`, () => inbox.effects.length >= 20)
      await consuming.stop()
      expect((await committedOffsets(url, group, topic)).reduce((sum, each) => sum + each, 0)).toBe(20)
    }
  })
})

test('a promise that a client cannot keep is refused by name', () => {
  const nowhere = 'kafka://127.0.0.1:1'
  const inbox = memoryReceiver()
  const options = { topics: ['t'], group: 'g', inbox }
  const kafkajs = kafkajsClient(kafkajsOn(nowhere))
  const platformatic = platformaticOn(nowhere)
  const refused =
    (more: Pick<KafkaConsumerOptions<undefined>, 'client' | 'isolation' | 'instanceId' | 'protocol'>) =>
    (): Consuming =>
      kafkaConsumer({ ...options, ...more }, () => {})
  expect(refused({ client: platformatic })).toThrow(/@platformatic\/kafka hands out records of aborted transactions/)
  expect(refused({ client: kafkajs, instanceId: 'one' })).toThrow(/kafkajs has no static membership/)
  expect(refused({ client: kafkajs, protocol: 'consumer' })).toThrow(
    /kafkajs cannot be trusted with the group protocol of KIP-848/,
  )
  expect(refused({ client: platformatic, isolation: 'read_uncommitted', protocol: 'consumer' })).toThrow(
    /@platformatic\/kafka cannot be trusted/,
  )
  expect(() => kafkaConsumer({ ...options, client: kafkajs, handover: 3 } as never, () => {})).toThrow(
    /did you mean "handoverMs"/,
  )
})

needs('confluent').test('settings that would commit before the handler are refused by name', () => {
  expect(() => confluentOn('kafka://127.0.0.1:1', { 'enable.auto.commit': true })).toThrow(
    /expected enable.auto.commit to be false/,
  )
})

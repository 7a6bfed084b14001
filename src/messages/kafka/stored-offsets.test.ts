// Offsets in the transaction of mark and effect, on a real broker: what is delivered again when Kafka has lost what it knew of a group.
import { randomUUID } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { expect, onTestFinished, test } from 'vitest'
import type { ConsumerWorker } from '../../../test/messages/kafka/consumer-worker.ts'
import { startWorker } from '../../../test/messages/kafka/workers.ts'
import {
  clientsOn,
  committedOffsets,
  confluentOn,
  createTopic,
  kafkajsOn,
  memoryReceiver,
  platformaticOn,
  requireTopic,
  sendTexts,
  sharedKafka,
  withAdmin,
} from '../../../test/messages/kafka/world.ts'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import { createOnce } from '../../index.ts'
import { sqliteStore } from '../../stores/sqlite.ts'
import { createInbox } from '../inbox.ts'
import { kafkaConsumer, type KafkaConsumerOptions, type KafkaMessage, kafkajsClient } from '../kafka.ts'

const texts = (begin: number, end: number): (readonly [string, string, number])[] =>
  Array.from({ length: end - begin }, (_, position) => ['key', String(begin + position), 0])

const idsOf = (begin: number, end: number): string[] => texts(begin, end).map(([, text]) => text)

interface World {
  readonly url: string
  readonly topic: string
  readonly group: string
  readonly path: string
  /** The ids that came to the inbox, in their order. */
  readonly delivered: readonly string[]
  /** The ids that have their effect, in their order. */
  effects(): string[]
  /** The one stored offset, after it was raised by so many. */
  storedOffset(raisedBy?: number): number
  /** Consumes until `count` messages have their effect, `until` among them, and stops. */
  consume(how: 'one by one' | 'in batches', count: number, more?: Consuming): Promise<void>
}

interface Consuming extends Partial<KafkaConsumerOptions<DatabaseSync>> {
  fails?(message: KafkaMessage): boolean
  /** Done every half a second. */
  meanwhile?(): Promise<void>
  readonly until?: string
}

async function openWorld(): Promise<World> {
  const url = await sharedKafka()
  const [topic, group] = [await createTopic(url, 1), randomUUID()]
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-offsets-'))
  const path = join(folder, 'ledger.db')
  const ledger = new DatabaseSync(path, { timeout: 10_000 })
  ledger.exec('pragma journal_mode = wal; create table ledger (partition integer, id text)')
  const store = sqliteStore({ path })
  onTestFinished(() => {
    store.close()
    ledger.close()
    rmSync(folder, { recursive: true })
  })
  const inbox = createInbox(createOnce({ store, scope: 'test' }), { consumer: 'test' })
  await inbox.migrate()
  const delivered: string[] = []
  const watched: typeof inbox = {
    ...inbox,
    deliver(message, ...rest) {
      delivered.push(message.id!)
      return inbox.deliver(message, ...rest)
    },
    deliverBatch(messages, ...rest) {
      delivered.push(...messages.map(({ id }) => id!))
      return inbox.deliverBatch(messages, ...rest)
    },
  }
  const effects = (): string[] =>
    ledger
      .prepare('select id from ledger order by rowid')
      .all()
      .map(({ id }) => String(id))
  return {
    url,
    topic,
    group,
    path,
    delivered,
    effects,
    storedOffset(raisedBy = 0) {
      ledger.prepare('update onceonly_inbox_offsets set next_offset = next_offset + ?').run(raisedBy)
      const [only, ...more] = ledger.prepare('select next_offset from onceonly_inbox_offsets').all()
      expect(more).toEqual([])
      return Number(only!['next_offset'])
    },
    async consume(how, count, { fails, meanwhile, until, ...more } = {}) {
      const client = confluentOn(url)
      const options = {
        client,
        topics: [topic],
        group,
        inbox: watched,
        offsets: 'database',
        sessionMs: 6_000,
        ...more,
      } as const
      const write = (tx: DatabaseSync, message: KafkaMessage): void => {
        if (fails?.(message)) throw new Error('not now')
        tx.prepare('insert into ledger values (?, ?)').run(message.raw.partition, message.id!)
      }
      const consuming = kafkaConsumer(
        options,
        how === 'one by one' ? write : { batch: (tx, fresh) => fresh.forEach((message) => write(tx, message)) },
      )
      onTestFinished(() => consuming.stop())
      const isDone = async (): Promise<boolean> => {
        await meanwhile?.()
        const found = effects()
        return found.length >= count && (until === undefined || found.includes(until))
      }
      await pollUntil(`${count} effects`, isDone, meanwhile && { intervalMs: 500 })
      await consuming.stop()
    },
  }
}

/** Kafka forgets the group, as soon as its last member has left. */
const forgetGroup = ({ url, group }: World): Promise<unknown> =>
  pollUntil('the group to be deleted', () =>
    withAdmin(url, (admin) => admin.deleteGroups([group])).then(
      () => true,
      () => false,
    ),
  )

const timed = { timeout: 120_000 }

needs(['kafka', 'confluent']).describe('offsets in the database', () => {
  for (const how of ['one by one', 'in batches'] as const) {
    test(
      `${how}: without the offsets of the group nothing is delivered again, and nothing is passed over`,
      timed,
      async () => {
        const world = await openWorld()
        await sendTexts(world.url, world.topic, texts(0, 20))
        await world.consume(how, 20)
        expect(await committedOffsets(world.url, world.group, world.topic)).toEqual([20])
        for (const [round, begin] of (['earliest', 'latest'] as const).entries()) {
          await forgetGroup(world)
          const count = 20 + 10 * round
          // With 'latest' a group without offsets would pass these over, with 'earliest' it would begin anew.
          await sendTexts(world.url, world.topic, texts(count, count + 10))
          await world.consume(how, count + 10, { begin })
          expect(world.delivered).toEqual(idsOf(0, count + 10))
          expect(world.effects()).toEqual(idsOf(0, count + 10))
        }
      },
    )
  }

  test('a kill between the commit of the database and that of Kafka delivers nothing again', timed, async () => {
    const world = await openWorld()
    const { url, topic, group, path } = world
    await sendTexts(url, topic, texts(0, 10))
    const delivered: string[] = []
    const options = { client: '@confluentinc/kafka-javascript', url, topic, group, path, sessionMs: 3_000, pauseMs: 0 }
    for (const dieAfter of ['3', '7', 'none']) {
      await using worker = startWorker('consumer-worker.ts', {
        ...options,
        offsets: 'database',
        dieAfter,
      } satisfies ConsumerWorker)
      if (dieAfter === 'none') await pollUntil('the rest', () => world.effects().length === 10)
      expect(await (dieAfter === 'none' ? worker.end('SIGTERM') : worker.exited)).toBe(
        dieAfter === 'none' ? 0 : 'SIGKILL',
      )
      delivered.push(...worker.said.filter((line) => line.startsWith('delivered ')).map((line) => line.slice(10)))
    }
    expect(delivered).toEqual(idsOf(0, 10))
    expect(world.effects()).toEqual(idsOf(0, 10))
  })

  test('an offset that is written for a handler which fails is rolled back with it', timed, async () => {
    const world = await openWorld()
    await sendTexts(world.url, world.topic, texts(0, 5))
    let failures = 0
    await world.consume('one by one', 5, { fails: ({ id }) => id === '2' && failures++ < 2 })
    expect(world.delivered).toEqual(['0', '1', '2', '2', '2', '3', '4'])
    expect(world.effects()).toEqual(idsOf(0, 5))
  })

  test('the stored offset of a batch stays below the first message that is not done with', timed, async () => {
    const world = await openWorld()
    await sendTexts(
      world.url,
      world.topic,
      texts(0, 6).map(([, text]) => [`key-${text}`, text, 0] as const),
    )
    // The others of the batch are done with. It is stopped, and Kafka forgets.
    await world.consume('in batches', 5, { fails: ({ id }) => id === '2' })
    await forgetGroup(world)
    await world.consume('in batches', 6)
    expect(world.effects().toSorted()).toEqual(idsOf(0, 6))
  })

  test('a topic that was deleted and created again is read from its beginning', timed, async () => {
    const world = await openWorld()
    const { url, topic } = world
    await sendTexts(url, topic, texts(0, 5))
    await world.consume('one by one', 5)
    await withAdmin(url, (admin) => admin.deleteTopics({ topics: [topic] }))
    await requireTopic(url, topic)
    await sendTexts(url, topic, texts(5, 15))
    // Whatever it begins with, the last of these comes.
    await world.consume('one by one', 6, { until: '14' })
    expect(world.effects()).toEqual(idsOf(0, 15))
  })

  test(
    'a stored offset beyond the end of the log is forgotten, and the group goes on where it has committed',
    timed,
    async () => {
      const world = await openWorld()
      const { url, topic } = world
      await sendTexts(url, topic, texts(0, 5))
      await world.consume('one by one', 5)
      // As if the broker had lost the last hundred messages: to an unclean election, or to a backup.
      expect(world.storedOffset(100)).toBe(105)
      await sendTexts(url, topic, texts(5, 10))
      await world.consume('one by one', 10)
      expect(world.delivered).toEqual(idsOf(0, 10))
      expect(world.effects()).toEqual(idsOf(0, 10))
      expect(world.storedOffset()).toBe(10)
    },
  )

  test('a stored offset that retention has passed goes on with what is left', timed, async () => {
    const world = await openWorld()
    const { url, topic } = world
    await sendTexts(url, topic, texts(0, 5))
    await world.consume('one by one', 5)
    await sendTexts(url, topic, texts(5, 15))
    await withAdmin(url, async (admin) => {
      // It loads what it knows of the topic.
      await admin.fetchTopicOffsets(topic)
      await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '10' }] })
    })
    // What comes later is read in any case.
    let later = 15
    const meanwhile = (): Promise<void> => sendTexts(url, topic, texts(later, ++later))
    await world.consume('one by one', 10, { begin: 'latest', meanwhile })
    expect(world.effects().slice(0, 10)).toEqual([...idsOf(0, 5), ...idsOf(10, 15)])
  })
})

test('offsets in the database are refused where they cannot be kept, by name', () => {
  const nowhere = 'kafka://127.0.0.1:1'
  const offsets = { next: async () => undefined, write: async () => {}, forget: async () => {} }
  const options = { topics: ['a'], group: 'g', offsets: 'database', isolation: 'read_uncommitted' } as const
  const inbox = { ...memoryReceiver(), offsets }
  expect(() => kafkaConsumer({ ...options, inbox, client: platformaticOn(nowhere) }, () => {})).toThrow(
    /@platformatic\/kafka begins to read/,
  )
  expect(() => kafkaConsumer({ ...options, inbox, client: kafkajsClient(kafkajsOn(nowhere)) }, () => {})).toThrow(
    /kafkajs begins to read/,
  )
  expect(() =>
    kafkaConsumer({ ...options, inbox: memoryReceiver(), client: clientsOn['kafkajs']!(nowhere) }, () => {}),
  ).toThrow(/needs an inbox on PostgreSQL/)
})

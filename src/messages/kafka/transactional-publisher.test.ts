// The transactional publisher on a real broker: what a reader with read_committed sees of an outbox whose relays are killed, halted and
// lied to.
import { randomInt, randomUUID } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { type Judged, startJudge } from '../../../test/messages/kafka/judge.ts'
import type { RelayPoint, RelayWorker } from '../../../test/messages/kafka/relay-worker.ts'
import { startWorker, type Worker } from '../../../test/messages/kafka/workers.ts'
import {
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
import type { ShardPublisher } from '../broker.ts'
import { kafkaConsumer, kafkajsClient, kafkaTransactionalPublisher } from '../kafka.ts'
import { createOutbox, createRelay, type Relay, type RelayOptions, type RelaySource } from '../outbox.ts'

type Client = ReturnType<typeof confluentOn>

interface World {
  readonly url: string
  readonly path: string
  readonly topic: string
  readonly transactionalId: string
  readonly controlTopic: string
  readonly outbox: ReturnType<typeof createOutbox>
  /** Adds one event per text in a transaction of its own, and resolves when all have committed. */
  add(texts: readonly string[], more?: { topic?: string; key?: string; data?: Buffer }): Promise<void>
  relay(more?: { client?: Client; rows?: Partial<RelaySource> } & Partial<RelayOptions>): Relay
}

async function openWorld({ shards = 2 } = {}): Promise<World> {
  const url = await sharedKafka()
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-transactional-'))
  const path = join(folder, 'outbox.db')
  // A disk that stands still for seconds under another process's commit is not what is tried here.
  const store = sqliteStore({ path, lockWaitMs: 60_000 })
  onTestFinished(() => {
    store.close()
    rmSync(folder, { recursive: true })
  })
  const once = createOnce({ store, scope: 'test', storeTimeoutMs: 90_000 })
  const outbox = createOutbox({ store, source: 'test', shards })
  await outbox.migrate()
  const topic = await createTopic(url, 1)
  const named = { transactionalId: randomUUID(), controlTopic: `control-${randomUUID()}` }
  return {
    url,
    path,
    topic,
    ...named,
    outbox: outbox as World['outbox'],
    async add(texts, more = {}) {
      for (const text of texts) {
        await once.transaction(randomUUID(), (tx) =>
          outbox.add(tx, { topic, type: 'counted', key: `key-${Number(text) % 7}`, data: Buffer.from(text), ...more }),
        )
      }
    },
    relay({ client = confluentOn(url), rows, ...more } = {}) {
      const publisher = kafkaTransactionalPublisher({ client, ...named })
      const own = { ...outbox, rows: { ...outbox.rows, ...rows } }
      return createRelay({ outbox: own, publisher, leaseMs: 5_000, batch: 10, ...more })
    },
  }
}

/** Until each row is sent or held. A call to a busy broker may say nothing certain in time, and then the relay takes its shard anew. */
const relayAll = (world: World, relay: Relay): Promise<unknown> =>
  pollUntil('each row to be sent or held', async () => {
    await relay.runOnce()
    return (await world.outbox.status()).unsent === 0
  })

const numbers = (begin: number, end: number): string[] =>
  Array.from({ length: end - begin }, (_, position) => String(begin + position))

/** What `read_committed` shows of a topic of one partition, to its end. */
async function readCommitted(url: string, topic: string): Promise<string[]> {
  const read: string[] = []
  const end = `end ${randomUUID()}`
  await sendTexts(url, topic, [['end', end]])
  const inbox = {
    ...memoryReceiver(),
    deliver: async (...[message, handler, acknowledge]: Delivering) => {
      await handler(undefined, message)
      await acknowledge()
      return { acknowledged: true } as const
    },
  }
  const reading = kafkaConsumer(
    { client: confluentOn(url), topics: [topic], group: randomUUID(), inbox },
    (_, { body }) => void read.push(Buffer.from(body).toString()),
  )
  await pollUntil(`the end of ${topic}`, () => read.includes(end))
  await reading.stop()
  return read.filter((text) => !text.startsWith('end '))
}

type Delivering = Parameters<ReturnType<typeof memoryReceiver>['deliver']>

/** How many rows the last control record of each shard names. */
async function namesIn({ url, controlTopic: topic }: World): Promise<number[]> {
  const ends = await withAdmin(url, (admin) => admin.fetchTopicOffsets(topic))
  const names = new Map<number, number>()
  for (const { partition, high } of ends) {
    if (Number(high) === 0) continue
    // The last offset is that of the marker of a transaction.
    for await (const { value } of confluentOn(url).readCompacted({ topic, partition }, BigInt(high) - 2n, 20_000)) {
      const { rows } = JSON.parse(Buffer.from(value!).toString()) as { rows?: unknown[] }
      if (rows) names.set(partition, rows.length)
    }
  }
  return [...names.values()]
}

const timed = { timeout: 120_000 }

/** All rows once each, and those of a key in their order. */
function expectOnceInOrder(read: readonly string[], count: number): void {
  expect(read.toSorted((a, b) => Number(a) - Number(b))).toEqual(numbers(0, count))
  for (const key of numbers(0, 7)) {
    const own = read.filter((text) => Number(text) % 7 === Number(key))
    expect(own).toEqual(own.toSorted((a, b) => Number(a) - Number(b)))
  }
}

/** A client whose transactional producers are changed when they are open. */
function changed(client: Client, change: (producer: ConfluentProducer) => void): Client {
  return {
    ...client,
    async transactionalProducer(...given) {
      const producer = await client.transactionalProducer(...given)
      change(producer)
      return producer
    },
  }
}

type ConfluentProducer = Awaited<ReturnType<Client['transactionalProducer']>>

/** A client that lies about commits: the first of each producer is that of its epoch. */
function lying(client: Client, how: 'done' | 'not done', isLie: (number: number) => boolean): Client {
  return changed(client, (producer) => {
    const commit = producer.commitTransaction.bind(producer)
    let commits = 0
    const { flush } = producer as unknown as { flush(timeoutMs: number, done: () => void): void }
    producer.commitTransaction = (timeoutMs, done) => {
      if (!isLie(++commits)) return commit(timeoutMs, done)
      const lie = (): void => done(Object.assign(new Error('timed out'), { code: -185 }), undefined)
      if (how === 'done') commit(timeoutMs, lie)
      else flush.call(producer, timeoutMs, lie)
    }
  })
}

const points: readonly RelayPoint[] = ['before open', 'before commit', 'after commit', 'after mark']
// Each point twice.
const kills = Number(process.env['ONCEONLY_RELAY_KILLS'] ?? 8)

needs(['kafka', 'confluent']).describe('kafkaTransactionalPublisher', () => {
  test(
    `relays killed ${kills} times: a reader that is not ours sees each row once, in the order of its key`,
    { timeout: 240_000 + kills * 10_000 },
    async () => {
      const world = await openWorld()
      const { url, topic, path, transactionalId, controlTopic } = world
      await using judge = startJudge(url, topic, 'read_committed')
      const planned = { url, path, transactionalId, controlTopic, leaseMs: 2_000, batch: 10 }
      const start = (kill: number): Worker => {
        const point = points[kill % points.length]!
        // It opens once per shard that it takes.
        const plan = { signal: 'SIGKILL', point, after: point === 'before open' ? 0 : randomInt(5) } as const
        return startWorker('relay-worker.ts', { ...planned, ...(kill < kills && { plan }) } satisfies RelayWorker)
      }
      let begun = 0
      let count = 0
      let killed = 0
      const workers = [start(begun++), start(begun++)]
      onTestFinished(async () => void (await Promise.all(workers.map((worker) => worker[Symbol.asyncDispose]()))))
      while (killed < kills) {
        if (count - judge.read.length < 300) await world.add(numbers(count, (count += 20)))
        else
          await pollUntil(
            'output, or a kill',
            () => judge.read.length > count - 300 || workers.some((each) => each.hasEnded),
            { timeoutMs: 120_000 },
          )
        for (const [position, worker] of workers.entries()) {
          if (!worker.hasEnded) continue
          expect(await worker.exited).toBe('SIGKILL')
          killed++
          workers[position] = start(begun++)
        }
      }
      await pollUntil('all output', () => judge.read.length >= count, { timeoutMs: 120_000 })
      for (const worker of workers) expect(await worker.end('SIGTERM')).toBe(0)
      const read = await judge.end()
      expectOnceInOrder(
        read.map(({ value }: Judged) => value),
        count,
      )
      await using raw = startJudge(url, topic, 'read_uncommitted')
      // Records of transactions that a kill left open. A run without them proves little.
      expect((await raw.end()).length).toBeGreaterThan(count)
    },
  )

  for (const point of ['before open', 'before commit'] as const) {
    test(`a relay that stood still ${point} and lost its shard publishes nothing`, timed, async () => {
      const world = await openWorld()
      const { url, topic, path, transactionalId, controlTopic } = world
      const common = { url, path, transactionalId, controlTopic, leaseMs: 1_500, batch: 10 }
      await world.add(numbers(0, 20))
      const plan = { signal: 'SIGSTOP', point, after: 0 } as const
      await using zombie = startWorker('relay-worker.ts', { ...common, plan } satisfies RelayWorker)
      await pollUntil('the zombie to stand still', () => zombie.said.includes('SIGSTOP'))
      await using heir = startWorker('relay-worker.ts', common satisfies RelayWorker)
      await pollUntil('the heir to publish', async () => (await world.outbox.status()).unsent === 0)
      // It forgets what is marked with its next transaction.
      await world.add(numbers(20, 40))
      await pollUntil('the heir to publish more', async () => (await world.outbox.status()).unsent === 0)
      zombie.signal('SIGCONT')
      await world.add(numbers(40, 60))
      await pollUntil('the rest', async () => (await world.outbox.status()).unsent === 0)
      expect(await heir.end('SIGTERM')).toBe(0)
      expect(await zombie.end('SIGTERM')).toBe(0)
      expectOnceInOrder(await readCommitted(url, topic), 60)
    })
  }

  test('a relay that takes a shard ends what the one before it had not committed, and fences it', timed, async () => {
    const { url, topic, transactionalId, controlTopic } = await openWorld()
    const opened = Promise.withResolvers<void>()
    const beforeCommit = Promise.withResolvers<void>()
    const rows = { has: false }
    const holding = changed(confluentOn(url), (producer) => {
      const [produce, commit] = [producer.produce.bind(producer), producer.commitTransaction.bind(producer)]
      producer.produce = (to, ...rest) => {
        rows.has ||= to === topic
        return produce(to, ...rest)
      }
      producer.commitTransaction = (timeoutMs, done) => {
        if (!rows.has) return commit(timeoutMs, done)
        beforeCommit.resolve()
        void opened.promise.then(() => commit(timeoutMs, done))
      }
    })
    const open = (client: Client, epoch: number): ShardPublisher =>
      kafkaTransactionalPublisher({ client, transactionalId, controlTopic }).openShard({
        shard: 0,
        epoch,
        unsent: async (named) => named,
      })
    const row = (text: string): Parameters<ShardPublisher['publish']>[0][number] => {
      return { id: text, topic, body: Buffer.from(text), headers: {}, place: `0 ${text}` }
    }
    const older = open(holding, 1)
    const publishing = older.publish([row('1')])
    publishing.catch(() => undefined)
    await beforeCommit.promise
    const younger = open(
      changed(confluentOn(url), () => opened.resolve()),
      2,
    )
    const taking = younger.publish([row('1'), row('2')])
    taking.catch(() => undefined)
    await expect(publishing).rejects.toMatchObject({ code: 'CLAIM_LOST' })
    expect(await taking).toEqual([undefined, undefined])
    await expect(open(confluentOn(url), 1).publish([row('3')])).rejects.toMatchObject({ code: 'CLAIM_LOST' })
    await Promise.all([older.close(), younger.close()])
    expect(await readCommitted(url, topic)).toEqual(['1', '2'])
  })

  for (const [how, what] of [
    ['done', 'a commit whose reply was lost is looked up, and its rows are not published again'],
    ['not done', 'rows that a transaction named and did not commit are published'],
  ] as const) {
    test(what, timed, async () => {
      const world = await openWorld()
      await world.add(numbers(0, 30))
      let lies = 0
      const client = lying(confluentOn(world.url), how, (number) => number === 2 && lies++ < 3)
      const relay = world.relay({ client })
      await relayAll(world, relay)
      expect(lies).toBeGreaterThan(0)
      expectOnceInOrder(await readCommitted(world.url, world.topic), 30)
    })
  }

  test('rows that are published and could not be marked are not published again', timed, async () => {
    // One shard, so that all three relays take the same.
    const world = await openWorld({ shards: 1 })
    await world.add(numbers(0, 30))
    let failures = 0
    const mark: RelaySource['mark'] = async () => {
      failures++
      throw new Error('the database is down')
    }
    // The second finds those of the first published, publishes more, and names them all.
    for (const batch of [5, 10]) {
      const before = failures
      const relay = world.relay({ batch, rows: { mark }, leaseMs: 1_500 })
      await pollUntil('the shard to be free', async () => {
        await relay.runOnce().catch(() => undefined)
        return failures > before
      })
    }
    await relayAll(world, world.relay())
    expectOnceInOrder(await readCommitted(world.url, world.topic), 30)
  })

  test(
    'a held row is published once, also when it could not be marked, and so is a dead letter that a person redrives',
    timed,
    async () => {
      const world = await openWorld()
      const missing = `missing-${randomUUID()}`
      await world.add(['0', '7', '14'], { topic: missing })
      await world.add(['1'])
      // The client takes some seconds to say that a topic is missing.
      const skip = { onFailure: { skipAfter: 1 }, leaseMs: 60_000 } as const
      await relayAll(world, world.relay({ batch: 100, ...skip }))
      expect(await world.outbox.status()).toMatchObject({ waiting: 0, dead: 3 })
      await requireTopic(world.url, missing)
      expect(await world.outbox.redrive({ topic: missing })).toBeGreaterThan(0)
      let failures = 0
      const mark: RelaySource['mark'] = async (holding, made, leaseMs) => {
        if (made.sent.length > 0 && failures++ === 0) throw new Error('the database is down')
        return world.outbox.rows.mark(holding, made, leaseMs)
      }
      const relay = world.relay({ rows: { mark }, ...skip })
      await pollUntil('the held rows to be sent', async () => {
        await relay.runOnce().catch(() => undefined)
        const { waiting, dead, parked } = await world.outbox.status()
        return waiting + dead + parked === 0
      })
      expect(failures).toBeGreaterThan(1)
      expect((await readCommitted(world.url, missing)).toSorted()).toEqual(['0', '14', '7'])
      expect(await readCommitted(world.url, world.topic)).toEqual(['1'])
    },
  )

  test('a message that the broker never takes fails by itself, with what follows of its key', timed, async () => {
    const world = await openWorld()
    await world.add(numbers(0, 3), { key: 'a' })
    await world.add(['large'], { key: 'b', data: Buffer.alloc(1_500_000) })
    await world.add(['3'], { key: 'b' })
    await world.add(['4'], { key: 'c' })
    await relayAll(world, world.relay({ batch: 100 }))
    expect(await world.outbox.status()).toMatchObject({ waiting: 2, dead: 0 })
    expect((await readCommitted(world.url, world.topic)).toSorted()).toEqual(['0', '1', '2', '4'])
  })

  test('a control record names what is not marked, and no more', timed, async () => {
    const world = await openWorld()
    await world.add(numbers(0, 60))
    await relayAll(world, world.relay())
    for (const names of await namesIn(world)) expect(names).toBeLessThanOrEqual(10)
    // Another relay knows from the database that these are marked.
    await world.add(numbers(60, 74))
    await relayAll(world, world.relay({ batch: 100 }))
    expect((await namesIn(world)).reduce((sum, names) => sum + names, 0)).toBeLessThanOrEqual(14)
    expectOnceInOrder(await readCommitted(world.url, world.topic), 74)
  })

  test('a control topic with fewer partitions than there are shards is refused', timed, async () => {
    const world = await openWorld()
    await world.add(numbers(0, 20))
    const named = { transactionalId: randomUUID(), controlTopic: await createTopic(world.url, 1, 'control') }
    const publisher = kafkaTransactionalPublisher({ client: confluentOn(world.url), ...named })
    const { error } = await createRelay({ outbox: world.outbox, publisher }).runOnce()
    expect(error).toMatchObject({ code: 'UNSUPPORTED', message: expect.stringContaining('has 1 partitions') as string })
  })
})

test('clients that cannot keep it are refused by name', () => {
  const nowhere = 'kafka://127.0.0.1:1'
  for (const [client, why] of [
    [kafkajsClient(kafkajsOn(nowhere)), /kafkajs cannot keep it, because its transactions were not tried/],
    [platformaticOn(nowhere), /@platformatic\/kafka cannot keep it, because its consumer hands out records of aborted/],
  ] as const) {
    expect(() => kafkaTransactionalPublisher({ client, transactionalId: 'shop' })).toThrow(why)
  }
})

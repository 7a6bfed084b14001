// exactlyOnce on a real broker, judged by Java's own consumer while workers are killed and the broker is bounced.
import { randomUUID } from 'node:crypto'
import { expect, onTestFinished, test } from 'vitest'
import type { ExactlyOnceWorker } from '../../../test/messages/kafka/exactly-once-worker.ts'
import { type Judged, startJudge } from '../../../test/messages/kafka/judge.ts'
import { startWorker, type Worker } from '../../../test/messages/kafka/workers.ts'
import {
  committedOffsets,
  confluentOn,
  createTopic,
  kafkajsOn,
  memoryReceiver,
  platformaticOn,
  sendTexts,
  sharedKafka,
} from '../../../test/messages/kafka/world.ts'
import { isLong, tellRun } from '../../../test/long-run.ts'
import { startKafka } from '../../../test/servers/kafka.ts'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import type { Consuming, Receiver } from '../broker.ts'
import { exactlyOnce, type ExactlyOnceOptions, kafkaConsumer, kafkajsClient } from '../kafka.ts'

const numbers = (begin: number, end: number): (readonly [string, string])[] =>
  Array.from({ length: end - begin }, (_, position) => [`key-${(begin + position) % 40}`, String(begin + position)])

/** Of each partition the values in their order. */
function byPartition(read: readonly Judged[]): Map<number, string[]> {
  const found = new Map<number, string[]>()
  for (const { partition, value } of read.toSorted((a, b) => a.offset - b.offset)) {
    if (!found.has(partition)) found.set(partition, [])
    found.get(partition)!.push(value)
  }
  return new Map([...found].sort(([a], [b]) => a - b))
}

// A commit that a broker which is killed does not answer is given up after half a minute (callMs), and the next producer may take as long
// to open. Meanwhile the group waits for the member, so a minute without output is no error.
const patience = { timeoutMs: isLong ? 600_000 : 120_000 }

needs(['kafka', 'confluent'], { ours: true }).describe('exactlyOnce', () => {
  test(
    `${isLong ? '100,000' : '10,000'} messages, workers killed and the broker bounced: a reader that is not ours sees each once, in the order of its partition`,
    { timeout: isLong ? 1_800_000 : 400_000 },
    async () => {
      const [count, rounds, killsMin] = isLong ? [100_000, 30, 30] : [10_000, 5, 5]
      await using server = await startKafka()
      const [from, to] = [await createTopic(server.url, 4, 'from'), await createTopic(server.url, 4, 'to')]
      const group = randomUUID()
      const start = (name: string): Worker =>
        startWorker('exactly-once-worker.ts', {
          url: server.url,
          from,
          to,
          group,
          transactionalId: name,
          batchMax: 750,
          transactionMs: 60_000,
          pauseEvery: 50,
          failEvery: 997,
        } satisfies ExactlyOnceWorker)
      const names = ['worker-1', 'worker-2']
      const workers = names.map(start)
      onTestFinished(async () => void (await Promise.all(workers.map((worker) => worker[Symbol.asyncDispose]()))))
      await using judge = startJudge(server.url, to, 'read_committed')
      let [kills, bounces] = [0, 0]
      for (let round = 0; round < rounds; round++) {
        const [begin, end] = [(count * round) / rounds, (count * (round + 1)) / rounds].map(Math.floor)
        await sendTexts(server.url, from, numbers(begin!, end!))
        const before = judge.read.length
        await pollUntil(
          `output in round ${round}`,
          () => judge.read.length > before || judge.read.length >= end!,
          patience,
        )
        if (round % 3 === 1) {
          await server.crash()
          await server.restart()
          bounces++
        }
        const victim = round % 2
        if ((await workers[victim]!.end('SIGKILL')) === 'SIGKILL') kills++
        workers[victim] = start(names[victim]!)
      }
      await pollUntil('all output', () => judge.read.length >= count, patience)
      for (const worker of workers) expect(await worker.end('SIGTERM')).toBe(0)
      const read = await judge.end()
      await using input = startJudge(server.url, from, 'read_committed')
      await using raw = startJudge(server.url, to, 'read_uncommitted')
      expect(read.length).toBe(count)
      expect(new Set(read.map(({ value }) => value)).size).toBe(count)
      expect(byPartition(read)).toEqual(byPartition(await input.end()))
      expect(kills).toBeGreaterThanOrEqual(killsMin)
      // Records of transactions that were aborted, by a transform that failed or by a kill.
      const aborted = (await raw.end()).length - count
      expect(aborted).toBeGreaterThan(100)
      expect((await committedOffsets(server.url, group, from)).every((offset) => offset > 0)).toBe(true)
      tellRun(
        'exactly-once',
        `${count} messages in transactions of up to 750, ${kills} workers killed, the broker killed ${bounces} times, ${aborted} records aborted, each message seen once`,
      )
    },
  )
})

/** A worker in this process, and what `read_committed` shows of its output. */
async function openWorld(more: Partial<ExactlyOnceOptions> = {}, settings: object = {}): Promise<World> {
  const url = await sharedKafka()
  const [from, to] = [await createTopic(url, 1, 'from'), await createTopic(url, 1, 'to')]
  const client = confluentOn(url, settings)
  const options: ExactlyOnceOptions = {
    client,
    from: [from],
    to,
    group: randomUUID(),
    transactionalId: randomUUID(),
    sessionMs: 6_000,
    transform: ({ body }) => ({ body }),
    ...more,
  }
  const output: string[] = []
  const reading = kafkaConsumer(
    { client, topics: [to], group: randomUUID(), inbox: printing(), sessionMs: 6_000 },
    (_, { body }) => void output.push(Buffer.from(body).toString()),
  )
  onTestFinished(() => reading.stop())
  const start = (): Consuming => {
    const working = exactlyOnce(options)
    onTestFinished(() => working.stop())
    return working
  }
  const committed = async (): Promise<number> => Math.max(0, (await committedOffsets(url, options.group, from))[0] ?? 0)
  return { url, from, to, options, output, start, committed }
}

interface World {
  readonly url: string
  readonly from: string
  readonly to: string
  readonly options: ExactlyOnceOptions
  readonly output: readonly string[]
  start(): Consuming
  committed(): Promise<number>
}

/** No inbox: a duplicate must be seen. */
const printing = (): Receiver<undefined> => ({
  ...memoryReceiver(),
  async deliver(message, handler, acknowledge) {
    await handler(undefined, message)
    await acknowledge()
    return { acknowledged: true }
  },
})

const valuesOf = (texts: readonly (readonly [string, string])[]): string[] => texts.map(([, text]) => text)
// A bug is seen by a poll that waits in vain, and not by the test itself running out of time.
const soon = { timeoutMs: 60_000 }
const timed = { timeout: 200_000 }

needs(['kafka', 'confluent']).describe('a worker of exactlyOnce', () => {
  test('offsets and output are one: when the broker refuses a record, nothing is committed', timed, async () => {
    let tries = 0
    // Larger than the broker takes, and smaller than the client would.
    const transform: ExactlyOnceOptions['transform'] = ({ body }) => {
      if (Buffer.from(body).toString() === '1') tries++
      return { body: tries === 1 && Buffer.from(body).toString() === '1' ? Buffer.alloc(1_200_000) : body }
    }
    const { url, from, start, committed, output } = await openWorld({ transform }, { 'message.max.bytes': 5_000_000 })
    await sendTexts(url, from, numbers(0, 3))
    const working = start()
    await pollUntil('the refused record to be tried', () => tries >= 1, soon)
    await pollUntil('all output', () => output.length >= 3, soon)
    await working.stop()
    expect(output).toEqual(valuesOf(numbers(0, 3)))
    expect(await committed()).toBe(3)
  })

  test('a record that the client refuses aborts the transaction', timed, async () => {
    let tries = 0
    const transform: ExactlyOnceOptions['transform'] = ({ body }) => ({
      body: tries++ === 1 ? Buffer.alloc(1_200_000) : body,
    })
    const { url, from, start, output, committed } = await openWorld({ transform })
    await sendTexts(url, from, numbers(0, 3))
    start()
    await pollUntil('all to be committed', async () => (await committed()) >= 3, soon)
    // What comes after it tells that there is no more of the others.
    await sendTexts(url, from, numbers(3, 4))
    await pollUntil('the last output', () => output.includes('3'), soon)
    expect(output).toEqual(valuesOf(numbers(0, 4)))
  })

  test('what a worker that died left open is ended by its next start', timed, async () => {
    const { url, from, to, options, output } = await openWorld({ transactionMs: 600_000 })
    const dead = await confluentOn(url).transactionalProducer(options.transactionalId, {
      transactionMs: 600_000,
      callMs: 10_000,
    })
    await new Promise((resolve) => dead.beginTransaction(resolve))
    await new Promise((resolve) => dead.produce(to, null, Buffer.from('never'), null, null, resolve, []))
    let opened = 0
    const client = options.client as ReturnType<typeof confluentOn>
    const counting: typeof client = {
      ...client,
      transactionalProducer: (...given) => client.transactionalProducer(...given).finally(() => opened++),
    }
    const working = exactlyOnce({ ...options, client: counting })
    onTestFinished(() => working.stop())
    await pollUntil('the next start', () => opened > 0, soon)
    // It was not dead after all.
    await new Promise((resolve) => dead.commitTransaction(10_000, resolve))
    await sendTexts(url, from, numbers(0, 3))
    await pollUntil('the output', () => output.length >= 3, soon)
    expect(output).toEqual(valuesOf(numbers(0, 3)))
    await new Promise((resolve) => dead.disconnect(0, resolve))
  })

  test('a commit whose reply was lost is looked up, and not done again', timed, async () => {
    let lost = 0
    const world = await openWorld()
    const client = world.options.client as ReturnType<typeof confluentOn>
    // The broker has committed, and the client says that it timed out.
    const losing = {
      ...client,
      transactionalProducer: async (...given: Parameters<typeof client.transactionalProducer>) => {
        const producer = await client.transactionalProducer(...given)
        const commit = producer.commitTransaction.bind(producer)
        producer.commitTransaction = (timeoutMs, done) =>
          commit(timeoutMs, (error, answer) => {
            if (error || lost++ > 0) return done(error, answer)
            done(Object.assign(new Error('timed out'), { code: -185 }), answer)
          })
        return producer
      },
    }
    const working = exactlyOnce({ ...world.options, client: losing })
    onTestFinished(() => working.stop())
    await sendTexts(world.url, world.from, numbers(0, 3))
    await pollUntil('the first commit', () => lost > 0, soon)
    await sendTexts(world.url, world.from, numbers(3, 6))
    await pollUntil('all output', () => world.output.length >= 6, soon)
    await working.stop()
    expect(world.output).toEqual(valuesOf(numbers(0, 6)))
  })

  test('a producer that does not close holds up nothing', timed, async () => {
    let lies = 0
    const world = await openWorld()
    const client = world.options.client as ReturnType<typeof confluentOn>
    const silent = {
      ...client,
      transactionalProducer: async (...given: Parameters<typeof client.transactionalProducer>) => {
        const producer = await client.transactionalProducer(...given)
        const [commit, disconnect] = [producer.commitTransaction.bind(producer), producer.disconnect.bind(producer)]
        if (lies++ > 0) return producer
        producer.commitTransaction = (timeoutMs, done) =>
          commit(timeoutMs, (_, answer) => done(Object.assign(new Error('timed out'), { code: -185 }), answer))
        producer.disconnect = (flushMs) => disconnect(flushMs, () => {})
        return producer
      },
    }
    const working = exactlyOnce({ ...world.options, client: silent })
    onTestFinished(() => working.stop())
    await sendTexts(world.url, world.from, numbers(0, 3))
    await pollUntil('a second producer', () => lies > 1)
    await sendTexts(world.url, world.from, numbers(3, 6))
    await pollUntil('all output', () => world.output.length >= 6)
    expect(world.output).toEqual(valuesOf(numbers(0, 6)))
  })

  test('a worker that stood still for most of its session commits nothing, and begins anew', timed, async () => {
    let tries = 0
    const transform: ExactlyOnceOptions['transform'] = ({ body }) => {
      // Blocks the process. Librdkafka's own thread tells the group that the member lives.
      if (tries++ === 0) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2_500)
      return { body }
    }
    const { url, from, start, output } = await openWorld({ transform, sessionMs: 3_000 })
    await sendTexts(url, from, numbers(0, 1))
    start()
    await pollUntil('the output', () => output.length >= 1)
    expect(tries).toBeGreaterThan(1)
    expect(output).toEqual(['0'])
  })

  test('a transform that fails is tried again with its whole transaction, in order', timed, async () => {
    let failures = 3
    const transform: ExactlyOnceOptions['transform'] = ({ body, key }) => {
      if (Buffer.from(body).toString() === '7' && failures-- > 0) throw new Error('not now')
      return [
        { body, headers: { 'ce-type': 'counted' } },
        { body: Buffer.from(`again ${Buffer.from(body).toString()}`), key: key! },
      ]
    }
    const { url, from, start, output, committed } = await openWorld({ transform, batchMax: 20 })
    await sendTexts(url, from, numbers(0, 50))
    const working = start()
    await pollUntil('all output', () => output.length >= 100, soon)
    await working.stop()
    expect(output).toEqual(valuesOf(numbers(0, 50)).flatMap((value) => [value, `again ${value}`]))
    expect(await committed()).toBe(50)
  })

  test('records of an aborted transaction are not read', timed, async () => {
    const { url, from, start, output } = await openWorld()
    const other = await confluentOn(url).transactionalProducer(randomUUID(), { transactionMs: 60_000, callMs: 10_000 })
    await new Promise((resolve) => other.beginTransaction(resolve))
    await new Promise((resolve) => other.produce(from, null, Buffer.from('aborted'), null, null, resolve, []))
    await new Promise((resolve) => other.abortTransaction(10_000, resolve))
    await sendTexts(url, from, numbers(0, 3))
    start()
    await pollUntil('the output', () => output.length >= 3, soon)
    expect(output).toEqual(valuesOf(numbers(0, 3)))
    await new Promise((resolve) => other.disconnect(0, resolve))
  })

  test('of two workers with one transactional id the older is fenced, and ends', timed, async () => {
    const { url, from, options, output } = await openWorld()
    let opened = 0
    const client = options.client as ReturnType<typeof confluentOn>
    const counting: typeof client = {
      ...client,
      transactionalProducer(...given) {
        opened++
        return client.transactionalProducer(...given)
      },
    }
    const older = exactlyOnce({ ...options, client: counting })
    onTestFinished(() => older.stop())
    await sendTexts(url, from, numbers(0, 3))
    await pollUntil('the first output', () => output.length >= 3, soon)
    // It joins another group, so that the older one keeps its partition.
    const younger = exactlyOnce({ ...options, group: randomUUID(), from: [await createTopic(url, 1)] })
    onTestFinished(() => younger.stop())
    let end: unknown
    older.ended.catch((error: unknown) => (end = error))
    await pollUntil(
      'the older to be fenced',
      async () => {
        if (!end) await sendTexts(url, from, [['key', 'more']])
        return end ?? opened > 1
      },
      { ...soon, intervalMs: 200 },
    )
    expect(end).toMatchObject({ code: 'CLAIM_LOST', message: expect.stringContaining('was fenced') as string })
    expect(opened).toBe(1)
  })

  test('a zombie that comes back after its session commits nothing', { timeout: 120_000 }, async () => {
    const { url, from, to, options, output } = await openWorld()
    const worker = { url, from, to, group: options.group, batchMax: 750, transactionMs: 60_000, failEvery: 1e9 }
    await sendTexts(url, from, numbers(0, 100))
    await using zombie = startWorker('exactly-once-worker.ts', {
      ...worker,
      transactionalId: `${options.group}-zombie`,
      pauseEvery: 1,
    } satisfies ExactlyOnceWorker)
    await pollUntil('the zombie to begin', () => zombie.said.includes('begun'))
    zombie.signal('SIGSTOP')
    await using heir = startWorker('exactly-once-worker.ts', {
      ...worker,
      transactionalId: `${options.group}-heir`,
      pauseEvery: 1e9,
    } satisfies ExactlyOnceWorker)
    // Before the zombie comes back the heir has done all and left: a group without members would take any offset.
    await pollUntil('the heir to commit', async () => (await committedOffsets(url, options.group, from))[0] === 100)
    expect(await heir.end('SIGTERM')).toBe(0)
    zombie.signal('SIGCONT')
    await pollUntil('the zombie to notice', () => zombie.said.includes('survived') || zombie.hasEnded)
    await sendTexts(url, from, numbers(100, 110))
    await using successor = startWorker('exactly-once-worker.ts', {
      ...worker,
      transactionalId: `${options.group}-successor`,
      pauseEvery: 1e9,
    } satisfies ExactlyOnceWorker)
    await pollUntil('all output', () => output.includes('109'))
    for (const each of [zombie, successor]) if (!each.hasEnded) await each.end('SIGTERM')
    expect(output).toEqual(valuesOf(numbers(0, 110)))
  })

  test('static membership and the new group protocol work', timed, async () => {
    for (const more of [{ instanceId: 'one' }, { protocol: 'consumer' }] as const) {
      const { url, from, start, output } = await openWorld(more)
      await sendTexts(url, from, numbers(0, 10))
      const first = start()
      await pollUntil(`output with ${JSON.stringify(more)}`, () => output.length >= 10, soon)
      await first.stop()
      await sendTexts(url, from, numbers(10, 20))
      const second = start()
      await pollUntil('more output', () => output.length >= 20, soon)
      await second.stop()
      expect(output).toEqual(valuesOf(numbers(0, 20)))
    }
  })
})

test('the clients that cannot keep it are refused by name', () => {
  const options = { from: ['a'], to: 'b', group: 'g', transactionalId: 'w', transform: () => undefined }
  const nowhere = 'kafka://127.0.0.1:1'
  expect(() => exactlyOnce({ ...options, client: kafkajsClient(kafkajsOn(nowhere)) })).toThrow(
    /kafkajs cannot keep it, because the broker accepts the offsets of its zombies/,
  )
  expect(() => exactlyOnce({ ...options, client: platformaticOn(nowhere) })).toThrow(
    /@platformatic\/kafka cannot keep it, because its consumer hands out records of aborted transactions/,
  )
})

// Consumers with a real inbox, killed and halted, on a broker that is bounced. Judged by a ledger without constraints. They wait for
// sessions to end most of the time, so the tests run at once.
import { randomUUID } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { expect, test, type TestContext } from 'vitest'
import type { ConsumerWorker } from '../../../test/messages/kafka/consumer-worker.ts'
import type { ZombieWorker } from '../../../test/messages/kafka/zombie-worker.ts'
import { startWorker, type Worker } from '../../../test/messages/kafka/workers.ts'
import { clientsOn, committedOffsets, createTopic, sendTexts, sharedKafka } from '../../../test/messages/kafka/world.ts'
import { startKafka } from '../../../test/servers/kafka.ts'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'

interface Ledger {
  readonly path: string
  /** The ids of each partition, in the order of their effects. */
  rows(): Map<number, string[]>
  count(): number
}

function openLedger({ onTestFinished }: TestContext): Ledger {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-ledger-'))
  const path = join(folder, 'ledger.db')
  const database = new DatabaseSync(path, { timeout: 10_000 })
  database.exec('pragma journal_mode = wal; create table ledger (partition integer, id text)')
  onTestFinished(() => {
    database.close()
    rmSync(folder, { recursive: true })
  })
  return {
    path,
    rows() {
      const found = new Map<number, string[]>()
      for (const { partition, id } of database.prepare('select partition, id from ledger order by rowid').all()) {
        found.set(Number(partition), [...(found.get(Number(partition)) ?? []), String(id)])
      }
      return new Map([...found].sort(([a], [b]) => a - b))
    },
    count: () => Number(database.prepare('select count(*) as count from ledger').get()!['count']),
  }
}

const texts = (begin: number, end: number, partitions: number): (readonly [string, string, number])[] =>
  Array.from({ length: end - begin }, (_, position) => {
    const partition = (begin + position) % partitions
    return [`key-${partition}`, `m-${begin + position}`, partition]
  })

function expected(count: number, partitions: number): Map<number, string[]> {
  const all = texts(0, count, partitions)
  const of = (partition: number): string[] => all.filter((each) => each[2] === partition).map(([, text]) => text)
  return new Map(Array.from({ length: partitions }, (_, partition) => [partition, of(partition)]))
}

needs(['kafka', 'confluent'], { ours: true }).describe('consumers that are killed', () => {
  for (const client of Object.keys(clientsOn)) {
    test.concurrent(
      `${client}: kill -9 of consumers and of the broker: every message took effect once, in the order of its partition`,
      { timeout: 300_000 },
      async (context) => {
        await using server = await startKafka()
        const ledger = openLedger(context)
        const [topic, group] = [await createTopic(server.url, 3), randomUUID()]
        const { path } = ledger
        const start = (): Worker =>
          startWorker('consumer-worker.ts', {
            client,
            url: server.url,
            topic,
            group,
            path,
            sessionMs: 4_000,
            pauseMs: 1,
          } satisfies ConsumerWorker)
        const [count, rounds] = [900, 3]
        const workers = [start(), start()]
        let kills = 0
        for (let round = 0; round < rounds; round++) {
          await sendTexts(server.url, topic, texts((count * round) / rounds, (count * (round + 1)) / rounds, 3))
          const before = ledger.count()
          await pollUntil('effects', () => ledger.count() > before + 20)
          const victim = round % 2
          if ((await workers[victim]!.end('SIGKILL')) === 'SIGKILL') kills++
          if (round === 1) {
            await server.crash()
            await server.restart()
          }
          workers[victim] = start()
        }
        await pollUntil('all effects', () => ledger.count() >= count, { timeoutMs: 120_000 })
        const isCommitted = async (): Promise<boolean> =>
          (await committedOffsets(server.url, group, topic)).every((offset) => offset === count / 3)
        await pollUntil('all offsets', isCommitted)
        for (const worker of workers) expect(await worker.end('SIGTERM')).toBe(0)
        expect(ledger.rows()).toEqual(expected(count, 3))
        expect(kills).toBe(rounds)
      },
    )
  }

  for (const client of Object.keys(clientsOn)) {
    test.concurrent(
      `${client}: a zombie that comes back after its session commits nothing, and joins again`,
      { timeout: 120_000 },
      async () => {
        const url = await sharedKafka()
        const [topic, group] = [await createTopic(url, 1), randomUUID()]
        const options = { client, url, topic, group, sessionMs: 3_000 }
        await sendTexts(url, topic, texts(0, 3, 1))
        await using zombie = startWorker('zombie-worker.ts', { ...options, pauseMs: 500 } satisfies ZombieWorker)
        await pollUntil('the zombie to handle the first message', () => zombie.said.includes('begun m-0'))
        zombie.signal('SIGSTOP')
        // Never done with its message while the test runs.
        await using heir = startWorker('zombie-worker.ts', { ...options, pauseMs: 3_600_000 } satisfies ZombieWorker)
        await pollUntil('the heir to be given the message', () => heir.said.includes('begun m-0'))
        zombie.signal('SIGCONT')
        await pollUntil('the zombie to try its commit', () =>
          zombie.said.some((line) => /^(committed|refused) m-0$/.test(line)),
        )
        expect(zombie.said).toContain('refused m-0')
        expect(zombie.said).not.toContain('committed m-0')
        expect((await committedOffsets(url, group, topic)).filter((offset) => offset > 0)).toEqual([])
        // It has joined again, and goes on when the heir is gone.
        await heir.end('SIGKILL')
        await pollUntil('the last commit', () => zombie.said.includes('committed m-2') || zombie.hasEnded)
        expect(zombie.hasEnded).toBe(false)
        expect(await committedOffsets(url, group, topic)).toEqual([3])
      },
    )
  }
})

// Every case on every adapter, on the memory store and on SQLite; one adapter on the stores that are servers. At the end, a
// table of adapter × group of cases.
import { afterAll, beforeAll, describe, test } from 'vitest'
import { type PostgresGround, startPostgresGround } from '../subjects/postgres.ts'
import { durable } from '../subjects/redis.ts'
import { needs } from '../servers/needs.ts'
import { startRedis } from '../servers/redis.ts'
import type { Running } from '../servers/server.ts'
import { apps } from './apps/index.ts'
import { type Case, readCases } from './cases.ts'
import { runCase, type Subject } from './runner.ts'
import { memory, postgresOn, redisOn, sqlite } from './stores.ts'
import { scoreboard } from './scoreboard.ts'

const cases = (['cases.json', 'more-cases.json', 'hostile-cases.json'] as const).flatMap(readCases)
const board = scoreboard()

/** What cannot hold, and why. By store or by adapter, never by accident. */
const cannot: Readonly<Record<string, string>> = {
  'memory CT-02': 'the memory store has no transactions',
  'memory CT-m2': 'the memory store has no transactions',
  'redis CT-m2': 'the Redis store has no transactions',
  'redis CT-02': 'the Redis store has no transactions',
  'memory CT-03': 'the memory store dies with its process',
}

function runAll(subject: Subject): void {
  const row = `${subject.adapter} on ${subject.storeKind.name}`
  const reasonFor = ({ id }: Case): string | undefined =>
    cannot[`${subject.storeKind.name} ${id}`] ?? cannot[`${subject.adapter} ${id}`]
  for (const each of cases) {
    const reason = reasonFor(each)
    if (reason) {
      board.cannot(row, each, reason)
      continue
    }
    test(`${each.id} ${each.title}`, async () => {
      board.failed(row, each)
      await runCase(subject, each)
      board.passed(row, each)
    })
  }
}

for (const storeKind of [memory, sqlite]) {
  needs(storeKind.name as 'memory' | 'sqlite').describe(`on ${storeKind.name}`, () => {
    for (const [adapter, start] of Object.entries(apps)) {
      describe(adapter, () => runAll({ adapter, start, storeKind }))
    }
  })
}

needs('postgres').describe('express5 on postgres', () => {
  let ground: PostgresGround
  beforeAll(async () => {
    ground = await startPostgresGround()
  })
  afterAll(() => ground[Symbol.asyncDispose]())
  runAll({ adapter: 'express5', start: apps.express5, storeKind: postgresOn(() => ground) })
})

needs('redis', { ours: true }).describe('express5 on redis', () => {
  let server: Running
  beforeAll(async () => {
    server = await startRedis({ config: durable })
  })
  afterAll(() => server.stop())
  runAll({ adapter: 'express5', start: apps.express5, storeKind: redisOn(() => server) })
})

afterAll(() => void process.stdout.write(board.table()))

// Sessions over HTTP on every adapter and behind the gateway. Other options: src/http/exchange/sessions.test.ts.
import { afterAll, beforeAll, describe, test } from 'vitest'
import type { StartApp } from '../conformance/apps/app.ts'
import { apps } from '../conformance/apps/index.ts'
import { memory, postgresOn, redisOn, sqlite, type StoreKind } from '../conformance/stores.ts'
import { startBehindGateway } from '../gateway/conformance-app.ts'
import { needs } from '../servers/needs.ts'
import { startRedis } from '../servers/redis.ts'
import type { Running } from '../servers/server.ts'
import { type PostgresGround, startPostgresGround } from '../subjects/postgres.ts'
import { durable } from '../subjects/redis.ts'
import { openSessionWorld, sessionCasesOn, type SessionWorld } from './session-cases.ts'

const gateway: StartApp = startBehindGateway

function runAll(start: StartApp, storeKind: StoreKind): void {
  let world: SessionWorld
  beforeAll(async () => {
    world = await openSessionWorld({ start, storeKind })
  })
  afterAll(() => world.close())
  for (const [name, run] of sessionCasesOn(storeKind)) test(name, () => run(world))
}

describe.each(Object.entries({ ...apps, gateway }))('%s in memory', (_adapter, start) => runAll(start, memory))

// What a database changes is the same below every adapter.
describe.each(Object.entries({ express5: apps.express5, gateway }))('%s on SQLite', (_adapter, start) =>
  runAll(start, sqlite),
)

needs('postgres').describe('fastify on PostgreSQL', () => {
  let ground: PostgresGround
  beforeAll(async () => {
    ground = await startPostgresGround()
  })
  afterAll(() => ground[Symbol.asyncDispose]())
  runAll(
    apps.fastify,
    postgresOn(() => ground),
  )
})

needs('redis', { ours: true }).describe('hono on Redis', () => {
  let server: Running
  beforeAll(async () => {
    server = await startRedis({ config: durable })
  })
  afterAll(() => server.stop())
  runAll(
    apps.hono,
    redisOn(() => server),
  )
})

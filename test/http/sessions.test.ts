// Sessions over HTTP on every adapter and behind the gateway. Other options: src/http/exchange/sessions.test.ts.
import { afterAll, beforeAll, describe, test } from 'vitest'
import type { StartApp } from '../conformance/apps/app.ts'
import { apps } from '../conformance/apps/index.ts'
import { memory, sqlite, type StoreKind } from '../conformance/stores.ts'
import { startBehindGateway } from '../gateway/conformance-app.ts'
import { openSessionWorld, sessionCases, type SessionWorld } from './session-cases.ts'

const gateway: StartApp = startBehindGateway

function runAll(start: StartApp, storeKind: StoreKind): void {
  let world: SessionWorld
  beforeAll(async () => {
    world = await openSessionWorld({ start, storeKind })
  })
  afterAll(() => world.close())
  for (const [name, run] of Object.entries(sessionCases)) test(name, () => run(world))
}

describe.each(Object.entries({ ...apps, gateway }))('%s in memory', (_adapter, start) => runAll(start, memory))

// What a database changes is the same below every adapter.
describe.each(Object.entries({ express5: apps.express5, gateway }))('%s on SQLite', (_adapter, start) =>
  runAll(start, sqlite),
)

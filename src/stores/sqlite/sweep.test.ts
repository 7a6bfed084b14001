import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { expect, test } from 'vitest'
import { key } from '../../core/key.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import { bytesOf, finish, take } from '../../testing/store-contract.ts'
import { sqliteStore } from '../sqlite.ts'

test('a sweep takes outcome and input of a tombstone off the disk', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-sweep-'))
  const path = join(folder, 'test.db')
  const clock = manualClock()
  const store = sqliteStore({ path, clock })
  const short = { retention: { keepMs: 1_000, tombstoneMs: 60_000 }, input: bytesOf('secret input') }
  await finish(store, key('swept', 'settled'), bytesOf('secret outcome'), short)
  await store.release(await take(store, key('swept', 'open'), short), 'open')
  await clock.advance(60_000)
  expect(await store.sweep({ limit: 10 })).toMatchObject({ tombstoned: 2, forgotten: 0 })
  const database = new DatabaseSync(path, { readOnly: true })
  const tables = database.prepare(`select name from sqlite_master where type = 'table'`).all()
  const rows = tables.flatMap(({ name }) => database.prepare(`select * from "${String(name)}"`).all())
  database.close()
  store.close()
  rmSync(folder, { recursive: true })
  const kept = rows.flatMap((row) => Object.values(row)).filter((value) => value instanceof Uint8Array)
  expect(kept.map((bytes) => Buffer.from(bytes).toString()).filter((text) => text.includes('secret'))).toEqual([])
  expect(rows.some((row) => row['id'] === 'settled')).toBe(true)
})

test('a sweep goes in short steps, as it keeps the event loop, and says that there is more', async () => {
  const clock = manualClock()
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-sweep-'))
  const store = sqliteStore({ path: join(folder, 'test.db'), clock })
  const short = { retention: { keepMs: 1_000, tombstoneMs: 0 } }
  const ids = Array.from({ length: 150 }, (_, index) => key('swept', `entry ${index}`))
  await Promise.all(ids.map((id) => finish(store, id, bytesOf('outcome'), short)))
  await clock.advance(60_000)
  const steps = []
  for (let more = true; more;) {
    const swept = await store.sweep({ limit: 1_000 })
    steps.push(swept.forgotten)
    more = swept.more
  }
  store.close()
  rmSync(folder, { recursive: true })
  expect(steps).toEqual([64, 64, 22])
})

// What `onceonly doctor` says of a SQLite file, check by check.

import { chmodSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { afterEach, beforeEach, expect, test } from 'vitest'
import type { FitnessCheck } from '../../core/fitness.ts'
import { key } from '../../core/key.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import { bytesOf, finish } from '../../testing/store-contract.ts'
import { sqliteFitness, sqliteStore } from '../sqlite.ts'
import type { SqliteFitnessOptions } from '../sqlite.ts'

let folder: string
let path: string
const clock = manualClock()

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'onceonly-fitness-'))
  path = join(folder, 'once.db')
})
afterEach(() => rmSync(folder, { recursive: true }))

async function makeStore(table = 'onceonly'): Promise<void> {
  const store = sqliteStore({ path, table, clock })
  await finish(store, key('s', '1'), bytesOf('x'), { retention: { keepMs: 1_000, tombstoneMs: 1_000 } })
  store.close()
  chmodSync(path, 0o600)
}

async function checked(more: Partial<SqliteFitnessOptions> = {}, nowMs = clock.now()) {
  const checks = await sqliteFitness({ path, ...more }).checks(nowMs)
  for (const { why, lookedAt, verdict, mend } of checks) {
    expect(Math.min(why.length, lookedAt.length)).toBeGreaterThan(10)
    if (verdict === 'ok') expect(mend).toBeUndefined()
    else expect(mend!.length).toBeGreaterThan(20)
  }
  return Object.fromEntries(checks.map((check) => [check.name, check])) as Record<string, FitnessCheck>
}

test('a file that the store made is fit', async () => {
  await makeStore()
  const checks = await checked()
  expect(Object.values(checks).map(({ name, verdict, found }) => [name, verdict, found])).toEqual([
    ['sqlite-journal', 'ok', 'wal'],
    ['sqlite-synchronous', 'ok', 'EXTRA; a connection below FULL is refused by the store'],
    ['sqlite-place', 'ok', expect.stringMatching(/^type 0x[0-9a-f]+, not known to be unfit$/) as string],
    ['sqlite-mode', 'ok', 'mode 0600'],
    ['clock', 'ok', 'the file is not ahead of this machine'],
    ['unswept', 'ok', expect.any(String) as string],
  ])
  expect(checks['sqlite-place']!.lookedAt).toBe(`the file system of ${folder}`)
  expect(checks['clock']!.lookedAt).toContain('(onceonly_clock)')
  expect(checks['unswept']!.lookedAt).toContain('entries of onceonly ')
})

test('what durability gives up is said', async () => {
  await makeStore()
  expect((await checked({ durability: 'relaxed' }))['sqlite-synchronous']).toMatchObject({
    verdict: 'violated',
    found: 'NORMAL (durability=relaxed)',
  })
})

test.each([
  ['wal', 'ok'],
  ['truncate', 'warning'],
  ['delete', 'warning'],
])('a journal that is %s is %s', async (mode, verdict) => {
  await makeStore()
  const database = new DatabaseSync(path)
  database.exec(`PRAGMA journal_mode = ${mode}`)
  database.close()
  const found = (await checked())['sqlite-journal']
  // Only WAL is a property of the file. Every other mode is that of the connection that looks.
  expect(found).toMatchObject({ verdict, found: mode === 'wal' ? 'wal' : 'delete' })
})

test.each([
  [0o600, 'ok', 'mode 0600'],
  [0o640, 'warning', 'mode 0640'],
  [0o601, 'warning', 'mode 0601'],
  [0o400, 'ok', 'mode 0400'],
])('who may read the file: %i', async (mode, verdict, found) => {
  await makeStore()
  chmodSync(path, mode)
  expect((await checked())['sqlite-mode']).toMatchObject({ verdict, found })
})

test.each([
  [5_000, 'ok', 'the file is 5 s ahead'],
  [5_001, 'warning', 'the file is 5 s ahead'],
  [1, 'ok', 'the file is 1 ms ahead'],
  [0, 'ok', 'the file is not ahead of this machine'],
])('a file that is %i ms ahead of the machine', async (aheadMs, verdict, found) => {
  await makeStore()
  expect((await checked({}, clock.now() - aheadMs))['clock']).toMatchObject({ verdict, found })
})

test('what is due for a sweep for more than a day is told, and what is not due is not', async () => {
  await makeStore()
  const day = 86_400_000
  expect((await checked())['unswept']).toMatchObject({ verdict: 'ok' })
  expect((await checked({}, clock.now() + 1_000 + day))['unswept']).toMatchObject({ verdict: 'ok' })
  expect((await checked({}, clock.now() + 1_001 + day))['unswept']).toMatchObject({ verdict: 'warning' })
})

test('another table is looked at by its name, and one that is not there is unknown', async () => {
  await makeStore('other')
  const there = await checked({ table: 'other' })
  expect([there['clock']!.verdict, there['unswept']!.verdict]).toEqual(['ok', 'ok'])
  const missing = await checked()
  expect([missing['clock']!.verdict, missing['unswept']!.verdict]).toEqual(['unknown', 'unknown'])
})

test('a look changes nothing: the file may only be read', async () => {
  await expect(sqliteFitness({ path }).checks(0)).rejects.toThrow()
})

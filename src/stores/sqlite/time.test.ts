import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createOnce } from '../../core/once.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import { sqliteStore } from '../sqlite.ts'

let path: string
beforeEach(() => void (path = join(mkdtempSync(join(tmpdir(), 'onceonly-time-')), 'test.db')))
afterEach(() => rmSync(join(path, '..'), { recursive: true }))

const startMs = 1_700_000_000_000
const hourMs = 3_600_000

test('a clock that is set back revives nothing that has expired, and one set forward expires nothing', async () => {
  const clock = manualClock(startMs)
  const store = sqliteStore({ path, clock })
  const once = createOnce({ store, scope: 'payments', clock, keepMs: 1_000 })
  await once.run('42', () => 'first')
  clock.setNow(startMs + hourMs)
  expect(await once.run('42', () => 'never')).toMatchObject({ value: 'first', replayed: true })
  await clock.advance(1_000)
  clock.setNow(startMs - hourMs)
  await expect(once.run('42', () => 'never')).rejects.toMatchObject({ code: 'EXPIRED' })
  store.close()
})

test('a process that starts on a clock set back goes on where the file is: leases end, and what has expired stays so', async () => {
  const before = manualClock(startMs)
  const dead = sqliteStore({ path, clock: before })
  const request = {
    fingerprint: 'x'.repeat(43),
    leaseMs: 5_000,
    retention: { keepMs: 10_000, tombstoneMs: hourMs },
    version: 0,
  }
  const policies = { onTakeover: 'run', onExpired: 'refuse' } as const
  const claim = (store: typeof dead, id: string, token: string) =>
    store.claim({ scope: 's', id }, { ...request, ...policies, token })
  await claim(dead, 'abandoned', crypto.randomUUID())
  dead.close()
  const after = manualClock(startMs - hourMs)
  const store = sqliteStore({ path, clock: after })
  expect(await claim(store, 'abandoned', crypto.randomUUID())).toMatchObject({ is: 'busy', retryAfterMs: 5_000 })
  await after.advance(5_000)
  expect(await claim(store, 'abandoned', crypto.randomUUID())).toMatchObject({ is: 'granted', how: 'taken-over' })
  store.close()
})

test('processes whose clocks differ agree as soon as both have written', async () => {
  const [ahead, behind] = [manualClock(startMs + hourMs), manualClock(startMs)]
  const [first, second] = [sqliteStore({ path, clock: ahead }), sqliteStore({ path, clock: behind })]
  const request = {
    fingerprint: 'x'.repeat(43),
    leaseMs: 5_000,
    retention: { keepMs: 10_000, tombstoneMs: 0 },
    version: 0,
  }
  const policies = { onTakeover: 'run', onExpired: 'refuse' } as const
  await first.claim({ scope: 's', id: 'a' }, { ...request, ...policies, token: crypto.randomUUID() })
  await second.claim({ scope: 's', id: 'b' }, { ...request, ...policies, token: crypto.randomUUID() })
  const verdict = await second.claim({ scope: 's', id: 'a' }, { ...request, ...policies, token: crypto.randomUUID() })
  expect(verdict).toEqual({ is: 'busy', retryAfterMs: 5_000 })
  first.close()
  second.close()
})

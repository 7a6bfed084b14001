import { expect, test } from 'vitest'
import { publish } from '../core/events.ts'
import type { EventName } from '../core/events.ts'
import { createOnce } from '../core/once.ts'
import { memoryStore } from '../stores/memory.ts'
import { manualClock } from '../testing/manual-clock.ts'
import { createLog } from './request-log.ts'
import type { LogLevel, RequestRecord } from './request-log.ts'

const records: readonly RequestRecord[] = [
  { method: 'POST', path: '/a', status: 201, result: 'executed', durationMs: 1.23456, keyHash: 'ab', attempt: 1 },
  { method: 'POST', path: '/a', status: 502, result: 'unreachable', durationMs: 1, cause: 'ECONNREFUSED' },
  { method: 'POST', path: '/a', status: 502, result: 'in-doubt', durationMs: 1 },
]

test.each<[LogLevel, number]>([
  ['silent', 0],
  ['error', 1],
  ['warn', 2],
  ['info', 3],
])('%s writes %i of the three lines', (level, count) => {
  const lines: string[] = []
  const log = createLog({ level, clock: manualClock(), write: (line) => void lines.push(line) })
  for (const record of records) log.request(record)
  expect(lines).toHaveLength(count)
})

test('a line is JSON, whatever is in it, and one line', () => {
  const lines: string[] = []
  const log = createLog({ level: 'info', clock: manualClock(0), write: (line) => void lines.push(line) })
  log.request({ ...records[0]!, path: '/a\n{"level":"error"}' })
  expect(lines[0]).not.toContain('\n')
  expect(JSON.parse(lines[0]!)).toEqual({
    time: '1970-01-01T00:00:00.000Z',
    level: 'info',
    event: 'request',
    ...records[0],
    path: '/a\n{"level":"error"}',
    durationMs: 1.2,
  })
})

test.each<[EventName, object, 'warn' | 'error']>([
  ['store-failed', { during: 'claim', code: 'STORE_UNAVAILABLE' }, 'error'],
  ['store-unfit', { store: 'postgres', code: 'SCHEMA_MISSING' }, 'error'],
  ['data-loss', { store: 'redis', register: 'r', evidence: 'emptied', quarantined: true }, 'error'],
  ['lost', { attempt: 1, durationMs: 3 }, 'warn'],
  ['taken-over', { attempt: 2 }, 'warn'],
  ['mended', { action: 'release' }, 'warn'],
])('%s is a line of the log', (name, event, level) => {
  const lines: string[] = []
  const log = createLog({ level: 'info', clock: manualClock(), write: (line) => void lines.push(line) })
  const stop = log.followEvents()
  publish(name, undefined, event as never)
  stop()
  publish(name, undefined, event as never)
  expect(lines.map((line) => JSON.parse(line) as object)).toMatchObject([{ level, event: name, ...event }])
})

test('what goes wrong with the store is written down, without the key', async () => {
  const lines: string[] = []
  const log = createLog({ level: 'info', clock: manualClock(), write: (line) => void lines.push(line) })
  const stop = log.followEvents()
  const store = { ...memoryStore(), claim: () => Promise.reject(new Error('down')) }
  const once = createOnce({ store, scope: 'logged' })
  await expect(once.run('secret', () => 1)).rejects.toThrow()
  stop()
  await once.close()
  const failed = lines
    .map((line) => JSON.parse(line) as Record<string, unknown>)
    .find(({ scope }) => scope === 'logged')
  expect(failed).toMatchObject({ level: 'error', event: 'store-failed', during: 'claim' })
  expect(lines.join('')).not.toContain('secret')
})

// What every key store must do, case by case. `one` and `other` are two processes (or tabs) on the same data.

import { expect } from 'vitest'
import type { KeyStore, PendingRecord } from '../../src/client/client.ts'

export interface KeyStorePair {
  readonly one: KeyStore
  readonly other: KeyStore
}

export interface KeyStoreCase {
  readonly name: string
  run(stores: KeyStorePair): Promise<void>
}

export function record(operation: string, key: string, more: Partial<PendingRecord> = {}): PendingRecord {
  const headers = [['content-type', 'application/json']] as const
  const request = { method: 'POST', url: 'https://shop.example/payments', headers, body: btoa('{"cents":500}') }
  return { operation, key, request, createdAtMs: 1_700_000_000_000, ...more }
}

const answer = { status: 201, statusText: 'Created', url: '', headers: [['x-a', 'b']] as const, body: btoa('receipt') }

/** Each is another operation, however a file system, a column or a folder would like to see it. */
const names = [
  'pay',
  'PAY',
  'pay ',
  ' pay',
  'é',
  'e\u0301',
  '../pay',
  'a/b',
  'a\\b',
  "it's",
  '%',
  '_',
  '💸',
  'x'.repeat(255),
  `${'x'.repeat(254)}y`,
]

export const keyStoreCases: readonly KeyStoreCase[] = [
  {
    name: 'of many that open one operation at once, one key stands for all',
    async run({ one, other }) {
      for (let round = 0; round < 5; round++) {
        const asked = Array.from({ length: 8 }, (_, index) => record(`race-${round}`, `k${index}`))
        const opened = await Promise.all(asked.map((each, index) => (index % 2 ? one : other).open(each)))
        expect(opened.filter((each, index) => each === asked[index])).toHaveLength(1)
        const keys = new Set(opened.map(({ key }) => key))
        expect(keys.size).toBe(1)
        expect(await one.get(`race-${round}`)).toMatchObject({ key: [...keys][0] })
      }
    },
  },
  {
    name: 'an open record is whole, and another process has it',
    async run({ one, other }) {
      const body = btoa(String.fromCharCode(...Array.from({ length: 4_096 }, (_, index) => index % 256))).repeat(1)
      const opened = record('pay', 'k1', { sentAtMs: 5, windowMs: 86_400_000 })
      const large = { ...opened, request: { ...opened.request, body } }
      // The very object: so a caller knows that it was the first.
      expect(await one.open(large)).toBe(large)
      const again = { ...large }
      expect(await one.open(again)).not.toBe(again)
      expect(await other.get('pay')).toEqual(large)
      expect(await other.list()).toEqual([large])
      expect(await other.get('another')).toBeUndefined()
    },
  },
  {
    name: 'opening again returns what stands, with all that was saved',
    async run({ one, other }) {
      await one.open(record('pay', 'k1'))
      await one.save(record('pay', 'k1', { sentAtMs: 7, windowMs: 9, answer }))
      const stands = record('pay', 'k1', { sentAtMs: 7, windowMs: 9, answer })
      expect(await other.open(record('pay', 'k2', { createdAtMs: 1 }))).toEqual(stands)
      expect(await one.list()).toEqual([stands])
    },
  },
  {
    name: 'the first answer stays, the earliest attempt counts, the shortest window holds',
    async run({ one, other }) {
      await one.open(record('pay', 'k1', { sentAtMs: 5 }))
      await one.save(record('pay', 'k1', { sentAtMs: 9, windowMs: 60_000, answer }))
      await other.save(record('pay', 'k1', { sentAtMs: 4, windowMs: 90_000, answer: { ...answer, status: 500 } }))
      await other.save(record('pay', 'k1', { sentAtMs: 8 }))
      await other.save(record('pay', 'k1'))
      expect(await one.get('pay')).toEqual(record('pay', 'k1', { sentAtMs: 4, windowMs: 60_000, answer }))
      await one.save(record('pay', 'k1', { windowMs: 0 }))
      expect(await other.get('pay')).toMatchObject({ windowMs: 0, answer })
    },
  },
  {
    name: 'what is saved about a removed record, or under another key, changes nothing',
    async run({ one, other }) {
      await one.save(record('pay', 'k1', { answer }))
      expect(await one.get('pay')).toBeUndefined()
      await one.open(record('pay', 'k1'))
      await other.save(record('pay', 'k2', { answer }))
      expect(await one.get('pay')).toEqual(record('pay', 'k1'))
      await other.remove('pay', 'k1')
      await one.save(record('pay', 'k1', { answer }))
      expect([await other.get('pay'), await other.list()]).toEqual([undefined, []])
    },
  },
  {
    name: 'remove takes only the record of its key, and a new one knows nothing of it',
    async run({ one, other }) {
      await one.open(record('pay', 'k1', { sentAtMs: 1 }))
      await one.save(record('pay', 'k1', { answer, windowMs: 3 }))
      await other.remove('pay', 'k2')
      expect(await one.get('pay')).toMatchObject({ key: 'k1', answer })
      await other.remove('pay', 'k1')
      await other.remove('pay', 'k1')
      expect(await one.open(record('pay', 'k2'))).toEqual(record('pay', 'k2'))
      await one.remove('pay', 'k1')
      expect(await other.get('pay')).toEqual(record('pay', 'k2'))
    },
  },
  {
    name: 'operations differ by every character of their names',
    async run({ one, other }) {
      for (const name of names) await one.open(record(name, `key of ${encodeURIComponent(name)}`.slice(0, 255)))
      for (const name of names) expect((await other.get(name))?.operation, name).toBe(name)
      expect((await other.list()).map(({ operation }) => operation).toSorted()).toEqual(names.toSorted())
      await one.remove('pay', 'key of pay')
      expect(await other.list()).toHaveLength(names.length - 1)
    },
  },
]

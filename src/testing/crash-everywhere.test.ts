import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { describe, expect, test } from 'vitest'
import { createOnce } from '../core/once.ts'
import { memoryStore } from '../stores/memory.ts'
import type { MemoryStore } from '../stores/memory.ts'
import { sqliteStore } from '../stores/sqlite.ts'
import type { SqliteStore } from '../stores/sqlite.ts'
import { crashEverywhere } from './crash-everywhere.ts'
import type { CrashEverywhereOptions } from './crash-everywhere.ts'
import type { ManualClock } from './manual-clock.ts'

interface Shop {
  readonly store: MemoryStore
  /** A bank that knows a key it has seen. */
  readonly charges: Map<string, number>
  /** What was asked of it, each time. */
  readonly asked: string[]
}

const shop = (clock: ManualClock): Shop => ({ store: memoryStore({ clock }), charges: new Map(), asked: [] })

const charged: CrashEverywhereOptions<Shop> = {
  setUp: shop,
  async run({ wrap, outside, clock }, { store, charges, asked }) {
    const once = createOnce({ store: wrap('store', store), scope: 'shop', clock, waitMs: 0 })
    const { value } = await once.run('order-1', (op) =>
      outside('charge', () => {
        const key = op.keyFor('charge')
        asked.push(key)
        if (!charges.has(key)) charges.set(key, charges.size + 1)
        return charges.get(key)
      }),
    )
    return value
  },
  check: ({ charges }) => assert.equal(charges.size, 1, `there are ${charges.size} charges`),
}

test('a charge with a derived key is one charge, wherever the process falls', async () => {
  const { cells, text } = await crashEverywhere(charged)
  expect(cells).toHaveLength(12)
  expect(cells.map(({ name }) => name).filter((_, index) => index % 4 === 0)).toEqual([
    'store.claim',
    'charge',
    'store.settle',
  ])
  expect(text.split('\n').slice(0, 2)).toEqual([
    '12 cells, 12 held',
    '   1  store.claim  dies before: held, dies after: held, fails before: held, fails after: held',
  ])
  // A process that died with the key in its hand is followed when its lease is over, not before.
  const died = cells.find(({ name, kind }) => name === 'charge' && kind === 'dies after')!
  expect(died.tries).toBe(4)
})

test('the same without a derived key is found: the bank charges twice', async () => {
  const random = {
    ...charged,
    async run({ wrap, outside, clock }, { store, charges }) {
      const once = createOnce({ store: wrap('store', store), scope: 'shop', clock })
      const { value } = await once.run('order-1', () =>
        outside('charge', () => charges.set(crypto.randomUUID(), 1).size),
      )
      return value
    },
  } satisfies CrashEverywhereOptions<Shop>
  await expect(crashEverywhere(random)).rejects.toThrow(/2 {2}charge {2}dies before: held, dies after: BROKEN/)
  await expect(crashEverywhere(random)).rejects.toThrow('there are 2 charges')
})

test('code that marks before it acts is found: the effect never takes place', async () => {
  const marks: CrashEverywhereOptions<{ marks: Set<string>; sent: string[] }> = {
    setUp: () => ({ marks: new Set(), sent: [] }),
    async run({ outside }, { marks: seen, sent }) {
      if (seen.has('order-1')) return 'sent'
      await outside('mark', () => seen.add('order-1'))
      await outside('send', () => sent.push('order-1'))
      return 'sent'
    },
    check: ({ sent }) => assert.equal(sent.length, 1, `${sent.length} were sent`),
  }
  await expect(crashEverywhere(marks)).rejects.toThrow(/mark {2}dies before: held, dies after: BROKEN/)
})

test('an operation of two steps is taken up where it fell: each step has one effect, and the answer is one', async () => {
  const { cells } = await crashEverywhere<Shop>({
    setUp: shop,
    async run({ wrap, outside, clock }, { store, charges, asked }) {
      const once = createOnce({ store: wrap('store', store), scope: 'shop', clock })
      const effect = (name: string, key: string): number => {
        asked.push(name)
        if (!charges.has(key)) charges.set(key, charges.size + 1)
        return charges.get(key)!
      }
      const checkout = once.operation('checkout', {}, async (op) => {
        const charge = await op.step('charge', ({ key }) => outside('charge', () => effect('charge', key)))
        const parcel = await op.step('ship', ({ key }) => outside('ship', () => effect('ship', key)))
        return { charge, parcel }
      })
      return (await checkout.run('order-1', {})).value
    },
    check({ charges, asked }) {
      assert.equal(charges.size, 2, `there are ${charges.size} effects: ${asked.join(', ')}`)
      assert.ok(
        asked.lastIndexOf('charge') < asked.indexOf('ship'),
        `a step that was done ran again: ${asked.join(', ')}`,
      )
    },
  })
  expect(new Set(cells.map(({ name }) => name))).toContain('store.advance')
  expect(cells.filter(({ name }) => name === 'ship')).toHaveLength(4)
})

test('answers that differ are found without any check of the user', async () => {
  let count = 0
  const options = { ...charged, run: async () => ++count, check: () => {} }
  await expect(crashEverywhere(options)).rejects.toThrow(
    'without any crash already: asked twice, it answered 1 and then 2',
  )
})

describe('in a transaction of SQLite', () => {
  interface Ledger {
    readonly folder: string
    readonly store: SqliteStore
    rows(): number
  }

  function ledger(clock: ManualClock): Ledger {
    const folder = mkdtempSync(join(tmpdir(), 'onceonly-crash-'))
    const path = join(folder, 'shop.db')
    const database = new DatabaseSync(path)
    database.exec('PRAGMA journal_mode = WAL; CREATE TABLE charges (id TEXT)')
    database.close()
    const store = sqliteStore({ path, clock })
    const rows = (): number => {
      const reader = new DatabaseSync(path)
      const { count } = reader.prepare('SELECT count(*) AS count FROM charges').get() as { count: number }
      reader.close()
      return count
    }
    return { folder, store, rows }
  }

  test('effect and record fall together, wherever the process falls', async () => {
    const { cells } = await crashEverywhere<Ledger>({
      setUp: ledger,
      async run({ wrap, clock }, { store }) {
        const once = createOnce({ store: wrap('store', store), scope: 'shop', clock })
        const { value } = await once.transaction('order-1', (tx) => {
          tx.prepare('INSERT INTO charges VALUES (?)').run('order-1')
          return 'charged'
        })
        return value
      },
      check: (world) => assert.equal(world.rows(), 1),
      tearDown({ store, folder }) {
        store.close()
        rmSync(folder, { recursive: true })
      },
    })
    expect(cells.map(({ name, kind }) => `${name} ${kind}`)).toEqual(
      ['store.begin', 'store.begin.granted.commit'].flatMap((name) =>
        ['dies before', 'dies after', 'fails before', 'fails after'].map((kind) => `${name} ${kind}`),
      ),
    )
  })
})

test('options are checked at once, and code without a point is told so', async () => {
  await expect(crashEverywhere({ ...charged, kinds: ['explodes'] as never })).rejects.toThrow(
    'expected kinds to be a list of',
  )
  await expect(crashEverywhere({ ...charged, setup: shop } as never)).rejects.toThrow('did you mean "setUp"?')
  await expect(crashEverywhere({ ...charged, run: async () => 1, check: () => {} })).rejects.toThrow(
    'there is no point',
  )
})

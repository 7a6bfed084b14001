// Steps in a transaction whose result cannot be stored, on SQLite: a driver's result object is easily returned by mistake.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { FinalError } from '../../src/core/errors.ts'
import { createOnce } from '../../src/core/once.ts'
import type { Once } from '../../src/core/once.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import type { SqliteStore } from '../../src/stores/sqlite.ts'

let folder: string
let path: string
let store: SqliteStore
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'onceonly-operations-'))
  path = join(folder, 'shop.db')
  store = sqliteStore({ path })
})
afterEach(() => {
  store.close()
  rmSync(folder, { recursive: true, force: true })
})

function shop(): Once<SqliteStore> {
  return createOnce({ store, scope: 'shop' })
}

function rows(): string[] {
  const database = new DatabaseSync(path)
  const found = database.prepare('select name from rows').all()
  database.close()
  return found.map((row) => String(row['name']))
}

const write = 'create table if not exists rows (name text); insert into rows values'

test('a transaction whose result cannot be stored is rolled back, and mended code runs it once', async () => {
  const define = (result: unknown) =>
    shop().operation('checkout', {}, (op) =>
      op.transaction('order', (tx) => {
        tx.exec(`${write} ('order')`)
        return result
      }),
    )
  await expect(define(() => {}).run('1', {})).rejects.toMatchObject({ code: 'OUTCOME_NOT_STORED' })
  expect((await define('fine').run('1', {})).value).toBe('fine')
  expect(rows()).toEqual(['order'])
})

test('an undo in a transaction runs once, whatever it answers', async () => {
  const checkout = shop().operation('checkout', {}, async (op) => {
    await op.transaction('order', {
      run: (tx) => tx.exec(`${write} ('order')`),
      undo: (tx) => {
        tx.exec(`${write} ('undone')`)
        return () => 'what a driver answers'
      },
    })
    throw new FinalError('out of stock')
  })
  await expect(checkout.run('1', {})).rejects.toThrow('out of stock')
  expect(rows()).toEqual(['order', 'undone'])
  expect(await checkout.status('1')).toMatchObject({ state: 'failed', steps: [{ name: 'order', state: 'undone' }] })
})

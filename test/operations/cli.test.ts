// `onceonly operations` on SQLite: what is shown and hidden, and that cancel and resume take effect where the code is.

import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { createOnce } from '../../src/core/once.ts'
import type { Once } from '../../src/core/once.ts'
import type { Operation } from '../../src/core/operations.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import type { SqliteStore } from '../../src/stores/sqlite.ts'
import { makeFolder, onceonly } from '../cli/program.ts'
import type { Ended, TestFolder } from '../cli/program.ts'

let folder: TestFolder
let store: SqliteStore
let once: Once<SqliteStore>
let checkout: Operation<string, unknown>
let undone: string[]
const run = (...args: string[]): Promise<Ended> =>
  onceonly(['operations', ...args], { env: { ONCEONLY_STORE: `sqlite:${join(folder.path, 'shop.db')}` } })
const json = async (...args: string[]): Promise<Record<string, unknown>> =>
  JSON.parse((await run(...args, '--json')).out) as Record<string, unknown>

beforeEach(async () => {
  folder = makeFolder()
  store = sqliteStore({ path: join(folder.path, 'shop.db') })
  once = createOnce({ store, scope: 'shop' })
  undone = []
  checkout = once.operation('checkout', { keepMs: 5_000_000 }, async (op, how) => {
    await op.step('reserve', { run: () => 'card wxyz', undo: () => void undone.push('reserve') })
    if (how === 'fail') throw new Error('not today')
    if (how === 'doubt') {
      await op.step('charge', {
        inDoubt: 'park',
        run: () => {
          throw new Error('no answer')
        },
      })
    }
    return 'paid by card wxyz'
  })
  await checkout.run('completed', 'fine')
  await checkout.run('waiting', 'fail').catch(() => {})
  // Twice: the first attempt leaves the step in doubt, the second parks at it.
  for (let asked = 0; asked < 2; asked++) await checkout.run('parked', 'doubt').catch(() => {})
})
afterEach(async () => {
  await once.close()
  store.close()
  folder[Symbol.dispose]()
})

describe('list and show', () => {
  test('list shows what is not over, by state, page by page', async () => {
    const { out, code } = await run('list', 'shop', 'checkout')
    expect(code).toBe(0)
    expect(out).toMatch(/^parked +parked +2 +charge began +charge$/m)
    expect(out).toMatch(/^waiting +waiting +1 +reserve done +-$/m)
    expect(out).not.toContain('completed')
    const parked = await json('list', 'shop', 'checkout', '--state', 'parked')
    expect(parked).toMatchObject({ operations: [{ id: 'parked', inDoubt: ['charge'] }], next: null })
    const first = await json('list', 'shop', 'checkout', '--limit', '1')
    expect(first).toMatchObject({ operations: [{ id: 'parked' }], next: 'parked' })
    expect(await json('list', 'shop', 'checkout', '--after', 'parked')).toMatchObject({
      operations: [{ id: 'waiting', state: 'waiting' }],
      next: null,
    })
    const named = `--store sqlite:${join(folder.path, 'shop.db')}`
    expect((await run('list', 'shop', 'other')).out).toBe(
      `No unfinished operation of shop/operations/other. Finished ones are listed by: onceonly keys list --scope shop/operations/other ${named}\n`,
    )
    // There are others, so it must not say that there are none.
    expect((await run('list', 'shop', 'checkout', '--state', 'running')).out).toBe(
      'No running operation of shop/operations/checkout.\n',
    )
    expect((await run('list', 'shop', 'checkout', '--after', 'waiting')).out).toBe(
      'No unfinished operation of shop/operations/checkout after waiting.\n',
    )
  })

  test('show tells the steps, and what it came to only when asked to', async () => {
    const shown = await run('show', 'shop', 'checkout', 'completed')
    expect(shown.out).toMatch(/State +completed\n[^]*Steps\n {2}reserve: done, attempt 1/)
    expect(shown.out).not.toContain('wxyz')
    expect((await run('show', 'shop', 'checkout', 'completed', '--reveal')).out).toContain('paid by card wxyz')
    expect(await json('show', 'shop', 'checkout', 'waiting')).toMatchObject({
      state: 'waiting',
      lastError: 'not today',
      steps: [{ name: 'reserve', state: 'done' }],
    })
    expect((await run('show', 'shop', 'checkout', 'nobody')).code).toBe(3)
  })
})

describe('cancel and resume', () => {
  test('cancel is carried out by the next process that has the code', async () => {
    expect((await run('cancel', 'shop', 'checkout', 'waiting')).code).toBe(2)
    expect((await run('cancel', 'shop', 'checkout', 'waiting', '--reason', 'fraud')).code).toBe(0)
    expect(undone).toEqual([])
    await expect(checkout.run('waiting', 'fail')).rejects.toThrow('was cancelled: fraud')
    expect(undone).toEqual(['reserve'])
    const over = await run('cancel', 'shop', 'checkout', 'completed', '--reason', 'fraud')
    expect(over).toMatchObject({ code: 1, out: expect.stringContaining('it is completed: nothing was changed') })
  })

  test('resume lets a parked operation go on, and says what it cannot decide', async () => {
    const before = await store.show({ scope: checkout.scope, id: 'parked' })
    const { code, out } = await run('resume', 'shop', 'checkout', 'parked')
    expect(code).toBe(0)
    expect(out).toContain('it parks again at "charge", in doubt, unless your code decides')
    expect(await checkout.status('parked')).toMatchObject({ state: 'waiting', failures: 0, version: 1 })
    // Its retention is its own, not the program's.
    const after = await store.show({ scope: checkout.scope, id: 'parked' })
    expect(after!.expiresAtMs - after!.leaseUntilMs).toBe(before!.expiresAtMs - before!.leaseUntilMs)
    expect(await json('resume', 'shop', 'checkout', 'waiting')).toEqual({ id: 'waiting', changed: false })
  })
})

test('what is asked wrongly ends with 2', async () => {
  expect((await run('list', 'shop')).error).toContain('NAME is missing')
  expect((await run('dance')).code).toBe(2)
  expect((await run('--help')).out).toContain('Usage: onceonly operations list SCOPE NAME')
})

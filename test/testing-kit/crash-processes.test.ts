// Real processes, killed with SIGKILL at every call that leaves them: the kit finds what is wrong, and nothing where all is right.

import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { pathToFileURL } from 'node:url'
import { expect, test } from 'vitest'
import { crashProcesses } from '../../src/testing/crash-everywhere.ts'

const source = (path: string): string => pathToFileURL(join(import.meta.dirname, '../../src', path)).href

/** Charges into a file without any constraint: what is written twice is there twice. */
function script(folder: string, effect: string): string {
  const path = join(folder, 'script.mjs')
  writeFileSync(
    path,
    `import { DatabaseSync } from 'node:sqlite'
     import { createOnce } from '${source('core/once.ts')}'
     import { sqliteStore } from '${source('stores/sqlite.ts')}'
     import { crashPointsHere } from '${source('testing/crash-everywhere.ts')}'
     const { wrap, outside } = await crashPointsHere()
     const store = sqliteStore({ path: process.argv[2] })
     const once = createOnce({ store: wrap('store', store), scope: 'shop', leaseMs: 300 })
     ${effect}
     await once.close()
     await store.close()`,
  )
  return path
}

interface World {
  readonly folder: string
  readonly path: string
}

const world = {
  setUp(): World {
    const folder = mkdtempSync(join(tmpdir(), 'onceonly-crash-'))
    const path = join(folder, 'shop.db')
    const database = new DatabaseSync(path)
    database.exec('PRAGMA journal_mode = WAL; CREATE TABLE charges (id TEXT)')
    database.close()
    return { folder, path }
  },
  args: ({ path }: World) => [path],
  check({ path }: World): void {
    const database = new DatabaseSync(path)
    const { count } = database.prepare('SELECT count(*) AS count FROM charges').get() as { count: number }
    database.close()
    assert.equal(count, 1, `there are ${count} charges`)
  },
  tearDown: ({ folder }: World) => rmSync(folder, { recursive: true }),
}

async function withScript(effect: string, use: (path: string) => Promise<void>): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-crash-'))
  try {
    await use(script(folder, effect))
  } finally {
    rmSync(folder, { recursive: true })
  }
}

test('killed before and after every call, a transaction leaves one effect', async () => {
  const effect = `await once.transaction('order-1', (tx) => {
    tx.prepare('INSERT INTO charges VALUES (?)').run('order-1')
    return 'charged'
  })`
  await withScript(effect, async (path) => {
    const { text, cells } = await crashProcesses({ script: path, ...world })
    expect(cells.length, text).toBeGreaterThanOrEqual(4)
    expect(text).toMatch(/store\.begin {2}dies before: held, dies after: held/)
  })
})

test('an effect outside of the transaction is found: killed after it, it takes place twice', async () => {
  const effect = `await once.run('order-1', () => outside('charge', () => {
    const database = new DatabaseSync(process.argv[2])
    database.prepare('INSERT INTO charges VALUES (?)').run('order-1')
    database.close()
  }))`
  await withScript(effect, async (path) => {
    await expect(crashProcesses({ script: path, ...world })).rejects.toThrow(
      /charge {2}dies before: held, dies after: BROKEN/,
    )
  })
})

test('a script that fails by itself is told with what it said', async () => {
  await withScript(`throw new Error('no such thing')`, async (path) => {
    await expect(crashProcesses({ script: path, ...world, patienceMs: 1 })).rejects.toThrow('no such thing')
  })
})

test('options are checked at once', async () => {
  await expect(crashProcesses({ script: '' } as never)).rejects.toThrow('expected script to be a non-empty string')
})

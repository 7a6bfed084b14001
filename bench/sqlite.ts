// P5: SQLite with synchronous=FULL against one commit for each claim and each settle.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { newId } from '../src/core/key.ts'
import { createOnce } from '../src/core/once.ts'
import { sqliteStore } from '../src/stores/sqlite.ts'
import { compare } from './measure.ts'
import type { Variant } from './measure.ts'
import { report, reportRates } from './report.ts'

const outcome = { receipt: 'x'.repeat(280) }

export async function benchSqlite(): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-bench-'))
  const store = sqliteStore({ path: join(folder, 'ours.db') })
  const database = new DatabaseSync(join(folder, 'naive.db'))
  try {
    const once = createOnce({ store, scope: 'bench', sweepEveryMs: false })
    const ours: Variant = { name: 'onceonly', work: () => once.run(newId(), () => outcome, { fingerprint: 'bench' }) }
    const compared = await compare([naive(database), ours], { concurrency: 64, operations: 2_000 })
    report({ id: 'P5', what: 'SQLite FULL fresh, c=64: throughput', measured: compared.throughput, atLeast: 4 })
    reportRates(['one commit each', 'onceonly'], compared)
    await once.close()
  } finally {
    store.close()
    database.close()
    rmSync(folder, { recursive: true })
  }
}

function naive(database: DatabaseSync): Variant {
  database.exec(`pragma journal_mode = wal; pragma synchronous = full;
    create table naive (scope text, id text, state text, token text, fingerprint text, lease_until integer, outcome blob, primary key (scope, id))`)
  const claim = database.prepare(
    `insert into naive values ('bench', ?, 'running', ?, 'bench', 0, null) on conflict do nothing`,
  )
  const settle = database.prepare(
    `update naive set state = 'settled', outcome = ? where scope = 'bench' and id = ? and token = ?`,
  )
  return {
    name: 'one commit each',
    async work() {
      const [id, token] = [newId(), crypto.randomUUID()]
      claim.run(id, token)
      await Promise.resolve()
      settle.run(Buffer.from(JSON.stringify(outcome)), id, token)
    },
  }
}

// P5: SQLite with synchronous=FULL against one commit for each claim and each settle.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { newId } from '../src/core/key.ts'
import { createOnce } from '../src/core/once.ts'
import { sqliteStore } from '../src/stores/sqlite.ts'
import { compareAll, ratioIn } from './measure.ts'
import type { Variant } from './measure.ts'
import { report, reportComparison } from './report.ts'
import { noteVersion } from './server-calls.ts'

const outcome = { receipt: 'x'.repeat(280) }

export async function benchSqlite(): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-bench-'))
  const path = join(folder, 'ours.db')
  const store = sqliteStore({ path })
  const [database, looking] = [new DatabaseSync(join(folder, 'naive.db')), new DatabaseSync(path, { readOnly: true })]
  noteVersion(`SQLite ${process.versions['sqlite']}`)
  try {
    const once = createOnce({ store, scope: 'bench', sweepEveryMs: false })
    const work: Variant['work'] = () => once.run(newId(), () => outcome, { fingerprint: 'bench' })
    const variants = [naive(database), { name: 'onceonly', work, ...counted(looking, 'onceonly') }]
    const title = 'SQLite FULL fresh, c=64'
    const compared = await compareAll(variants, { concurrency: 64, operations: 4_000, rounds: 7 })
    const ratio = ratioIn(compared, 'perSecond', 'onceonly', 'one commit each')
    report({ id: 'P5', what: `${title}: throughput against one commit each`, ...ratio, atLeast: 6 })
    reportComparison(title, compared)
    // Nothing can be shared when there is one at a time: shown, and nothing is aimed at.
    const alone = await compareAll(variants, { concurrency: 1, operations: 300 })
    const p50 = ratioIn(alone, 'p50Ms', 'onceonly', 'one commit each')
    report({ id: 'P5', what: 'SQLite FULL fresh, c=1: p50 against one commit each', ...p50 })
    reportComparison('SQLite FULL fresh, c=1', alone)
    await once.close()
  } finally {
    store.close()
    database.close()
    looking.close()
    rmSync(folder, { recursive: true })
  }
}

/** The file itself says how many entries a round has settled. */
function counted(database: DatabaseSync, table: string): Pick<Variant, 'prepare' | 'verify'> {
  const settled = (): number =>
    (database.prepare(`select count(*) as many from ${table} where state like 's%'`).get() as { many: number }).many
  let before = 0
  return {
    prepare: async () => void (before = settled()),
    async verify(operations) {
      const did = settled() - before
      if (did !== operations) throw new Error(`${table}: ${did} entries were settled instead of ${operations}`)
    },
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
    ...counted(database, 'naive'),
    async work() {
      const [id, token] = [newId(), crypto.randomUUID()]
      claim.run(id, token)
      await Promise.resolve()
      settle.run(Buffer.from(JSON.stringify(outcome)), id, token)
    },
  }
}

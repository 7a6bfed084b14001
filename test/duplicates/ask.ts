// One of several processes: asks 500 times at once for the same effect, and says what it was told. The ledger has no unique
// constraint: an effect that runs twice is two rows.

import { appendFileSync } from 'node:fs'
import pg from 'pg'
import { createOnce } from '../../src/core/once.ts'
import type { Store } from '../../src/core/store.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'

const [kind, where, ledger] = process.argv.slice(2) as [string, string, string]

const pool = kind === 'postgres' ? new pg.Pool({ connectionString: where }) : undefined
const store: Store & { close?(): void } = pool ? postgresStore({ pool }) : sqliteStore({ path: where })
const once = createOnce({ store, scope: 'payments', waitMs: 60_000, storeTimeoutMs: 60_000 })

async function effect(): Promise<string> {
  appendFileSync(ledger, `charged by ${process.pid}\n`)
  await new Promise((resolve) => setTimeout(resolve, 50))
  return 'charged'
}

async function ask(): Promise<void> {
  const results = await Promise.all(Array.from({ length: 500 }, () => once.run('42', effect, { fingerprint: 500 })))
  const told = {
    ran: results.filter(({ replayed }) => !replayed).length,
    values: [...new Set(results.map(({ value }) => value))],
  }
  process.stdout.write(JSON.stringify(told))
  await once.close()
  await pool?.end()
  store.close?.()
  process.stdin.destroy()
}

process.stdin.once('data', () => void ask())
process.stdout.write('ready\n')

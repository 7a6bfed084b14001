// Shows a payment that survives a lost response and a killed process, on SQLite in a temporary folder. Everything it prints
// is read from the ledger, which knows nothing of onceonly.

import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { DatabaseSync } from 'node:sqlite'
import { parseArgs } from 'node:util'
import { createOnce } from '../core/once.ts'
import { sqliteStore } from '../stores/sqlite.ts'

const help = `onceonly demo: a payment that survives a lost response and a killed process

Usage: onceonly demo

It needs nothing but a temporary folder, and removes it at the end.
`

export async function demo(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: { help: { type: 'boolean', short: 'h' } },
  })
  if (values.help) {
    console.log(help)
    return 0
  }
  // How the demo starts itself as the process that is going to be killed.
  if (positionals[0] === 'attempt') {
    await attempt(positionals[1]!, positionals[2] === 'killed')
    return 0
  }
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-demo-'))
  try {
    return await tell(join(folder, 'demo.db'))
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

async function tell(path: string): Promise<number> {
  console.log('A customer pays for order 42. The charge and its record are one transaction on SQLite.\n')
  spawnSync(process.execPath, [process.argv[1]!, 'demo', 'attempt', path, 'killed'], { stdio: 'inherit' })
  await show(path, 'The process was killed (kill -9) after the charge was written, before the commit.')
  spawnSync(process.execPath, [process.argv[1]!, 'demo', 'attempt', path], { stdio: 'inherit' })
  await show(path, 'The client asks again with the same key: the charge is made. Its response is lost on the way.')
  const { replayed } = await attempt(path, false)
  await show(path, `The client asks once more: it is told the stored answer (replayed: ${replayed}).`)
  const charges = await countCharges(path)
  console.log(`Three requests, ${charges} charge.`)
  return charges === 1 && replayed ? 0 : 1
}

async function attempt(path: string, dies: boolean): Promise<{ replayed: boolean }> {
  const store = sqliteStore({ path })
  const once = createOnce({ store, scope: 'payments' })
  const { replayed } = await once.transaction(
    'order-42',
    (tx) => {
      charge(tx as DatabaseSync)
      if (dies) process.kill(process.pid, 'SIGKILL')
      return { charged: 500 }
    },
    { fingerprint: { order: 42, amount: 500 } },
  )
  await once.close()
  store.close()
  return { replayed }
}

function charge(tx: DatabaseSync): void {
  tx.exec('create table if not exists charges (cents integer not null)')
  tx.exec('insert into charges values (500)')
}

async function countCharges(path: string): Promise<number> {
  const { DatabaseSync } = await import('node:sqlite')
  const database = new DatabaseSync(path)
  const exists = database.prepare("select 1 from sqlite_schema where name = 'charges'").get()
  const count = exists ? database.prepare('select count(*) as count from charges').get()!['count'] : 0
  database.close()
  return Number(count)
}

async function show(path: string, what: string): Promise<void> {
  console.log(`  ${what}\n  charges in the ledger: ${await countCharges(path)}\n`)
}

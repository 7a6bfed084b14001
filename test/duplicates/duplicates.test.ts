// A thousand duplicates at once, from two processes: one effect. The ledger is a file that knows nothing of onceonly.

import { spawn } from 'node:child_process'
import { once as event } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import pg from 'pg'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { postgresStore } from '../../src/stores/postgres.ts'
import { needs } from '../servers/needs.ts'
import { startPostgres } from '../servers/postgres.ts'

let folder: string
beforeEach(() => void (folder = mkdtempSync(join(tmpdir(), 'onceonly-duplicates-'))))
afterEach(() => rmSync(folder, { recursive: true }))

interface Told {
  readonly ran: number
  readonly values: readonly string[]
}

/** Two processes, both ready before either asks. */
async function askFromTwoProcesses(kind: string, where: string, ledger: string): Promise<readonly Told[]> {
  const children = Array.from({ length: 2 }, () =>
    spawn(process.execPath, [join(import.meta.dirname, 'ask.ts'), kind, where, ledger], {
      stdio: ['pipe', 'pipe', 'inherit'],
    }),
  )
  await Promise.all(children.map((child) => event(child.stdout, 'readable')))
  for (const child of children) child.stdin.write('go\n')
  const outputs = await Promise.all(children.map((child) => text(child.stdout)))
  return outputs.map((output) => JSON.parse(output.replace('ready\n', '')) as Told)
}

async function expectOneEffect(kind: string, where: string): Promise<void> {
  const ledger = join(folder, 'ledger')
  const told = await askFromTwoProcesses(kind, where, ledger)
  expect(told.map(({ values }) => values)).toEqual([['charged'], ['charged']])
  expect(told[0]!.ran + told[1]!.ran).toBe(1)
  expect(existsSync(ledger) && readFileSync(ledger, 'utf8').trim().split('\n')).toHaveLength(1)
}

describe('sqlite', () => {
  test('1,000 concurrent duplicates from two processes are one effect', () =>
    expectOneEffect('sqlite', join(folder, 'once.db')))
})

needs('postgres').describe('postgres', () => {
  test('1,000 concurrent duplicates from two processes are one effect', async () => {
    await using server = await startPostgres()
    const url = await server.createDatabase()
    const pool = new pg.Pool({ connectionString: url })
    await postgresStore({ pool }).migrate()
    await pool.end()
    await expectOneEffect('postgres', url)
  })
})

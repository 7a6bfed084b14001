// P11: an operation with one step against a DBOS workflow with one step, on the same PostgreSQL with as many connections each.
// Every one has a new id, a step that does nothing, and a result of 300 bytes; both are durable when they answer.

import pg from 'pg'
import { newId } from '../src/core/key.ts'
import { createOnce } from '../src/core/once.ts'
import { postgresStore } from '../src/stores/postgres.ts'
import { compareAll, ratioIn } from './measure.ts'
import type { Variant } from './measure.ts'
import { installPeers } from './peers.ts'
import { report, reportComparison } from './report.ts'
import { startPostgres } from './servers.ts'

const connections = 20
const result = { receipt: 'x'.repeat(280) }

/** What is used of @dbos-inc/dbos-sdk, which is not there to take types from unless bench/ is installed. */
interface Dbos {
  setConfig(config: object): void
  registerWorkflow<T>(run: () => Promise<T>, options: { name: string }): () => Promise<T>
  runStep<T>(run: () => Promise<T>, options: { name: string }): Promise<T>
  withNextWorkflowID<T>(id: string, run: () => Promise<T>): Promise<T>
  launch(): Promise<void>
  shutdown(): Promise<void>
}

interface Side extends Variant {
  close(): Promise<void>
}

export async function benchOperations(): Promise<void> {
  if (installPeers() === 'missing') return
  const server = await startPostgres()
  const sides: Side[] = []
  try {
    const dbos = await workflows(await server.createDatabase())
    sides.push(dbos)
    const ours = await operations(await server.createDatabase())
    sides.push(ours)
    const title = 'Operation with one step, c=64'
    const compared = await compareAll([dbos, ours], { concurrency: 64, operations: 1_500, rounds: 7 })
    const ratio = ratioIn(compared, 'perSecond', 'onceonly', 'dbos')
    report({ id: 'P11', what: `${title}: throughput against DBOS`, ...ratio, atLeast: 15 })
    reportComparison(title, compared)
    // Nothing can be shared when there is one at a time: shown, and nothing is aimed at.
    const alone = await compareAll([dbos, ours], { concurrency: 1, operations: 150 })
    const p50 = ratioIn(alone, 'p50Ms', 'onceonly', 'dbos')
    report({ id: 'P11', what: 'Operation with one step, c=1: p50 against DBOS', ...p50 })
    reportComparison('Operation with one step, c=1', alone)
  } finally {
    for (const side of sides) await side.close()
    await server.stop()
  }
}

async function operations(url: string): Promise<Side> {
  const pool = new pg.Pool({ connectionString: url, max: connections })
  const store = postgresStore({ pool })
  await store.migrate()
  const once = createOnce({ store, scope: 'bench', sweepEveryMs: false })
  const operation = once.operation('bench', {}, (op, _input: null) => op.step('step', () => result))
  return {
    name: 'onceonly',
    work: () => operation.run(newId(), null),
    async close() {
      await once.close()
      await pool.end()
    },
  }
}

async function workflows(url: string): Promise<Side> {
  const load = async (name: string): Promise<{ DBOS: Dbos }> => (await import(name)) as { DBOS: Dbos }
  const { DBOS } = await load('@dbos-inc/dbos-sdk')
  DBOS.setConfig({
    name: 'bench',
    systemDatabaseUrl: url,
    systemDatabasePoolSize: connections,
    logLevel: 'error',
    enableOTLP: false,
  })
  const workflow = DBOS.registerWorkflow(async () => DBOS.runStep(async () => result, { name: 'step' }), {
    name: 'bench',
  })
  await DBOS.launch()
  return {
    name: 'dbos',
    work: () => DBOS.withNextWorkflowID(newId(), () => workflow()),
    close: () => DBOS.shutdown(),
  }
}

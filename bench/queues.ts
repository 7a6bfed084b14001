// The queues on PostgreSQL that are measured beside the outbox and the inbox: graphile-worker in its batched mode, and the fetch loop
// of pg-boss. Both are given the same rows, and do the same work with each.

import pg from 'pg'
import type { Drained } from './measure.ts'

export const connections = 20

/** What is filled and drained, and closed at the end. */
export interface Queue extends Drained {
  close(): Promise<void>
}

export interface QueueOptions {
  readonly rows: number
  readonly data: object
  /** What each job, or each batch of them, writes. Nothing unless given. */
  work?(client: Pick<pg.Pool, 'query'>, ids: readonly string[]): Promise<unknown>
}

/** What is used of graphile-worker, which is not there to take types from unless bench/ is installed. */
interface GraphileWorker {
  readonly Logger: new (factory: () => () => void) => object
  run(options: object): Promise<{ stop(): Promise<void> }>
  runMigrations(options: object): Promise<void>
}

export async function graphileWorker(url: string, { rows, data, work }: QueueOptions): Promise<Queue> {
  const load = async (name: string): Promise<GraphileWorker> => (await import(name)) as GraphileWorker
  const { Logger, run, runMigrations } = await load('graphile-worker')
  const quiet = new Logger(() => () => {})
  const pool = new pg.Pool({ connectionString: url, max: connections })
  // It says so on the console otherwise.
  pool.on('error', () => {})
  pool.on('connect', (client) => void client.on('error', () => {}))
  await runMigrations({ pgPool: pool, logger: quiet })
  return {
    name: 'graphile-worker',
    rows,
    async fill(count) {
      const sql = `select graphile_worker.add_jobs(array_agg(('send', $2::json, null, now(), 25, null, 0::smallint, null)::graphile_worker.job_spec))
        from generate_series(1, $1::int)`
      await pool.query(sql, [count, JSON.stringify(data)])
    },
    async drain(count) {
      let ran = 0
      const done = Promise.withResolvers<void>()
      const send = async (_payload: unknown, { job }: { readonly job: { readonly id: string } }): Promise<void> => {
        await work?.(pool, [job.id])
        if (++ran === count) done.resolve()
      }
      const worker = {
        concurrentJobs: 24,
        pollInterval: 100,
        localQueue: { size: 500 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      }
      const runner = await run({
        pgPool: pool,
        taskList: { send },
        noHandleSignals: true,
        logger: quiet,
        preset: { worker },
      })
      await done.promise
      await runner.stop()
    },
    close: () => pool.end(),
  }
}

/** What is used of pg-boss. */
interface Boss {
  start(): Promise<unknown>
  stop(options: object): Promise<void>
  createQueue(name: string): Promise<void>
  insert(name: string, jobs: readonly object[]): Promise<unknown>
  fetch(name: string, options: object): Promise<readonly { readonly id: string }[]>
  complete(name: string, ids: readonly string[]): Promise<unknown>
  on(event: 'error', listener: () => void): unknown
}

export async function pgBoss(
  url: string,
  { rows, data, batch, work }: QueueOptions & { readonly batch: number },
): Promise<Queue> {
  const load = async (name: string): Promise<{ PgBoss: new (options: object) => Boss }> =>
    (await import(name)) as { PgBoss: new (options: object) => Boss }
  const { PgBoss } = await load('pg-boss')
  const boss = new PgBoss({ connectionString: url, max: connections, supervise: false, schedule: false })
  const pool = new pg.Pool({ connectionString: url, max: 1 })
  boss.on('error', () => {})
  await boss.start()
  await boss.createQueue('send')
  return {
    name: 'pg-boss',
    rows,
    async fill(count) {
      for (let left = count; left > 0; left -= 1_000) {
        await boss.insert(
          'send',
          Array.from({ length: Math.min(left, 1_000) }, () => ({ data })),
        )
      }
    },
    async drain(count) {
      for (let sent = 0; sent < count;) {
        const ids = (await boss.fetch('send', { batchSize: batch })).map(({ id }) => id)
        await work?.(pool, ids)
        await boss.complete('send', ids)
        sent += ids.length
      }
    },
    async close() {
      await boss.stop({ graceful: false })
      await pool.end()
    },
  }
}

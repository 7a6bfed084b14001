// The receiver of webhooks on every SQL server. SQLite and memory are in src/webhooks/receiver.test.ts.
import { spawn } from 'node:child_process'
import { once as onceEmitted } from 'node:events'
import { join } from 'node:path'
import { expect } from 'vitest'
import { createOnce } from '../../src/index.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import { createWebhookReceiver } from '../../src/webhooks.ts'
import { eventually } from '../messages/eventually.ts'
import { grounds } from '../messages/grounds.ts'
import { needs } from '../servers/needs.ts'
import { startPostgres } from '../servers/postgres.ts'
import { createPool } from '../subjects/postgres.ts'
import { receiverCases, serverCases, testReceiver } from './receiver-cases.ts'
import { scheme } from './signed.ts'

for (const { name, server, start } of grounds) {
  if (server === undefined) continue
  needs(server, { ours: true }).describe(`webhooks on ${name}`, () => {
    testReceiver(start, { ...receiverCases, ...serverCases })
  })
}

needs('postgres', { ours: true }).test(
  'what a process had queued when it was killed is handled by a worker of another one',
  async () => {
    const server = await startPostgres()
    const url = await server.createDatabase()
    const pool = createPool(url)
    const once = createOnce({ store: postgresStore({ pool }), scope: 'killed', leaseMs: 1_000, sweepEveryMs: false })
    try {
      await once.store.migrate()
      await pool.query('create table effects (name text not null)')
      const receiver = createWebhookReceiver(
        once,
        { consumer: 'shop', scheme, acknowledge: 'when-queued' },
        (tx, { id }) => tx.query('insert into effects values ($1)', [id]),
      )
      await receiver.migrate()
      const child = spawn(process.execPath, [join(import.meta.dirname, 'killed-receiver.ts'), url], {
        stdio: ['ignore', 'pipe', 'inherit'],
      })
      let said = ''
      child.stdout.setEncoding('utf8').on('data', (text: string) => (said += text))
      expect(await onceEmitted(child, 'exit')).toEqual([null, 'SIGKILL'])
      expect(said).toBe('202')
      const effects = async (): Promise<string[]> =>
        (await pool.query<{ name: string }>('select name from effects')).rows.map(({ name }) => name)
      expect(await effects()).toEqual([])
      const worker = receiver.work({ everyMs: 50 })
      await eventually('the effect', async () => (await effects()).length > 0)
      await worker.stop()
      expect(await effects()).toEqual(['e1'])
    } finally {
      await once.close()
      await pool.end()
      await server.stop()
    }
  },
)

// A process that answers one webhook when it is queued, and is killed in its handler: after the sender was told that the event is ours.
import pg from 'pg'
import { createOnce } from '../../src/index.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import { createWebhookReceiver } from '../../src/webhooks.ts'
import { scheme, sent } from './signed.ts'

const pool = new pg.Pool({ connectionString: process.argv[2]! })
const once = createOnce({ store: postgresStore({ pool }), scope: 'killed', leaseMs: 1_000, sweepEveryMs: false })
const answered = Promise.withResolvers<void>()
const options = { consumer: 'shop', scheme, acknowledge: 'when-queued' } as const
const receiver = createWebhookReceiver(once, options, async (tx, { id }) => {
  await tx.query('insert into effects values ($1)', [id])
  await answered.promise
  process.kill(process.pid, 'SIGKILL')
})
const { status } = await receiver.respond(sent('e1'))
process.stdout.write(String(status), () => answered.resolve())

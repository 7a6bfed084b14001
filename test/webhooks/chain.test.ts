// Outbox, sender, a proxy that loses answers, receiver, with senders and receivers killed again and again: every committed event has one
// effect, and one that was rolled back none. The ledger is a table without a constraint. ONCEONLY_LONG=1 kills ten times as often.
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import pg from 'pg'
import { expect, test } from 'vitest'
import { createOnce } from '../../src/core/once.ts'
import { createOutbox } from '../../src/messages/outbox.ts'
import { createInbox } from '../../src/messages/inbox.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import { createWebhookSender, newWebhookSecret } from '../../src/webhooks.ts'
import { isLong, tellRun } from '../long-run.ts'
import { freePort } from '../servers/free-port.ts'
import { needs } from '../servers/needs.ts'
import { pollUntil } from '../servers/poll.ts'
import { startPostgres } from '../servers/postgres.ts'
import { startDroppingProxy } from './chain/dropping-proxy.ts'
import type { ChainRole } from './chain/process.ts'

const kills = isLong ? 200 : 20
const topics = ['acme', 'globex', 'initech']
// A machine that is busy with other work must not look like a chain that is broken.
const patience = { timeoutMs: 300_000, intervalMs: 50 }

/** Ends of processes that nobody asked for. */
const unexpected: string[] = []

interface Kept {
  kill(): Promise<void>
  end(): Promise<void>
}

/**
 * A process that is started again when it was killed. A receiver may also end by itself, when another test has its port for a moment: the
 * others end only as they are told to.
 */
function keepRunning(role: ChainRole, args: readonly string[]): Kept {
  let isWanted = true
  const launch = (): ChildProcess => {
    const program = join(import.meta.dirname, 'chain', 'process.ts')
    const launched = fork(program, [role, ...args], { execArgv: [], stdio: ['inherit', 'inherit', 'pipe', 'ipc'] })
    let said = ''
    launched.stderr!.on('data', (chunk: Buffer) => (said += String(chunk)))
    launched.once('close', (code, signal) => {
      if (signal !== 'SIGKILL' && !said.includes('EADDRINUSE')) unexpected.push(`${role} ended with ${code}: ${said}`)
    })
    launched.once('exit', () => {
      if (isWanted) child = launch()
    })
    return launched
  }
  let child = launch()
  const kill = async (): Promise<void> => {
    const ended = once(child, 'exit')
    child.kill('SIGKILL')
    await ended
  }
  return {
    kill,
    end() {
      isWanted = false
      return kill()
    },
  }
}

needs('postgres', { ours: true }).describe('outbox, webhook sender, webhook receiver', () => {
  test('every committed event has one effect, whoever is killed and whichever answer is lost', async () => {
    await using postgres = await startPostgres()
    const [shop, customer] = [await postgres.createDatabase(), await postgres.createDatabase()]
    const ours = new pg.Pool({ connectionString: shop, max: 4 })
    const theirs = new pg.Pool({ connectionString: customer, max: 4 })
    const store = postgresStore({ pool: ours })
    const outbox = createOutbox<pg.PoolClient>({ store, source: 'chain', shards: 2 })
    const webhooks = createWebhookSender({ store, allow: ['127.0.0.1'] })
    await store.migrate()
    await outbox.migrate()
    await webhooks.migrate()
    const receiving = postgresStore({ pool: theirs })
    await receiving.migrate()
    await createInbox(createOnce({ store: receiving, scope: 'customer', sweepEveryMs: false }), {
      consumer: 'ledger',
    }).migrate()
    await theirs.query('create table ledger (id text); create table arrivals (id text)')

    const port = await freePort()
    await using proxy = await startDroppingProxy(port)
    const secret = newWebhookSecret()
    for (const topic of topics) await webhooks.endpoints.add({ topic, url: `http://127.0.0.1:${proxy.port}/`, secret })
    const senders = [keepRunning('sender', [shop]), keepRunning('sender', [shop])]
    const receiver = keepRunning('receiver', [customer, String(port), secret])

    const committed: string[] = []
    const aborted: string[] = []
    const add = async (end: 'commit' | 'rollback'): Promise<void> => {
      const client = await ours.connect()
      await client.query('begin')
      const events = Array.from({ length: 12 }, (_, n) => ({
        topic: topics[n % topics.length]!,
        key: `order-${n % 4}`,
        type: 'order.placed',
        data: n,
      }))
      const ids = await outbox.add(client, events)
      await client.query(end)
      client.release()
      ;(end === 'commit' ? committed : aborted).push(...ids)
    }
    const count = async (table: string): Promise<number> =>
      Number((await theirs.query<{ count: string }>(`select count(*) from ${table}`)).rows[0]!.count)
    try {
      for (let killed = 0; killed < kills; killed++) {
        const before = await count('arrivals')
        await add('rollback')
        await add('commit')
        // In the middle of it, and never before anything has happened.
        await pollUntil('webhooks to arrive', async () => (await count('arrivals')) > before + (killed % 5), patience)
        await (killed % 2 === 0 ? receiver : senders[killed % 4 === 1 ? 0 : 1]!).kill()
      }
      const delivered = async (): Promise<boolean> => {
        const { rows } = await ours.query<{ count: string }>(
          `select count(*) from onceonly_webhooks_deliveries where state = 'delivered'`,
        )
        return Number(rows[0]!.count) === committed.length
      }
      await pollUntil('every delivery to be confirmed', delivered, patience)
    } finally {
      await Promise.all([...senders, receiver].map((each) => each.end()))
    }
    const { rows } = await theirs.query<{ id: string }>('select id from ledger')
    expect(rows.map(({ id }) => id).toSorted()).toEqual(committed.toSorted())
    expect(aborted).toHaveLength(committed.length)
    expect(unexpected).toEqual([])
    // A run without these proves nothing: an answer that was lost made the event come again.
    expect(proxy.dropped()).toBeGreaterThan(kills)
    expect(await count('arrivals')).toBeGreaterThan(committed.length + kills)
    tellRun(
      'webhooks',
      `${committed.length} events, ${kills} kills, ${proxy.dropped()} answers lost, ${await count('arrivals')} arrivals`,
    )
    await ours.end()
    await theirs.end()
  }, 1_800_000)
})

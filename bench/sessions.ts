// P13: what a million requests of a hundred clients leave behind. Rows are counted by the servers themselves: fields of hashes in Redis,
// rows of the table in PostgreSQL (with fewer requests, as its commits are durable). Every client has four requests in flight.

import pg from 'pg'
import { createSessions } from '../src/sessions/sessions.ts'
import type { Sessions } from '../src/sessions/sessions.ts'
import { postgresStore } from '../src/stores/postgres.ts'
import { redisStore } from '../src/stores/redis.ts'
import { connect } from '../test/subjects/redis.ts'
import { size } from './plan.ts'
import { report } from './report.ts'
import { startPostgres, startRedis } from './servers.ts'

const clientCount = 100
const window = 64
const inFlight = 4

export async function benchSessions(): Promise<void> {
  await onRedis(size(1_000_000, 100_000))
  await onPostgres(size(20_000, 4_000))
}

async function onRedis(requests: number): Promise<void> {
  const server = await startRedis({ config: { appendonly: 'yes', appendfsync: 'everysec' } })
  const { client, send, close } = await connect('node-redis', server.url)
  try {
    const sessions = createSessions({ store: redisStore({ client }), scope: 'bench', window })
    const perSecond = await sendAll(sessions as Sessions, requests)
    let rows = 0
    for (const name of (await send('KEYS', 'onceonly:session:*')) as string[]) {
      const fields = (await send('HKEYS', name)) as string[]
      rows += fields.filter((field) => /^r\d+$/.test(field)).length
    }
    tell({ where: 'Redis', requests, rows, perSecond })
  } finally {
    await close()
    await server.stop()
  }
}

async function onPostgres(requests: number): Promise<void> {
  const server = await startPostgres()
  const pool = new pg.Pool({ connectionString: await server.createDatabase(), max: 20 })
  try {
    const store = postgresStore({ pool })
    await store.migrate()
    const sessions = createSessions({ store, scope: 'bench', window })
    await sessions.migrate()
    const perSecond = await sendAll(sessions as Sessions, requests)
    const counted = await pool.query<{ count: number }>('select count(*)::int as count from onceonly_session_requests')
    tell({ where: 'PostgreSQL', requests, rows: counted.rows[0]!.count, perSecond })
  } finally {
    await pool.end()
    await server.stop()
  }
}

/** Requests per second. Each client sends a few at once, and acknowledges what it has all answers of. */
async function sendAll(sessions: Sessions, requests: number): Promise<number> {
  const beganMs = performance.now()
  const each = requests / clientCount
  const client = async (_value: unknown, number: number): Promise<void> => {
    const session = await sessions.register(`client-${number}`)
    for (let acknowledged = 0; acknowledged < each; acknowledged += inFlight) {
      const numbers = Array.from({ length: inFlight }, (_each, index) => acknowledged + 1 + index)
      await Promise.all(
        numbers.map((sequence) =>
          sessions.apply({ ...session, sequence, acknowledged, fingerprint: sequence }, () => ({ sequence })),
        ),
      )
    }
  }
  await Promise.all(Array.from({ length: clientCount }, client))
  return requests / ((performance.now() - beganMs) / 1_000)
}

interface Left {
  readonly where: string
  readonly requests: number
  readonly rows: number
  readonly perSecond: number
}

function tell({ where, requests, rows, perSecond }: Left): void {
  const what = `Rows that ${requests.toLocaleString('en')} requests of ${clientCount} clients leave on ${where}`
  report({ id: 'P13', what, measured: rows, atMost: clientCount * window, unit: 'rows' })
  process.stdout.write(`      ${perSecond.toFixed(0)} requests/s\n`)
}

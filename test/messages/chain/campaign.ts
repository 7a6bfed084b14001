// The chain under fire: transactions add events to an outbox, relays publish them, consumers write them to a ledger through an inbox,
// while relays, consumers and the broker are killed. The ledger has no constraint, and is only inserted into: it is the judge.
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { createInbox } from '../../../src/messages/inbox.ts'
import { createOnce } from '../../../src/core/once.ts'
import { createOutbox, type Outbox } from '../../../src/messages/outbox.ts'
import { postgresStore } from '../../../src/stores/postgres.ts'
import { pollUntil } from '../../servers/poll.ts'
import { startPostgres } from '../../servers/postgres.ts'
import { type Started, topic } from './broker.ts'
import { type BrokerName, brokers } from './brokers.ts'
import { consumerPoints, type Order, type Point, relayPoints, type Role } from './process.ts'

export interface ChainReport {
  readonly kills: { relay: number; consumer: number; broker: number }
  // Events whose transaction committed, by key, in the order of commits.
  readonly committed: ReadonlyMap<string, readonly string[]>
  readonly aborted: readonly string[]
  // Effects by key, in the order in which they were written.
  readonly effects: ReadonlyMap<string, readonly string[]>
  // Messages that a relay began to publish more often than once, and that came to a consumer more often than once.
  readonly publishedAgain: number
  readonly deliveredAgain: number
  // How long there was killing, and how long all of it took.
  readonly killedMs: number
  readonly tookMs: number
}

const keys = Array.from({ length: 8 }, (_, n) => `customer ${n}`)
// Events that are under way at once, at the most: a queue that is never empty, and soon empty at the end.
const backlogMax = 200
// One in ten hits the broker, as it takes as long to come back as all the others together.
const killsOf = (total: number): ChainReport['kills'] => ({
  relay: total * 0.45,
  consumer: total * 0.45,
  broker: total * 0.1,
})

export async function runChain(broker: BrokerName, killsTotal: number): Promise<ChainReport> {
  const beganMs = performance.now()
  await using postgres = await startPostgres()
  const database = await postgres.createDatabase()
  const pool = new pg.Pool({ connectionString: database, max: keys.length + 2 })
  await using started = await (await brokers[broker].load()).start()
  try {
    const outbox = await createTables(pool)
    const report = await underFire({ pool, outbox, broker, started, database }, killsOf(killsTotal))
    return { ...report, tookMs: performance.now() - beganMs }
  } finally {
    await pool.end()
  }
}

async function createTables(pool: pg.Pool): Promise<Outbox<pg.PoolClient>> {
  const store = postgresStore({ pool })
  await store.migrate()
  const outbox = createOutbox<pg.PoolClient>({ store, source: 'chain', shards: 4 })
  await outbox.migrate()
  const settled = createOnce({ store, scope: 'chain', sweepEveryMs: false })
  await createInbox(settled, { consumer: 'ledger' }).migrate()
  await pool.query(`
    create table ledger (n bigserial, id text, key text, seq int);
    create table published (id text);
    create table delivered (id text)`)
  return outbox
}

interface Battlefield {
  readonly pool: pg.Pool
  readonly outbox: Outbox<pg.PoolClient>
  readonly broker: BrokerName
  readonly started: Started
  readonly database: string
}

async function underFire(field: Battlefield, kills: ChainReport['kills']): Promise<Omit<ChainReport, 'tookMs'>> {
  const beganMs = performance.now()
  const writing = startWriting(field)
  const relays = [0, 1].map((number) => keepRunning(field, 'relay', `relay-${number}`))
  const consumers = Array.from({ length: brokers[field.broker].consumers }, (_, number) =>
    keepRunning(field, 'consumer', `consumer-${number}`),
  )
  try {
    await Promise.all([
      killAll(relays, relayPoints, kills.relay),
      killAll(consumers, consumerPoints, kills.consumer),
      strikeBroker(field, kills.broker),
    ])
    const killedMs = performance.now() - beganMs
    const { committed, aborted } = await writing.end()
    await pollUntil(
      'every event to have its effect',
      async () => {
        return (await count(field.pool, 'select count(distinct id) from ledger')) >= committed.size
      },
      patience,
    )
    await Promise.all([...relays, ...consumers].map((each) => each.stop()))
    return { kills, aborted, killedMs, ...(await judged(field.pool, committed)) }
  } finally {
    await writing.end()
    for (const each of [...relays, ...consumers]) each.kill()
  }
}

async function count(pool: pg.Pool, question: string): Promise<number> {
  const { rows } = await pool.query<{ count: string }>(question)
  return Number(rows[0]!.count)
}

async function judged(
  pool: pg.Pool,
  committed: ReadonlyMap<string, { key: string }>,
): Promise<Pick<ChainReport, 'committed' | 'effects' | 'publishedAgain' | 'deliveredAgain'>> {
  const { rows } = await pool.query<{ id: string; key: string }>('select id, key from ledger order by n')
  const again = (table: string): Promise<number> =>
    count(pool, `select count(*) from (select id from ${table} group by id having count(*) > 1) twice`)
  return {
    committed: byKey(Array.from(committed, ([id, { key }]) => ({ id, key }))),
    effects: byKey(rows),
    publishedAgain: await again('published'),
    deliveredAgain: await again('delivered'),
  }
}

function byKey(rows: readonly { id: string; key: string }[]): Map<string, string[]> {
  const found = new Map<string, string[]>(keys.map((key) => [key, []]))
  for (const { id, key } of rows) found.get(key)!.push(id)
  return found
}

interface Writing {
  end(): Promise<{ committed: ReadonlyMap<string, { key: string }>; aborted: readonly string[] }>
}

/** One writer per key, so that the order of its commits is known. Every seventh transaction is rolled back. */
function startWriting({ pool, outbox }: Battlefield): Writing {
  const committed = new Map<string, { key: string }>()
  const aborted: string[] = []
  let isOver = false
  let effects = 0
  const watch = async (): Promise<void> => {
    while (!isOver) {
      effects = await count(pool, 'select count(*) from ledger')
      await sleep(50)
    }
  }
  const write = async (key: string): Promise<void> => {
    for (let seq = 1; !isOver; seq++) {
      await pollUntil('the queue to shorten', () => isOver || committed.size - effects < backlogMax, patience)
      const client = await pool.connect()
      await client.query('begin')
      const id = await outbox.add(client, { topic, key, type: 'order.placed', data: { seq } })
      const isAborted = seq % 7 === 0
      await client.query(isAborted ? 'rollback' : 'commit')
      client.release()
      if (isAborted) aborted.push(id)
      else committed.set(id, { key })
    }
  }
  const working = Promise.all([watch(), ...keys.map(write)])
  return {
    async end() {
      isOver = true
      await working
      return { committed, aborted }
    },
  }
}

// What a process does before it is killed: or else the chain would go nowhere.
const worksMin = { relay: 1, consumer: 5 }
// A machine that is busy with other work must not look like a chain that is broken.
const patience = { timeoutMs: 300_000, intervalMs: 50 }
const reserveMs = 20_000

interface Kept {
  /** Whether it has done some work since it was started. */
  hasWorked(): boolean
  /** Kills the process: at this point, or, without one, at once. Resolves when it is dead, and another one has begun. */
  killAt(point: Point | undefined): Promise<void>
  /** Asks it to end, and waits until it has: with 0, or this throws. */
  stop(): Promise<void>
  kill(): void
}

/** A process that is started again whenever it has been killed. */
function keepRunning({ broker, started, database }: Battlefield, role: Role, name: string): Kept {
  const launch = (): { child: ChildProcess; ended: Promise<number | string>; works: number } => {
    const program = join(import.meta.dirname, 'process.ts')
    const child = fork(program, [role, broker, started.place, database, name], { execArgv: [] })
    const ended = once(child, 'exit').then(([code, signal]) => (code ?? signal) as number | string)
    const launched = { child, ended, works: 0 }
    child.on('message', (said) => {
      if (said === 'working') launched.works += 1
    })
    return launched
  }
  let current = launch()
  return {
    hasWorked: () => current.works >= worksMin[role],
    async killAt(point) {
      const { child, ended } = current
      if (point !== undefined) child.send({ dieAt: point } satisfies Order)
      // A broker that was struck may have put it in reserve since: then it never gets to its point, and is killed where it stands.
      const stands = setTimeout(() => child.kill('SIGKILL'), point === undefined ? 0 : reserveMs)
      const how = await ended
      clearTimeout(stands)
      if (how !== 'SIGKILL') throw new Error(`${name} that was to be killed ended by itself, with ${how}`)
      current = launch()
    },
    async stop() {
      const { child, ended } = current
      if (child.connected) child.send('stop' satisfies Order)
      const how = await ended
      if (how !== 0) throw new Error(`${name} that was asked to stop ended with ${how}`)
    },
    kill: () => void current.child.kill('SIGKILL'),
  }
}

/** Always one that works: a broker may keep the others in reserve. */
async function killAll(processes: readonly Kept[], points: readonly Point[], kills: number): Promise<void> {
  const ways = [...points, undefined]
  for (let kill = 0; kill < kills; kill++) {
    const turned = processes.map((_, at) => processes[(kill + at) % processes.length]!)
    const one = await pollUntil('a process to work', () => turned.find((each) => each.hasWorked()), patience)
    await one.killAt(ways[kill % ways.length])
  }
}

async function strikeBroker({ pool, started }: Battlefield, kills: number): Promise<void> {
  for (let kill = 0; kill < kills; kill++) {
    const before = await count(pool, 'select count(*) from ledger')
    await pollUntil(
      'the chain to work',
      async () => {
        return (await count(pool, 'select count(*) from ledger')) >= before + 10
      },
      patience,
    )
    await started.strike()
  }
}

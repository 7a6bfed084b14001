// The fixture as a program of its own, for the cases in which a process dies or two share a store: real time, a store that
// outlives the process, a ledger in a file. Its one argument is a ProcessOptions; it prints its port when it listens.
import { DatabaseSync } from 'node:sqlite'
import type pg from 'pg'
import { createOnce } from '../../src/core/once.ts'
import type { OnceOptions } from '../../src/core/settings.ts'
import type { Store, Transactional } from '../../src/core/store.ts'
import { systemClock } from '../../src/core/clock.ts'
import { listen } from './apps/app.ts'
import { type AppName, apps } from './apps/index.ts'
import { createFixture, defaultSettings } from './fixture.ts'
import { fileLedger } from './ledger.ts'
import type { StoreAddress } from './stores.ts'
import { adapterOptions } from './world.ts'

export interface ProcessOptions {
  readonly adapter: AppName
  readonly address: StoreAddress
  readonly ledgerPath: string
  readonly config: Readonly<Record<string, unknown>>
  readonly once: Pick<OnceOptions, 'leaseMs'>
  /** Where the process kills itself. */
  readonly dies: 'never' | 'after the commit' | 'after the effect'
}

const options = JSON.parse(process.argv[2]!) as ProcessOptions

// As kill -9 would: nothing is flushed, closed or answered.
function die(): never {
  process.kill(process.pid, 'SIGKILL')
  for (;;);
}

// Each driver is loaded only where it is needed: most of the time of a case is the start of its processes.
async function open(address: StoreAddress): Promise<Store> {
  if (address.kind === 'redis') {
    const [{ createClient }, { redisStore }] = await Promise.all([import('redis'), import('../../src/stores/redis.ts')])
    const client = await createClient({ url: address.url }).connect()
    return redisStore({ client, prefix: address.prefix })
  }
  if (address.kind === 'postgres') {
    const [pg, { postgresStore }] = await Promise.all([import('pg'), import('../../src/stores/postgres.ts')])
    return postgresStore({ pool: new pg.default.Pool({ connectionString: address.url }) })
  }
  const { sqliteStore } = await import('../../src/stores/sqlite.ts')
  // Two processes may start at once.
  const database = new DatabaseSync(address.path, { timeout: 10_000 })
  database.exec('create table if not exists effects (name text not null)')
  database.close()
  return sqliteStore({ path: address.path })
}

function dyingAfterCommit(store: Store & Transactional<unknown>): Store & Transactional<unknown> {
  return {
    ...store,
    async begin(key, request) {
      const began = await store.begin(key, request)
      if (!began.granted) return began
      const { granted } = began
      const commit: typeof granted.commit = async (outcome, retention) => {
        await granted.commit(outcome, retention)
        return die()
      }
      return { ...began, granted: { ...granted, commit } }
    },
  }
}

async function commitWith(tx: unknown, tag: string): Promise<void> {
  if (options.address.kind === 'postgres') {
    await (tx as pg.PoolClient).query('insert into effects values ($1)', [tag])
  } else {
    const database = tx as { prepare(sql: string): { run(value: string): unknown } }
    database.prepare('insert into effects values (?)').run(tag)
  }
}

const real = await open(options.address)
const store = options.dies === 'after the commit' ? dyingAfterCommit(real as Store & Transactional<unknown>) : real
const fixture = createFixture(systemClock, fileLedger(options.ledgerPath), {
  ...defaultSettings,
  commitWith,
  ...(options.dies === 'after the effect' && { crash: die }),
})
const server = await listen(apps[options.adapter], {
  once: createOnce({ store, scope: 'conformance', ...options.once }),
  fixture,
  options: (protection) => adapterOptions(options.config, protection),
  transactions: 'begin' in store ? 'offered' : 'none',
  log: () => {},
  control: async () => 'no controls here',
})
process.stdout.write(`${server.port}\n`)
// Nobody is left to ask for anything when the parent is gone.
process.stdin.resume().on('end', () => process.exit())

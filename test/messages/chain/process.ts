// A relay or a consumer of the chain, as a process that can be killed: `process.ts relay BROKER PLACE DATABASE NAME`. Asked to, it kills
// itself (-9) at a point that a kill from outside would rarely hit.
import pg from 'pg'
import { createOnce } from '../../../src/core/once.ts'
import type { Receiver } from '../../../src/messages/broker.ts'
import { createInbox } from '../../../src/messages/inbox.ts'
import { createOutbox, createRelay } from '../../../src/messages/outbox.ts'
import { postgresStore } from '../../../src/stores/postgres.ts'
import { type BrokerName, brokers } from './brokers.ts'

export const relayPoints = ['before a publish is confirmed', 'between a publish and its mark'] as const
export const consumerPoints = ['between an effect and its commit', 'between a commit and its acknowledgement'] as const
export type Point = (typeof relayPoints)[number] | (typeof consumerPoints)[number]
export type Role = 'relay' | 'consumer'

/** What a supervisor tells a process. */
export type Order = { readonly dieAt: Point } | 'stop'

let dieAt: Point | undefined

/** Ends here, if that is what was asked for. */
async function pass(point: Point): Promise<void> {
  if (dieAt !== point) return
  process.kill(process.pid, 'SIGKILL')
  await new Promise(() => {})
}

const isWorking = (): void => void process.send?.('working')

interface Post {
  readonly broker: BrokerName
  readonly place: string
  readonly name: string
  readonly pool: pg.Pool
}

async function relay({ broker, place, pool }: Post): Promise<() => Promise<void>> {
  const outbox = createOutbox({ store: postgresStore({ pool }), source: 'chain', shards: 4 })
  const publisher = await (await brokers[broker].load()).publisher(place)
  const running = createRelay({
    outbox,
    // A killed relay keeps its shards for this long.
    leaseMs: 1_500,
    publishMs: 10_000,
    batch: 20,
    publisher: {
      name: publisher.name,
      async publish(messages) {
        const ids = messages.map(({ id }) => id)
        await pool.query('insert into published (id) select unnest($1::text[])', [ids])
        const publishing = publisher.publish(messages)
        await pass('before a publish is confirmed')
        const published = await publishing
        if (published.every((each) => each === undefined)) {
          await pass('between a publish and its mark')
          isWorking()
        }
        return published
      },
    },
  })
  running.start()
  return async () => {
    await running.stop()
    await publisher.close?.()
  }
}

async function consumer({ broker, place, name, pool }: Post): Promise<() => Promise<void>> {
  const once = createOnce({ store: postgresStore({ pool }), scope: 'chain' })
  // Every kill counts as an attempt, and none of these messages is to blame.
  const inbox = createInbox(once, { consumer: 'ledger', attempts: 1_000 })
  const watched: Receiver<pg.PoolClient> = {
    consumer: inbox.consumer,
    deliverBatch: inbox.deliverBatch,
    async deliver(message, handler, acknowledge) {
      await pool.query('insert into delivered (id) values ($1)', [message.id])
      return inbox.deliver(message, handler, async () => {
        await pass('between a commit and its acknowledgement')
        await acknowledge()
        isWorking()
      })
    },
  }
  const { consume } = await brokers[broker].load()
  const consuming = await consume({ place, inbox: watched, name }, async (tx, message) => {
    const { seq } = JSON.parse(Buffer.from(message.body).toString()) as { seq: number }
    await tx.query('insert into ledger (id, key, seq) values ($1, $2, $3)', [message.id, message.key, seq])
    await pass('between an effect and its commit')
  })
  return async () => {
    await consuming.stop()
    await once.close()
  }
}

if (process.argv[1] === import.meta.filename) {
  const [role, broker, place, database, name] = process.argv.slice(2) as [Role, BrokerName, string, string, string]
  // The supervisor is gone.
  process.on('disconnect', () => process.exit(1))
  const pool = new pg.Pool({ connectionString: database, max: 12 })
  pool.on('error', () => {})
  const stop = await { relay, consumer }[role]({ broker, place, name, pool })
  process.on('message', (order: Order) => {
    if (order !== 'stop') return void (dieAt = order.dieAt)
    void stop().then(() => process.exit(0))
  })
  process.send?.('started')
}

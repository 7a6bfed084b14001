// What the tests of outbox and relay share: an outbox on a ground, a broker that is a list, and the questions that all of them ask.
import { createHash } from 'node:crypto'
import type { SqlDatabase, SqlTransaction } from '../../src/clients/sql-database.ts'
import { newId } from '../../src/core/key.ts'
import type { Outgoing, Published, Publisher } from '../../src/messages/broker.ts'
import { inOrderOfKeys } from '../../src/messages/broker.ts'
import {
  createOutbox,
  createRelay,
  type Outbox,
  type OutboxEvent,
  type Relay,
  type RelayOptions,
} from '../../src/messages/outbox.ts'
import type { MessagesGround, OpenStore, SqlStore } from './grounds.ts'

export interface OpenOutbox extends AsyncDisposable {
  readonly store: SqlStore
  readonly database: SqlDatabase
  readonly outbox: Outbox<unknown>
  // A relay, which is stopped at the end.
  relay(options: Omit<RelayOptions, 'outbox'> & Partial<Pick<RelayOptions, 'outbox'>>): Relay
  // An open transaction, which is rolled back at the end unless the test has ended it.
  begin(): Promise<SqlTransaction<unknown>>
  // Commits what `work` adds, unless it throws.
  transaction<T>(work: (tx: unknown) => Promise<T>): Promise<T>
  // One event in a transaction of its own.
  addOne(event: Partial<OutboxEvent>): Promise<string>
}

export const shards = 4

export async function openOutbox(ground: MessagesGround, keepMs = 3_600_000): Promise<OpenOutbox> {
  const opened: OpenStore = await ground.openStore()
  const { store, database } = opened
  const outbox = createOutbox<unknown>({ store: store as never, source: 'shop', shards, keepMs })
  const relays: Relay[] = []
  const begun: SqlTransaction<unknown>[] = []
  const begin = async (): Promise<SqlTransaction<unknown>> => {
    begun.push(await database.begin({ scope: 'test', id: newId() }))
    return begun.at(-1)!
  }
  const takeTurn = turns(8)
  const transaction = async <T>(work: (tx: unknown) => Promise<T>): Promise<T> => {
    using _ = await takeTurn()
    const open = await database.begin({ scope: 'test', id: newId() })
    try {
      const value = await work(open.tx)
      await open.commit()
      return value
    } catch (error) {
      await open.rollback()
      throw error
    }
  }
  return {
    store,
    database,
    outbox,
    relay(options) {
      relays.push(createRelay({ outbox, ...options }))
      return relays.at(-1)!
    },
    begin,
    transaction,
    addOne: (event) => transaction((tx) => outbox.add(tx, { topic: 'orders', type: 'order.placed', ...event })),
    async [Symbol.asyncDispose]() {
      for (const relay of relays) await relay.stop()
      await Promise.all(begun.map((open) => open.rollback()))
      await opened[Symbol.asyncDispose]()
    },
  }
}

// As on the first day: rows, marks, leases and held rows are gone.
export async function emptyOutbox(ground: MessagesGround): Promise<void> {
  for (const table of ['onceonly_outbox', 'onceonly_outbox_held', 'onceonly_outbox_relays', 'effects'])
    await ground.ask(`delete from ${table}`)
  await ground.ask(`update onceonly_outbox_shards set cursors = '{}', owner = '', lease_until_ms = 0, epoch = 0`)
  if (ground.dialect !== 'postgres') await ground.ask('update onceonly_outbox_lanes set position = 0')
}

// Every lease is over, as after half a minute without a sign of life.
export async function endLeases(ground: MessagesGround): Promise<void> {
  await ground.ask('update onceonly_outbox_shards set lease_until_ms = 0')
}

// What waits for its next try is due.
export async function makeDue(ground: MessagesGround): Promise<void> {
  await ground.ask('update onceonly_outbox_held set due_at_ms = 0 where due_at_ms is not null')
}

export interface ListBroker extends Publisher {
  // Everything that has arrived, in its order, duplicates included.
  readonly arrived: Outgoing[]
  // Ids in the order of their first arrival.
  firsts(): string[]
  // Of one key, in the order of their first arrival.
  ofKey(key: string): string[]
}

export function listBroker(refuse: (message: Outgoing) => Error | undefined = () => undefined): ListBroker {
  const arrived: Outgoing[] = []
  const firsts = (): string[] => [...new Set(arrived.map(({ id }) => id))]
  return {
    name: 'list',
    arrived,
    firsts,
    ofKey(key) {
      const own = new Set(arrived.filter((each) => each.key === key).map(({ id }) => id))
      return firsts().filter((id) => own.has(id))
    },
    publish: (messages: readonly Outgoing[]): Promise<readonly Published[]> =>
      inOrderOfKeys(messages, async (message) => {
        const error = refuse(message)
        if (error) throw error
        arrived.push(message)
      }),
  }
}

// A pool has ten connections, and a transaction that gets none gives up after a while: on a busy machine a storm of them must take turns.
function turns(atOnce: number): () => Promise<Disposable> {
  const waiting: (() => void)[] = []
  let running = 0
  return async () => {
    if (running >= atOnce) await new Promise<void>((resolve) => waiting.push(resolve))
    else running++
    return {
      // Whoever waits gets the turn as it is.
      [Symbol.dispose]() {
        const next = waiting.shift()
        if (next) next()
        else running--
      },
    }
  }
}

export const textIn = ({ body }: Outgoing): string => Buffer.from(body).toString()

// By the rule that the outbox must never change: 1,024 lanes by the first two bytes of the SHA-256, dealt out to the shards.
export function shardOfKey(key: string): number {
  return (createHash('sha256').update(key).digest().readUInt16BE(0) % 1_024) % shards
}

export function keysOfOneShard(count: number): string[] {
  return Array.from({ length: 1_000 }, (_, index) => `key-${index}`)
    .filter((key) => shardOfKey(key) === 0)
    .slice(0, count)
}

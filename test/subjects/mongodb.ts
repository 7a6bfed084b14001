// What the MongoDB store lends to the contract: one server for a test file, an empty collection for each case, and the server's
// clock, which stands still (see servers/mongodb/program.ts).
import { randomBytes } from 'node:crypto'
import { MongoClient, type Collection, type Db, type MongoClientOptions } from 'mongodb'
import { systemClock } from '../../src/core/clock.ts'
import { mongodbStore, type MongodbStore, type MongodbStoreOptions } from '../../src/stores/mongodb.ts'
import type { ContractSubject } from '../../src/testing/store-contract.ts'
import { type FaultProxy, startFaultProxy } from '../servers/fault-proxy.ts'
import { startMongodb } from '../servers/mongodb.ts'
import type { Running } from '../servers/server.ts'
import type { DumpedSubject } from './swept.ts'

export interface MongodbGround extends AsyncDisposable {
  readonly server: Running
  readonly proxy: FaultProxy
  // Straight to the server, for the tests' own questions.
  readonly admin: Db
  createSubject(options?: StoreOptions): Promise<MongodbSubject>
}

export interface MongodbSubject extends DumpedSubject {
  readonly store: MongodbStore
  // Straight to the server.
  readonly documents: Collection<{ _id: string; [name: string]: unknown }>
  // Through the proxy, with a client of its own.
  open(process: { clockSkewMs: number }, options?: StoreOptions): MongodbStore
}

export type StoreOptions = Omit<Partial<MongodbStoreOptions>, 'collection' | 'clock'>

export const database = 'onceonly'

// A busy machine must not look like a server that does not answer: a thousand claims wait for their turn in the driver.
export const patientMs = 60_000

export function createClient(url: string, options: MongoClientOptions = {}): MongoClient {
  // It looks for a server that is back twice a second, not every ten.
  return new MongoClient(url, { heartbeatFrequencyMS: 500, serverSelectionTimeoutMS: 20_000, ...options })
}

export async function startMongodbGround(): Promise<MongodbGround> {
  const server = await startMongodb()
  const proxy = await startFaultProxy({ target: server })
  const client = createClient(server.url)
  const admin = client.db(database)
  return {
    server,
    proxy,
    admin,
    createSubject: (options = {}) => createSubject({ server, proxy, admin }, options),
    async [Symbol.asyncDispose]() {
      await client.close()
      await proxy.close()
      await server.stop()
    },
  }
}

type Around = Pick<MongodbGround, 'server' | 'proxy' | 'admin'>

async function createSubject({ server, proxy, admin }: Around, options: StoreOptions): Promise<MongodbSubject> {
  const name = `entries-${randomBytes(6).toString('hex')}`
  const documents: MongodbSubject['documents'] = admin.collection(name)
  let nowMs = systemClock.now()
  const setClock = (): Promise<unknown> => admin.command({ onceonlyTest: 1, nowMs })
  await setClock()
  const clients: MongoClient[] = []
  const open = (process: { clockSkewMs: number }, more: StoreOptions = {}): MongodbStore => {
    const client = createClient(proxy.url)
    clients.push(client)
    const clock = { ...systemClock, now: () => systemClock.now() + process.clockSkewMs }
    const collection = client.db(database).collection(name)
    return mongodbStore({ collection, clock, timeoutMs: patientMs, ...options, ...more })
  }
  const store = open({ clockSkewMs: 0 })
  await store.migrate()
  return {
    store,
    documents,
    open,
    another: async (process) => open({ clockSkewMs: process?.clockSkewMs ?? 0 }),
    async advance(ms) {
      nowMs += ms
      await setClock()
    },
    async corrupt({ scope, id }, bytes) {
      await documents.updateOne({ _id: `${scope}\n${id}` }, { $set: { outcome: Buffer.from(bytes) } })
    },
    dump: () => documents.find().toArray(),
    faults: faults(server, proxy),
    async destroy() {
      await proxy.setMode('pass')
      for (const client of clients) await client.close()
      await documents.drop()
    },
  }
}

function faults(server: Running, proxy: FaultProxy): NonNullable<ContractSubject['faults']> {
  return {
    async crashServer() {
      await server.crash()
      await server.restart()
    },
    async cutOff() {
      await proxy.setMode('refuse')
      proxy.resetConnections()
    },
    heal: () => proxy.setMode('pass'),
    async cutAtCommit() {
      throw new Error('there is no COMMIT to cut at')
    },
    async dropNextReply() {
      proxy.cutAt({ direction: 'reply', side: 'before', match: isReplyToStore })
    },
  }
}

/** Not one to the driver's own question, asked twice a second on a connection of its own, whether the server is there. */
export function isReplyToStore(message: Buffer): boolean {
  return !message.includes('maxWireVersion')
}

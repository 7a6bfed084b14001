// One server of bench/http.ts in a process of its own: the same route on Fastify or Express, bare or behind one idempotency library. Its
// argument is a ServerOptions; it sends its port when it listens, and what it has cost and done so far whenever it is asked.

import type { AddressInfo } from 'node:net'
import express from 'express'
import type { Express, RequestHandler, Response } from 'express'
import fastify from 'fastify'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { createClient } from 'redis'
import { createOnce } from '../../src/core/once.ts'
import type { Store } from '../../src/core/store.ts'
import { idempotency as idempotencyOfExpress } from '../../src/http/express.ts'
import { idempotency } from '../../src/http/fastify.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { redisStore } from '../../src/stores/redis.ts'

type OnFastify = 'bare' | 'onceonly' | 'node-idempotency' | 'powertools'
type OnExpress = 'bare-express' | 'onceonly-express' | 'express-idempotency'

export interface ServerOptions {
  readonly library: OnFastify | OnExpress
  readonly redisUrl?: string | undefined
}

export interface Spent {
  readonly cpuMicroseconds: number
  /** How often the handler ran: tells a replay from a second run. */
  readonly handled: number
}

// The slices of the peers that are used here: they are installed on demand and cannot be imported by name.
interface NodeIdempotencyCore {
  readonly Idempotency: new (storage: unknown) => {
    onRequest(request: object): Promise<{ body?: unknown; additional?: { statusCode?: number } } | undefined>
    onResponse(request: object, response: object): Promise<void>
  }
}
interface NodeIdempotencyStorage {
  readonly MemoryStorageAdapter: new () => unknown
  readonly RedisStorageAdapter: new (options: { url: string }) => { connect(): Promise<void> }
}
interface ExpressIdempotency {
  idempotency(options: { dataAdapter: object }): RequestHandler
  getSharedIdempotencyService(): { isHit(req: unknown): boolean }
}
interface Powertools {
  readonly IdempotencyConfig: new (options: object) => unknown
  readonly makeIdempotent: <In, Out>(work: (asked: In) => Promise<Out>, how: object) => (asked: In) => Promise<Out>
  readonly CachePersistenceLayer: new (options: { client: unknown }) => unknown
}

const load = async <Module>(name: string): Promise<Module> => (await import(name)) as Module
const keyOf = (request: FastifyRequest): string => request.headers['idempotency-key'] as string

let handled = 0
// 300 bytes of JSON.
const answer = {
  id: 'pay_01HZX3J5T9Q8W7E6R5T4Y3U2I1',
  status: 'succeeded',
  cents: 129_900,
  currency: 'EUR',
  receipt: 'x'.repeat(195),
}

async function pay(): Promise<typeof answer> {
  handled++
  return answer
}

const options = JSON.parse(process.argv[2]!) as ServerOptions
const onFastify: Readonly<Record<OnFastify, (app: FastifyInstance) => Promise<void>>> = {
  async bare(app) {
    app.post('/payments', pay)
  },

  async onceonly(app) {
    const once = createOnce({ store: await openStore(), scope: 'bench', sweepEveryMs: false })
    await app.register(idempotency(once, { tenant: 'shared' }))
    app.post('/payments', pay)
  },

  // Its Fastify plugin pins Fastify 4; these are the plugin's two hooks on its core, without its detour of storing each replay again.
  async 'node-idempotency'(app) {
    const { Idempotency } = await load<NodeIdempotencyCore>('@node-idempotency/core')
    const core = new Idempotency(await openPeerStorage())
    const replayed = new WeakSet<FastifyRequest>()
    const asked = (request: FastifyRequest): object => {
      const { headers, body, url: path, method } = request
      return { headers, body, path, method }
    }
    app.addHook('preHandler', async (request, reply) => {
      const stored = await core.onRequest(asked(request))
      if (!stored) return
      replayed.add(request)
      reply.status(stored.additional?.statusCode ?? 200).header('content-type', 'application/json; charset=utf-8')
      await reply.header('idempotent-replayed', 'true').send(stored.body)
    })
    app.addHook('onSend', async (request, reply, body) => {
      if (replayed.has(request)) return
      await core.onResponse(asked(request), { body, additional: { statusCode: reply.statusCode } })
    })
    app.post('/payments', pay)
  },

  async powertools(app) {
    const { IdempotencyConfig, makeIdempotent } = await load<Powertools>('@aws-lambda-powertools/idempotency')
    const { CachePersistenceLayer } = await load<Powertools>('@aws-lambda-powertools/idempotency/cache')
    const client = await createClient({ url: options.redisUrl! }).connect()
    const payOnce = makeIdempotent(pay as (asked: object) => Promise<typeof answer>, {
      persistenceStore: new CachePersistenceLayer({ client }),
      config: new IdempotencyConfig({
        // The body is not compared: in this version every replay from a cache would then be refused.
        eventKeyJmesPath: 'key',
        // Without one it writes a warning for every request.
        lambdaContext: { getRemainingTimeInMillis: () => 30_000 },
      }),
    })
    app.post('/payments', (request) => payOnce({ key: keyOf(request), body: request.body }))
  },
}

const onExpress: Readonly<Record<OnExpress, (app: Express) => Promise<void>>> = {
  async 'bare-express'(app) {
    app.use(express.json())
    app.post('/payments', payOnExpress)
  },

  async 'onceonly-express'(app) {
    const once = createOnce({ store: await openStore(), scope: 'bench', sweepEveryMs: false })
    app.use(idempotencyOfExpress(once, { tenant: 'shared' }))
    app.use(express.json())
    app.post('/payments', payOnExpress)
  },

  async 'express-idempotency'(app) {
    const { idempotency: middleware, getSharedIdempotencyService } =
      await load<ExpressIdempotency>('express-idempotency')
    app.use(express.json())
    app.use(middleware({ dataAdapter: mapAdapter() }))
    app.post('/payments', async (req, res) => {
      if (!getSharedIdempotencyService().isHit(req)) await payOnExpress(req, res)
    })
  },
}

async function payOnExpress(_req: unknown, res: Response): Promise<void> {
  res.json(await pay())
}

/** Its own adapter in memory is an array, which it searches from end to end for every request. */
function mapAdapter(): object {
  const found = new Map<string, { readonly idempotencyKey: string }>()
  const set = async (resource: { readonly idempotencyKey: string }): Promise<void> =>
    void found.set(resource.idempotencyKey, resource)
  return {
    findByIdempotencyKey: async (key: string) => found.get(key) ?? null,
    create: set,
    update: set,
    delete: async (key: string) => void found.delete(key),
  }
}

async function openStore(): Promise<Store> {
  if (options.redisUrl === undefined) return memoryStore({ entriesMax: 10_000_000 })
  return redisStore({ client: await createClient({ url: options.redisUrl }).connect() })
}

async function openPeerStorage(): Promise<unknown> {
  if (options.redisUrl === undefined) {
    const { MemoryStorageAdapter } = await load<NodeIdempotencyStorage>('@node-idempotency/storage-adapter-memory')
    return new MemoryStorageAdapter()
  }
  const { RedisStorageAdapter } = await load<NodeIdempotencyStorage>('@node-idempotency/storage-adapter-redis')
  const storage = new RedisStorageAdapter({ url: options.redisUrl })
  await storage.connect()
  return storage
}

function spent(): Spent {
  const { user, system } = process.cpuUsage()
  return { cpuMicroseconds: user + system, handled }
}

async function listenOnFastify(library: OnFastify): Promise<AddressInfo> {
  const app = fastify()
  await onFastify[library](app)
  await app.listen({ port: 0, host: '127.0.0.1' })
  return app.server.address() as AddressInfo
}

async function listenOnExpress(library: OnExpress): Promise<AddressInfo> {
  const app = express()
  await onExpress[library](app)
  return new Promise((resolve) => {
    const server = app.listen(0, '127.0.0.1', () => resolve(server.address() as AddressInfo))
  })
}

const isOnExpress = (library: ServerOptions['library']): library is OnExpress => Object.hasOwn(onExpress, library)
const { library } = options
const { port } = isOnExpress(library) ? await listenOnExpress(library) : await listenOnFastify(library)
process.on('message', () => process.send!(spent()))
// The bench has ended, however it ended.
process.on('disconnect', () => process.exit())
process.send!(port)

// What the Redis store lends to the contract: one server (or cluster) for a test file, names of their own for each case, and a
// clock that stands still. The clock is the server's as far as the shipped script can tell: on its way to the server, the one
// call of TIME in it is replaced by the test's time. An hour ahead of the real one, so that Redis never expires first.
import { createHash, randomUUID } from 'node:crypto'
import { Cluster, Redis } from 'ioredis'
import { createClient, createCluster } from 'redis'
import { systemClock } from '../../src/core/clock.ts'
import type { Clock } from '../../src/core/clock.ts'
import { key as keyOf } from '../../src/core/key.ts'
import type { RedisArgument, RedisClient } from '../../src/clients/redis.ts'
import { namesUnder } from '../../src/stores/redis/names.ts'
import { claimScript, inspectScript, writeScript } from '../../src/stores/redis/decisions.lua.ts'
import { entryLength } from '../../src/stores/redis/places.ts'
import { redisStore } from '../../src/stores/redis.ts'
import type { RedisStore, RedisStoreOptions } from '../../src/stores/redis.ts'
import type { ContractSubject } from '../../src/testing/store-contract.ts'
import { type FaultProxy, startFaultProxy } from '../servers/fault-proxy.ts'
import { type RedisCluster, startCluster } from '../servers/redis/cluster.ts'
import { startRedis } from '../servers/redis.ts'
import type { Running } from '../servers/server.ts'

export type Driver = 'node-redis' | 'ioredis'

export const drivers: readonly Driver[] = ['node-redis', 'ioredis']

/** A server that the store accepts as it is. */
export const durable = { appendonly: 'yes', appendfsync: 'always' } as const

export interface Connected {
  readonly client: RedisClient
  /** A command of the test's own. */
  send(...command: string[]): Promise<unknown>
  close(): Promise<void>
}

// Errors of connections are expected: servers crash and proxies cut. Without a listener they would end the process.
const ignore = (): void => {}

export async function connect(driver: Driver, url: string): Promise<Connected> {
  if (driver === 'ioredis') {
    const client = new Redis(url)
    client.on('error', ignore)
    return { client, send: (name, ...values) => client.call(name!, values), close: async () => client.disconnect() }
  }
  const client = createClient({ url })
  client.on('error', ignore)
  await client.connect()
  return { client, send: (...command) => client.sendCommand(command), close: async () => client.destroy() }
}

export async function connectCluster(driver: Driver, urls: readonly string[]): Promise<Connected> {
  if (driver === 'ioredis') {
    const client = new Cluster([...urls])
    client.on('error', ignore)
    return { client, send: (name, ...values) => client.call(name!, values), close: async () => client.disconnect() }
  }
  const client = createCluster({ rootNodes: urls.map((url) => ({ url })) })
  client.on('error', ignore)
  await client.connect()
  return {
    client,
    send: (...command) => client.sendCommand(command[1], false, command),
    close: async () => client.destroy(),
  }
}

/** The server's clock, as the test sets it. */
export interface TestClock {
  advance(ms: number): void
  rewrite(command: readonly RedisArgument[]): RedisArgument[]
  /** What the server replies to TIME. */
  time(): readonly [Buffer, Buffer]
  /** The clock of a process whose time passes as the server's does, this far apart from it. */
  local(skewMs?: number): Clock
}

const hourUs = 3_600_000_000

export function testClock(): TestClock {
  let nowUs = Date.now() * 1_000 + hourUs
  return {
    advance(ms) {
      nowUs += ms * 1_000
    },
    rewrite(command) {
      const time = `{ '${Math.floor(nowUs / 1e6)}', '${nowUs % 1e6}' }`
      const timed = scripts.flatMap(({ sha, source }) => {
        const changed = source.replace(`call('TIME')`, time)
        return [[sha, createHash('sha1').update(changed).digest('hex')] as const, [source, changed] as const]
      })
      const changes = new Map<RedisArgument, string>(timed)
      return command.map((each) => changes.get(each) ?? each)
    },
    time: () => [Buffer.from(`${Math.floor(nowUs / 1e6)}`), Buffer.from(`${nowUs % 1e6}`)],
    local: (skewMs = 0) => ({
      ...systemClock,
      now: () => nowUs / 1_000 + skewMs,
      elapsed: () => nowUs / 1_000 + skewMs,
    }),
  }
}

const scripts = [claimScript, writeScript, inspectScript]

/** The same client, with the test's clock in the script. */
export function withClock(client: RedisClient, clock: TestClock): RedisClient {
  const rewriting: Record<string, (...args: never[]) => unknown> = {
    sendCommand(...args: unknown[]) {
      if (Array.isArray(args[0]) && args[0][0] === 'TIME') return Promise.resolve(clock.time())
      return (client as { sendCommand(...all: unknown[]): unknown }).sendCommand(
        ...args.map((each) => (Array.isArray(each) ? clock.rewrite(each as RedisArgument[]) : each)),
      )
    },
    callBuffer: (name: string, values: RedisArgument[]) => (client as Redis).callBuffer(name, clock.rewrite(values)),
  }
  return new Proxy(client, {
    get(target, name) {
      const own: unknown = Reflect.get(target, name, target)
      if (typeof own !== 'function') return own
      return rewriting[String(name)] ?? (own as (...args: unknown[]) => unknown).bind(target)
    },
  })
}

export interface RedisGround extends AsyncDisposable {
  readonly server: Running
  createSubject(driver: Driver): Promise<ContractSubject>
}

export async function startRedisGround(program?: 'valkey'): Promise<RedisGround> {
  const server = await startRedis({ config: durable, ...(program && { program }) })
  const proxy = await startFaultProxy({ target: server, framer: 'redis' })
  return {
    server,
    createSubject: (driver) =>
      createSubject({ connect: () => connect(driver, proxy.url), faults: faults(server, proxy), proxy }),
    async [Symbol.asyncDispose]() {
      await proxy.close()
      await server.stop()
    },
  }
}

export interface ClusterGround extends AsyncDisposable {
  readonly cluster: RedisCluster
  createSubject(driver: Driver): Promise<ContractSubject>
}

export async function startClusterGround(): Promise<ClusterGround> {
  const cluster = await startCluster({ config: durable })
  return {
    cluster,
    createSubject: (driver) => createSubject({ connect: () => connectCluster(driver, cluster.urls) }),
    [Symbol.asyncDispose]: () => cluster.stop(),
  }
}

interface Around {
  connect(): Promise<Connected>
  readonly faults?: NonNullable<ContractSubject['faults']>
  readonly proxy?: FaultProxy
}

async function createSubject({ connect: open, faults: lent, proxy }: Around): Promise<ContractSubject> {
  const clock = testClock()
  const prefix = `contract:${randomUUID()}`
  const opened: Connected[] = []
  const create = async (options: Partial<RedisStoreOptions> = {}): Promise<RedisStore> => {
    const connected = await open()
    opened.push(connected)
    // Short, for the cases in which nobody answers.
    const client = withClock(connected.client, clock)
    return redisStore({ client, prefix, timeoutMs: 3_000, clock: clock.local(), ...options })
  }
  return {
    store: await create(),
    another: ({ clockSkewMs = 0 } = {}) => create({ clock: clock.local(clockSkewMs) }),
    advance: async (ms) => clock.advance(ms),
    async corrupt({ scope, id }, bytes) {
      const names = namesUnder(prefix).of(keyOf(scope, id))
      const replace = (name: string, value: Buffer): Promise<unknown> =>
        opened[0]!.send('SET', name, value as unknown as string, 'KEEPTTL')
      const entry = String(await opened[0]!.send('GET', names.entry))
      // Small outcomes are in the entry.
      const small = Buffer.concat([Buffer.from(`${entry.slice(0, entryLength)}\n`), bytes])
      if (entry.length > entryLength) await replace(names.entry, small)
      else await replace(names.outcome, Buffer.from(bytes))
    },
    ...(lent && { faults: lent }),
    async destroy() {
      await proxy?.setMode('pass')
      await Promise.all(opened.map((each) => each.close()))
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
    cutAtCommit: () => Promise.reject(new Error('Redis has no COMMIT')),
    async dropNextReply() {
      proxy.cutAt({ direction: 'reply', side: 'before' })
    },
  }
}

// The slice of the Redis clients that we use, and one shape for all of them. A command is a list of strings and bytes, and
// every string of its reply comes back as bytes, so that an outcome is never decoded as text on its way.

import { invalidArgument } from '../core/errors.ts'

export type RedisArgument = string | Buffer

/** What node-redis has since version 5. */
interface TypeMapped {
  withTypeMapping(typeMapping: object): unknown
}

/** node-redis: createClient() or createClientPool(). */
export interface NodeRedisClient extends TypeMapped {
  sendCommand(command: readonly RedisArgument[], options?: NodeRedisCommandOptions): Promise<unknown>
  /** Whether it is connected. A pool does not say. */
  readonly isReady?: boolean
  /** Which connection it is on, counted from the first. A pool does not say. */
  readonly socketEpoch?: number
  on?(event: 'reconnecting', listener: () => void): unknown
}

/** node-redis: createSentinel(). */
export interface NodeRedisSentinel extends TypeMapped {
  sendCommand(
    isReadonly: boolean | undefined,
    command: RedisArgument[],
    options?: NodeRedisCommandOptions,
  ): Promise<unknown>
  getMasterNode(): unknown
}

/** node-redis: createCluster(). */
export interface NodeRedisCluster extends TypeMapped {
  sendCommand(
    firstKey: RedisArgument | undefined,
    isReadonly: boolean | undefined,
    command: RedisArgument[],
    options?: NodeRedisCommandOptions,
  ): Promise<unknown>
  readonly masters: readonly unknown[]
  nodeClient(node: never): Promise<Pick<NodeRedisClient, 'sendCommand' | 'isReady'>>
}

export interface NodeRedisCommandOptions {
  readonly typeMapping?: { readonly [respType: number]: typeof Buffer }
  readonly timeout?: number
  readonly abortSignal?: AbortSignal
}

/** ioredis: new Redis(), for one server or through sentinels. */
export interface IoRedis {
  callBuffer(command: string, values: RedisArgument[]): Promise<unknown>
  readonly isCluster: boolean
  readonly options: { readonly keyPrefix?: string | undefined }
}

/** ioredis: new Cluster(). */
export interface IoRedisCluster extends IoRedis {
  nodes(role: 'master'): IoRedis[]
}

export type RedisClient = NodeRedisClient | NodeRedisSentinel | NodeRedisCluster | IoRedis | IoRedisCluster

/** Sends one command to one server. */
export type Send = (command: readonly RedisArgument[]) => Promise<unknown>

export interface RedisLink {
  /** In a Cluster all keys of a script must be in one slot. */
  readonly isCluster: boolean
  /** To the server that has this key. */
  send(key: string, command: readonly RedisArgument[]): Promise<unknown>
  /** Every server that takes writes, for what concerns all of them: settings, names of keys. */
  primaries(): Promise<readonly Send[]>
  /**
   * Which connection a command of this moment is sent on: commands of one connection reach the server in their order, and none
   * of them twice. Undefined where there is none, where there are several, and where the client resends what had no reply.
   */
  connection?(): number | undefined
  /**
   * As `send`, on the connection of this moment or not at all: what is not written when that ends is dropped, and rejects. A client
   * would write it on the next connection, long after its caller has given up, and before anything else.
   */
  sendHere?(command: readonly RedisArgument[]): Promise<unknown>
}

/** `who` speaks in the errors. */
export function linkTo(client: unknown, who = 'redisStore'): RedisLink {
  const has = (name: string): boolean => typeof (client as Record<string, unknown> | null)?.[name] === 'function'
  if (typeof client === 'object' && client !== null) {
    if (has('callBuffer')) return ioRedisLink(client as IoRedis, who)
    // Version 4 takes no typeMapping: it would return text, and outcomes would be damaged on their way.
    if (has('sendCommand') && !has('withTypeMapping')) {
      throw invalidArgument(
        `${who}: expected a client of node-redis 5 or later, got one of an older version (it has no withTypeMapping), ` +
          'which cannot return bytes. Upgrade the package redis (npm install redis@latest), or use ioredis.',
      )
    }
    if (has('sendCommand') && has('nodeClient')) return clusterLink(client as NodeRedisCluster)
    if (has('sendCommand') && has('getMasterNode')) return sentinelLink(client as NodeRedisSentinel)
    if (has('sendCommand')) {
      const { isReady, socketEpoch } = client as NodeRedisClient
      const link = oneServer(nodeRedisSend(client as NodeRedisClient))
      // A pool has many connections, and says neither.
      if (isReady === undefined || socketEpoch === undefined || !has('on')) return link
      return { ...link, ...connectionOf(client as NodeRedisClient) }
    }
  }
  throw invalidArgument(
    `${who}: expected client to be a client of node-redis (createClient, createClientPool, createCluster, ` +
      'createSentinel) or of ioredis (Redis, Cluster)',
  )
}

// 36 is '$': what node-redis calls RESP_TYPES.BLOB_STRING. The client's own time-out stays while the client is not connected: without
// it, the offline queue keeps every command of an outage and sends all of them when the server is back, long after their callers
// have given up.
const asBytes: NodeRedisCommandOptions = { typeMapping: { 36: Buffer } }
// A connected client writes the command as soon as its socket takes more, and from then on its time-out does nothing. But the signal of
// that time-out fires seconds later all the same, which made a lone call a seventh more expensive.
const asBytesAtOnce: NodeRedisCommandOptions = { ...asBytes, timeout: 0 }

function nodeRedisSend(client: Pick<NodeRedisClient, 'sendCommand' | 'isReady'>): Send {
  return (command) => client.sendCommand(command, client.isReady === true ? asBytesAtOnce : asBytes)
}

/** Of the commands that go out on one connection only, those that the client has not written yet. */
class Unwritten {
  readonly aborted = false
  readonly #drops = new Set<() => void>()

  // What node-redis uses of an AbortSignal: it adds a listener to a command in its queue, and removes it when it writes the command. A real
  // signal costs as much as the command.
  addEventListener(_event: 'abort', drop: () => void): void {
    this.#drops.add(drop)
  }

  removeEventListener(_event: 'abort', drop: () => void): void {
    this.#drops.delete(drop)
  }

  /** Takes them out of the client's queue. */
  drop(): void {
    const drops = [...this.#drops]
    this.#drops.clear()
    for (const each of drops) each()
  }
}

/** One for each client: several stores may share it. */
const unwrittenOf = new WeakMap<NodeRedisClient, Unwritten>()

function connectionOf(client: NodeRedisClient): Required<Pick<RedisLink, 'connection' | 'sendHere'>> {
  let unwritten = unwrittenOf.get(client)
  if (!unwritten) {
    unwrittenOf.set(client, (unwritten = new Unwritten()))
    // Emitted in the same turn in which the connection is lost, so before there is another one.
    client.on!('reconnecting', () => unwritten!.drop())
  }
  const options = { ...asBytesAtOnce, abortSignal: unwritten as unknown as AbortSignal }
  return {
    connection: () => (client.isReady === true ? client.socketEpoch : undefined),
    sendHere: (command) => client.sendCommand(command, options),
  }
}

function oneServer(send: Send): RedisLink {
  return { isCluster: false, send: (_key, command) => send(command), primaries: async () => [send] }
}

// Never `isReadonly`: a replica may not yet have what was claimed a moment ago.
function sentinelLink(client: NodeRedisSentinel): RedisLink {
  return oneServer((command) => client.sendCommand(false, [...command], asBytes))
}

function clusterLink(client: NodeRedisCluster): RedisLink {
  return {
    isCluster: true,
    send: (key, command) => client.sendCommand(key, false, [...command], asBytes),
    async primaries() {
      await client.sendCommand(undefined, false, ['PING'])
      const nodes = await Promise.all(client.masters.map((node) => client.nodeClient(node as never)))
      return known(nodes).map(nodeRedisSend)
    },
  }
}

function ioRedisLink(client: IoRedis, who: string): RedisLink {
  if (client.options.keyPrefix) {
    throw invalidArgument(
      `${who}: expected an ioredis client without keyPrefix, got "${client.options.keyPrefix}". Pass ` +
        (who === 'redisStore'
          ? 'prefix to the store instead. SCAN returns names with their prefix, and the store has to recognise them.'
          : 'the whole name of the stream instead.'),
    )
  }
  if (!client.isCluster) return oneServer(ioRedisSend(client))
  return {
    isCluster: true,
    send: (_key, command) => ioRedisSend(client)(command),
    async primaries() {
      await client.callBuffer('PING', [])
      return known((client as IoRedisCluster).nodes('master')).map(ioRedisSend)
    },
  }
}

// A client that has not connected yet knows no primaries, and a check of none of them would pass. Hence PING first.
function known<Node>(nodes: readonly Node[]): readonly Node[] {
  if (nodes.length === 0) throw new Error('the client knows no primary of the cluster')
  return nodes
}

function ioRedisSend(client: IoRedis): Send {
  return ([name, ...values]) => client.callBuffer(name as string, values)
}

/** The servers behind a Redis store, for what other rooms keep beside its entries: sessions. */
export interface RedisServers {
  /** The beginning of all names. */
  readonly prefix: string
  /** Runs a script with one key, on the server that has the key, once the servers are known to be fit. */
  run(call: ServerScript): Promise<unknown>
  /** All names that begin like this, from all servers, some of them twice. It looks through every name that there is. */
  names(beginning: string): AsyncIterable<string>
}

export interface ServerScript {
  readonly script: string
  readonly key: string
  readonly values: readonly RedisArgument[]
  /** Completes "Redis could not …": "renew the session till-7". */
  readonly what: string
  /** What is said when no reply comes: 'no' of a call that runs nothing by itself, such as a question or a claim. */
  readonly executed: 'no' | 'unknown'
}

const places = new WeakMap<object, RedisServers>()

/** Called by a store for itself. */
export function offerRedis<S extends object>(store: S, place: RedisServers): S {
  places.set(store, place)
  return store
}

/** Undefined for every other store, and for one that was wrapped by somebody's own code. */
export function redisOf(store: object): RedisServers | undefined {
  return places.get(store)
}

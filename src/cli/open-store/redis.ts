// Redis by its URL: one server, a Cluster, or whichever server the Sentinels name as the primary. The named Sentinels and nodes
// of a Cluster are where it begins, and they name the others.

import { invalidArgument } from '../../core/errors.ts'
import { aString, checkGiven } from '../../core/options.ts'
import type * as redisDriver from 'redis'
import type { RedisClient } from '../../clients/redis.ts'
import { checkUrl, connectTimeoutMs, driver, inTime, unreachable, withoutPassword } from './connecting.ts'

interface Login {
  readonly username?: string
  readonly password?: string
}

interface Node {
  readonly host: string
  readonly port: number
}

export type RedisPlace =
  | { readonly is: 'one'; readonly url: string }
  | { readonly is: 'cluster'; readonly nodes: readonly Node[]; readonly login: Login; readonly tls: boolean }
  | {
      readonly is: 'sentinel'
      readonly nodes: readonly Node[]
      readonly login: Login
      readonly tls: boolean
      readonly name: string
      readonly database: number
      /** Of the Sentinels themselves. */
      readonly sentinelLogin: Login
    }

const forms = {
  cluster: 'redis-cluster://HOST:PORT,HOST:PORT',
  sentinel: 'redis-sentinel://HOST:PORT,HOST:PORT/NAME, with the name that the Sentinels have for the primary',
}

export function readRedisUrl(url: string): RedisPlace {
  const [, scheme = '', is, rest = ''] = /^(rediss?)-(cluster|sentinel):\/\/(.*)$/i.exec(url) ?? []
  if (is === undefined) {
    checkUrl(url)
    return { is: 'one', url }
  }
  const kind = is.toLowerCase() as keyof typeof forms
  const refuse = (): Error => invalidArgument(`expected ${forms[kind]}, got ${JSON.stringify(withoutPassword(url))}`)
  const [place = '', query = ''] = rest.split('?')
  // Up to the last @: people write passwords with / and @ in them as they are.
  const [, before = '', hosts = '', path = ''] = /^(?:(.*)@)?([^/@]*)(?:\/(.*))?$/.exec(place) ?? []
  const nodes = hosts.split(',').map((host) => nodeOf(host, kind === 'cluster' ? 6379 : 26_379))
  if (!nodes.every((node) => node !== undefined)) throw refuse()
  const common = { nodes, login: loginOf(before), tls: scheme.toLowerCase() === 'rediss' }
  const parameters = Object.fromEntries(new URLSearchParams(query))
  if (kind === 'cluster') {
    checkGiven('the URL of the store', parameters, {})
    // A Cluster has one database.
    if (path !== '' && path !== '0') throw refuse()
    return { is: 'cluster', ...common }
  }
  checkGiven('the URL of the store', parameters, { sentinelUser: aString, sentinelPassword: aString })
  const [, name, database = '0'] = /^([^/]+)(?:\/(\d{1,5}))?$/.exec(path) ?? []
  if (name === undefined) throw refuse()
  const { sentinelUser, sentinelPassword } = parameters
  const sentinelLogin = login(sentinelUser, sentinelPassword)
  return { is: 'sentinel', ...common, name: decodeURIComponent(name), database: Number(database), sentinelLogin }
}

function nodeOf(text: string, otherwise: number): Node | undefined {
  const url = `redis://${text}`
  if (text === '' || !URL.canParse(url)) return undefined
  const { hostname, port } = new URL(url)
  return { host: hostname.replace(/^\[|\]$/g, ''), port: port === '' ? otherwise : Number(port) }
}

function loginOf(text: string): Login {
  const [, user = '', password] = /^([^:]*)(?::(.*))?$/.exec(text) ?? []
  return login(decoded(user), password === undefined ? undefined : decoded(password))
}

/** Unchanged where it is not escaped: a % in a password is not always an escape. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

function login(username: string | undefined, password: string | undefined): Login {
  return { ...(username && { username }), ...(password && { password }) }
}

interface Connected {
  readonly client: RedisClient
  close(): Promise<void>
}

export async function connectRedis(url: string): Promise<Connected> {
  const place = readRedisUrl(url)
  const redis = await driver('redis', () => import('redis'))
  const state = { connected: false }
  const client = clientOf(redis, place, state)
  // Every command gets its own error. Without a listener this would end the process.
  client.on('error', () => undefined)
  try {
    await inTime(client.connect())
  } catch (cause) {
    await client.destroy()
    throw unreachable(place.is === 'one' ? 'Redis' : `The Redis ${place.is}`, url, cause)
  }
  state.connected = true
  return { client: client as unknown as RedisClient, close: async () => client.destroy() }
}

type Driver = Pick<typeof redisDriver, 'createClient' | 'createCluster' | 'createSentinel'>
type Client = ReturnType<Driver[keyof Driver]>

function clientOf(
  redis: Driver,
  place: RedisPlace,
  state: { connected: boolean },
): Pick<Client, 'on' | 'connect' | 'destroy'> {
  const socket = {
    connectTimeout: connectTimeoutMs,
    // A server that is missing at the start is an error. For a server that goes away later the client waits.
    reconnectStrategy: (retries: number, cause: Error): number | Error =>
      state.connected ? Math.min(50 * 2 ** retries, 2_000) : cause,
  }
  const name = 'onceonly'
  if (place.is === 'one') return redis.createClient({ url: place.url, name, socket })
  const { nodes, login: given, tls } = place
  const secured = { ...socket, ...(tls && { tls: true as const }) }
  if (place.is === 'cluster') {
    const rootNodes = nodes.map((node) => ({ socket: { ...secured, ...node } }))
    return redis.createCluster({ rootNodes, defaults: { ...given, name, socket: secured } })
  }
  return redis.createSentinel({
    name: place.name,
    sentinelRootNodes: [...nodes],
    nodeClientOptions: { ...given, name, database: place.database, socket: secured },
    sentinelClientOptions: { ...place.sentinelLogin, name, socket: secured },
  })
}

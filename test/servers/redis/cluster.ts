// A Redis cluster: primaries that share the 16,384 slots. Invariant: it resolves when every node says cluster_state:ok and
// knows all the others; until then commands may be refused.
import { pollUntil } from '../poll.ts'
import { redisCommand } from './command.ts'
import { type RedisOptions, startRedisProcess } from '../redis.ts'
import type { Running } from '../server.ts'

export interface ClusterOptions extends RedisOptions {
  nodes?: number
}

export interface RedisCluster extends AsyncDisposable {
  urls: string[]
  nodes: Running[]
  stop(): Promise<void>
}

const slots = 16_384

export async function startCluster({ nodes: count = 3, ...options }: ClusterOptions = {}): Promise<RedisCluster> {
  const nodes: Running[] = []
  const stop = async (): Promise<void> => void (await Promise.all(nodes.map((node) => node.stop())))
  try {
    for (let index = 0; index < count; index += 1) nodes.push(await startNode(options))
    await Promise.all(nodes.map((node, index) => giveSlots(node, index, count)))
    await introduce(nodes)
    for (const node of nodes) await pollUntil('the cluster to form', () => isFormed(node, count))
  } catch (error) {
    await stop()
    throw error
  }
  return { urls: nodes.map((node) => node.url), nodes, stop, [Symbol.asyncDispose]: stop }
}

async function startNode(options: RedisOptions): Promise<Running> {
  const config = { 'cluster-enabled': 'yes', 'cluster-node-timeout': 2_000, ...options.config }
  return startRedisProcess({ ...options, config })
}

async function giveSlots(node: Running, index: number, count: number): Promise<void> {
  const first = Math.floor((index * slots) / count)
  const last = Math.floor(((index + 1) * slots) / count) - 1
  await redisCommand(node.url, 'CLUSTER', 'ADDSLOTSRANGE', first, last)
}

async function introduce([first, ...others]: Running[]): Promise<void> {
  if (!first) return
  for (const [index, other] of others.entries()) {
    // Two nodes with the same epoch would have to settle it between themselves first.
    await redisCommand(other.url, 'CLUSTER', 'SET-CONFIG-EPOCH', index + 2)
    const answer = (await redisCommand(other.url, 'CONFIG', 'GET', 'cluster-port')) as [string, string]
    await redisCommand(first.url, 'CLUSTER', 'MEET', other.host, other.port, answer[1])
  }
}

async function isFormed(node: Running, count: number): Promise<boolean> {
  const info = String(await redisCommand(node.url, 'CLUSTER', 'INFO'))
  return info.includes('cluster_state:ok') && info.includes(`cluster_known_nodes:${count}\r`)
}

// Redis (or Valkey): a server, or a replica of one; sentinels and clusters have files of their own. Invariant: every
// process is a server of its own in a guarded folder of its own.
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pollUntil } from './poll.ts'
import { redisCommand, redisInfo } from './redis/command.ts'
import { redisPlace, redisProgram } from './redis/programs.ts'
import { givenServer, type Running, type Server } from './server.ts'
import { type Place, startServer, type Surroundings } from './server/process.ts'

export interface RedisOptions {
  // Any line of redis.conf: { appendonly: 'yes', 'maxmemory-policy': 'allkeys-lru' }.
  config?: Record<string, string | number>
  // One of `otherRedis`. Default: the one that is installed.
  program?: string
  surroundings?: Surroundings
  startTimeoutMs?: number
}

const urlVariable = 'ONCEONLY_REDIS_URL'
const missing = 'neither redis-server nor valkey-server was found'

export const redis: Server<RedisOptions> = {
  name: 'redis',
  aptPackages: ['redis-server'],
  urlVariable,
  find() {
    const url = process.env[urlVariable]
    if (url) return { found: true, where: url, ours: false }
    const program = redisPlace()
    if (program) return { found: true, where: program, ours: true }
    return { found: false, reason: missing, cure: `npm run servers, or set ${urlVariable}` }
  },
  start: startRedis,
}

export async function startRedis(options: RedisOptions = {}): Promise<Running> {
  const url = process.env[urlVariable]
  if (!url || options.program !== undefined) return startRedisProcess(options)
  if (options.config || options.surroundings)
    throw new Error(`the server given by ${urlVariable} cannot be started with another configuration`)
  return useGiven(url)
}

// Resolves when the replica has the primary's data and follows it.
export async function startReplica(primary: Running, options: RedisOptions = {}): Promise<Running> {
  const config = { replicaof: `${primary.host} ${primary.port}`, ...options.config }
  const replica = await startRedisProcess({ ...options, config })
  try {
    await pollUntil('the replica to follow', async () =>
      (await redisInfo(replica.url)).includes('master_link_status:up'),
    )
    return replica
  } catch (error) {
    await replica.stop()
    throw error
  }
}

// `file` is for what can only be said in a file that the server then rewrites (sentinels).
export async function startRedisProcess(options: RedisOptions, file?: { lines: string[] }): Promise<Running> {
  if (redisPlace(options.program) === undefined) throw new Error(`${missing}; cure: npm run servers`)
  const password = options.config?.['requirepass']
  const urlOf = (port: number): string => `redis://${password ? `:${password}@` : ''}127.0.0.1:${port}`
  return startServer({
    name: 'redis',
    surroundings: options.surroundings,
    command: (place) => {
      const args = commandLine(place, options.config)
      const path = join(place.folder, 'redis.conf')
      return redisProgram(file ? [writeOnce(path, file.lines), ...args, '--sentinel'] : args, options.program)!
    },
    // Another Redis may have taken the port and would answer, too: only the process number tells.
    ready: async ({ port }, pid) => {
      const info = await redisInfo(urlOf(port)).catch(() => '')
      return info.includes(`process_id:${pid}\r\n`) && !info.includes('loading:1\r\n')
    },
    url: ({ port }) => urlOf(port),
    shutDownSignal: 'SIGTERM',
    portTaken: /Address already in use|Failed listening on port/i,
    startTimeoutMs: options.startTimeoutMs,
  })
}

function commandLine({ dataDir, port, secondPort }: Place, given: RedisOptions['config'] = {}): string[] {
  const config = {
    port,
    bind: '127.0.0.1',
    dir: dataDir,
    save: '',
    'repl-diskless-sync-delay': 0,
    // The default is the port + 10,000, among the ports of outgoing connections.
    ...(given['cluster-enabled'] === 'yes' ? { 'cluster-port': secondPort } : {}),
    ...given,
  }
  return Object.entries(config).flatMap(([name, value]) => [`--${name}`, ...words(value)])
}

// After a restart the file holds what the server has learnt since, and must stay.
function writeOnce(path: string, lines: string[]): string {
  try {
    writeFileSync(path, `${lines.join('\n')}\n`, { flag: 'wx' })
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  }
  return path
}

// `save ''` is one empty word; `replicaof host port` is two.
function words(value: string | number): string[] {
  return String(value).split(' ')
}

// A numbered database that is empty and that nobody else has marked as his; emptied and given back at the end.
async function useGiven(url: string): Promise<Running> {
  for (let number = 1; number < 16; number += 1) {
    const own = new URL(url)
    own.pathname = `/${number}`
    if ((await redisCommand(own.href, 'DBSIZE')) !== 0) continue
    if ((await redisCommand(own.href, 'SET', 'onceonly:test:taken', process.pid, 'NX')) !== 'OK') continue
    const stop = async (): Promise<void> => void (await redisCommand(own.href, 'FLUSHDB'))
    return givenServer({ name: 'redis', url: own.href, urlVariable, stop })
  }
  throw new Error(`the server given by ${urlVariable} has no empty database left among 1 to 15`)
}

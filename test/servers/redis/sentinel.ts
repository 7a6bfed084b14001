// Redis Sentinel: three processes that watch a primary and promote its replica when it is gone. Invariant: they resolve
// when each of them knows the replica and the other sentinels; earlier a failover could not be decided.
import { pollUntil } from '../poll.ts'
import { redisCommand } from './command.ts'
import { startRedisProcess } from '../redis.ts'
import type { Running } from '../server.ts'

export interface SentinelOptions {
  count?: number
  replicas?: number
  // How long the primary may be silent before a sentinel takes it for dead.
  downAfterMs?: number
}

export interface Sentinels extends AsyncDisposable {
  // What clients call the primary.
  primaryName: string
  members: Running[]
  // Where the sentinels say that the primary is now.
  primaryUrl(): Promise<string>
  stop(): Promise<void>
}

const primaryName = 'primary'

export async function startSentinels(primary: Running, options: SentinelOptions = {}): Promise<Sentinels> {
  const { count = 3, replicas = 1, downAfterMs = 500 } = options
  const lines = [
    `sentinel monitor ${primaryName} ${primary.host} ${primary.port} ${Math.floor(count / 2) + 1}`,
    `sentinel down-after-milliseconds ${primaryName} ${downAfterMs}`,
    `sentinel failover-timeout ${primaryName} 5000`,
  ]
  const members: Running[] = []
  const stop = async (): Promise<void> => void (await Promise.all(members.map((member) => member.stop())))
  try {
    for (let index = 0; index < count; index += 1) members.push(await startRedisProcess({}, { lines }))
    for (const member of members)
      await pollUntil('the sentinels to know each other', () => knows(member, count, replicas))
  } catch (error) {
    await stop()
    throw error
  }
  return { primaryName, members, primaryUrl: () => primaryUrl(members), stop, [Symbol.asyncDispose]: stop }
}

async function knows(member: Running, count: number, replicas: number): Promise<boolean> {
  // Names and values in turn.
  const answer = (await redisCommand(member.url, 'SENTINEL', 'MASTER', primaryName)) as string[]
  const number = (name: string): number => Number(answer[answer.indexOf(name) + 1])
  return number('num-other-sentinels') === count - 1 && number('num-slaves') >= replicas
}

async function primaryUrl(members: Running[]): Promise<string> {
  for (const member of members) {
    const answer = await redisCommand(member.url, 'SENTINEL', 'GET-MASTER-ADDR-BY-NAME', primaryName).catch(() => null)
    if (Array.isArray(answer)) return `redis://${answer[0]}:${answer[1]}`
  }
  throw new Error('no sentinel answers')
}

// Valkey 8.1 of Debian trixie, unpacked and not installed: it has `SET … IFEQ`, which no Redis of Debian has yet. What can be done to it
// is in redis.ts: it is started as another program of the same kind.
import { otherRedis, redisPlace } from './redis/programs.ts'
import { startRedisProcess, type RedisOptions } from './redis.ts'
import type { Running, Server } from './server.ts'

export const valkey: Server<RedisOptions> = {
  name: 'valkey',
  aptPackages: [],
  suitePackages: otherRedis['valkey']!.suitePackages,
  find() {
    const program = redisPlace('valkey')
    if (program) return { found: true, where: program, ours: true }
    return { found: false, reason: 'valkey-server was not found in .servers', cure: 'npm run servers' }
  },
  start: startValkey,
}

export async function startValkey(options: RedisOptions = {}): Promise<Running> {
  return startRedisProcess({ ...options, program: 'valkey' })
}

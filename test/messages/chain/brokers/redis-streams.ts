// Redis Streams in the chain: a server that writes its file with every command.
import { createClient } from 'redis'
import { type RedisClient, redisStreamConsumer, redisStreamPublisher } from '../../../../src/messages/redis-streams.ts'
import { startRedis } from '../../../servers/redis.ts'
import { type ChainBroker, killed, topic } from '../broker.ts'

export const redisStreams: ChainBroker = {
  async start() {
    const server = await startRedis({ config: { appendonly: 'yes', appendfsync: 'always' } })
    return killed(server, server.url)
  },
  publisher: async (place) => redisStreamPublisher({ client: await redisAt(place), timeoutMs: 1_000 }),
  consume: async ({ place, inbox, name }, handler) => {
    const at = { stream: topic, group: 'chain', consumerName: name, timeoutMs: 1_000, claimAfterMs: 5_000 }
    return redisStreamConsumer({ client: await redisAt(place), ...at, inbox }, handler)
  },
}

async function redisAt(url: string): Promise<RedisClient> {
  const client = createClient({ url })
  client.on('error', () => {})
  await client.connect()
  return client
}

// A consumer that takes messages and never finishes one: the tests kill it. Says so as soon as it has one in hand.
import { createClient } from 'redis'
import { redisStreamConsumer } from '../../src/messages/redis-streams.ts'
import { rememberingReceiver } from './remembering-receiver.ts'

const [url, stream, group] = process.argv.slice(2) as [string, string, string]
const client = await createClient({ url }).connect()
const place = { client, stream, group, consumerName: 'killed' }
const consuming = redisStreamConsumer({ ...place, inbox: rememberingReceiver() }, async (_tx, message) => {
  process.send?.(message.id)
  await new Promise(() => {})
})
await consuming.ended

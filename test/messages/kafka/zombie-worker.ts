// A consumer without an inbox, to be halted: it takes its time over a message, and prints whether its offset was committed.
import { kafkaConsumer } from '../../../src/messages/kafka.ts'
import { clientsOn, memoryReceiver } from './world.ts'

export interface ZombieWorker {
  readonly client: string
  readonly url: string
  readonly topic: string
  readonly group: string
  readonly sessionMs: number
  readonly pauseMs: number
}

const { client: name, url, topic, group, sessionMs, pauseMs } = JSON.parse(process.argv[2]!) as ZombieWorker
const client = clientsOn[name]!(url)
const isolation = client.abilities.readCommitted ? 'read_committed' : 'read_uncommitted'

kafkaConsumer(
  {
    client,
    topics: [topic],
    group,
    isolation,
    sessionMs,
    inbox: {
      ...memoryReceiver(),
      async deliver(message, handler, acknowledge) {
        await handler(undefined, message)
        try {
          await acknowledge()
          process.stdout.write(`committed ${message.id}\n`)
          return { acknowledged: true }
        } catch (error) {
          process.stdout.write(`refused ${message.id}\n`)
          return { acknowledged: false, retryAfterMs: 100, error }
        }
      },
    },
  },
  async (_, message) => {
    process.stdout.write(`begun ${message.id}\n`)
    await new Promise((resolve) => setTimeout(resolve, pauseMs))
  },
)

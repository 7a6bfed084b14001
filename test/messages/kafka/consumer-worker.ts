// A consumer with a real inbox on SQLite, to be killed and halted. Its effect is a row in a ledger without constraints: what took
// effect twice stands there twice.
import { createOnce } from '../../../src/index.ts'
import { createInbox } from '../../../src/messages/inbox.ts'
import { kafkaConsumer } from '../../../src/messages/kafka.ts'
import { sqliteStore } from '../../../src/stores/sqlite.ts'
import { clientsOn } from './world.ts'

export interface ConsumerWorker {
  readonly client: string
  readonly url: string
  readonly topic: string
  readonly group: string
  readonly path: string
  readonly sessionMs: number
  /** How long each handler takes. */
  readonly pauseMs: number
  readonly offsets?: 'kafka' | 'database'
  /** Dies when the transaction of this message has committed, before Kafka is told. */
  readonly dieAfter?: string
}

const {
  client: name,
  url,
  topic,
  group,
  path,
  sessionMs,
  pauseMs,
  offsets = 'kafka',
  dieAfter,
} = JSON.parse(process.argv[2]!) as ConsumerWorker
const client = clientsOn[name]!(url)
const once = createOnce({ store: sqliteStore({ path }), scope: 'test' })
const inbox = createInbox(once, { consumer: 'test' })
await inbox.migrate()

const consuming = kafkaConsumer(
  {
    client,
    topics: [topic],
    group,
    inbox: {
      ...inbox,
      deliver(message, handler, acknowledge) {
        process.stdout.write(`delivered ${message.id}\n`)
        return inbox.deliver(message, handler, async () => {
          if (message.id === dieAfter) process.kill(process.pid, 'SIGKILL')
          await acknowledge()
        })
      },
    },
    offsets,
    sessionMs,
    ...(!client.abilities.readCommitted && { isolation: 'read_uncommitted' as const }),
  },
  async (tx, message) => {
    process.stdout.write(`begun ${message.id}\n`)
    if (pauseMs > 0) await new Promise((resolve) => setTimeout(resolve, pauseMs))
    tx.prepare('insert into ledger (partition, id) values (?, ?)').run(message.raw.partition, message.id!)
  },
)
process.on('SIGTERM', () => void consuming.stop())
process.stdout.write('ready\n')
await consuming.ended
process.exit(0)

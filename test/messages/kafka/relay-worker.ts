// A relay with the transactional publisher, to be killed and halted. Its outbox lies in a SQLite file. It can kill or halt itself at a
// point that a signal from outside would rarely hit.
import { createOutbox, createRelay } from '../../../src/messages/outbox.ts'
import { kafkaTransactionalPublisher } from '../../../src/messages/kafka.ts'
import { sqliteStore } from '../../../src/stores/sqlite.ts'
import { confluentOn } from './world.ts'

export type RelayPoint = 'before open' | 'before commit' | 'after commit' | 'after mark'

export interface RelayWorker {
  readonly url: string
  readonly path: string
  readonly transactionalId: string
  readonly controlTopic: string
  readonly leaseMs: number
  readonly batch: number
  /** What it does to itself, and how many times it passes the point before. */
  readonly plan?: {
    readonly signal: 'SIGKILL' | 'SIGSTOP'
    readonly point: RelayPoint
    readonly after: number
  }
}

const { url, path, leaseMs, batch, plan, ...options } = JSON.parse(process.argv[2]!) as RelayWorker
let passed = 0

/** Ends or stands still here, if that is the plan. */
function pass(point: RelayPoint): void {
  if (plan?.point !== point || passed++ !== plan.after) return
  process.stdout.write(`${plan.signal}\n`)
  process.kill(process.pid, plan.signal)
}

const confluent = confluentOn(url)
const client: typeof confluent = {
  ...confluent,
  async transactionalProducer(...given) {
    pass('before open')
    const producer = await confluent.transactionalProducer(...given)
    const [produce, commit] = [producer.produce.bind(producer), producer.commitTransaction.bind(producer)]
    // The commit of an epoch holds no row. It is no point of its own: what follows it is what a new relay does.
    let rows = 0
    producer.produce = (topic, ...rest) => {
      if (topic !== options.controlTopic) rows++
      return produce(topic, ...rest)
    }
    // The broker has all records of a transaction before its commit.
    const { flush } = producer as unknown as { flush(timeoutMs: number, done: () => void): void }
    producer.commitTransaction = (timeoutMs, done) =>
      flush.call(producer, timeoutMs, () => {
        const hasRows = rows > 0
        rows = 0
        if (hasRows) pass('before commit')
        commit(timeoutMs, (error, answer) => {
          if (hasRows) pass('after commit')
          done(error, answer)
        })
      })
    return producer
  },
}
const outbox = createOutbox({ store: sqliteStore({ path }), source: 'test', shards: 2 })
const relay = createRelay({
  outbox: {
    ...outbox,
    rows: {
      ...outbox.rows,
      async mark(...given) {
        const marked = await outbox.rows.mark(...given)
        pass('after mark')
        return marked
      },
    },
  },
  publisher: kafkaTransactionalPublisher({ client, ...options }),
  leaseMs,
  batch,
})
relay.start()
process.on('SIGTERM', () => void relay.stop().then(() => process.exit(0)))
process.stdout.write('ready\n')

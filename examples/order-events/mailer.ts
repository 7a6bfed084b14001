// The mailer writes one mail per order. A message that Kafka delivers again is marked already, in the transaction that wrote its mail.
// DATABASE_URL=postgres://… KAFKA_BROKER=host:port node examples/order-events/mailer.ts

import { Kafka, logLevel } from 'kafkajs'
import pg from 'pg'
import { createOnce } from 'onceonly'
import { createInbox } from 'onceonly/inbox'
import { kafkaConsumer, kafkajsClient } from 'onceonly/kafka'
import { postgresStore } from 'onceonly/postgres'

const pool = new pg.Pool({ connectionString: process.env['DATABASE_URL'] })
const once = createOnce({ store: postgresStore({ pool }), scope: 'shop' })
const inbox = createInbox(once, { consumer: 'mailer' })
await inbox.migrate()
await pool.query(
  `create table if not exists mails (number bigint generated always as identity, order_id text, customer text)`,
)

const client = kafkajsClient(new Kafka({ brokers: [process.env['KAFKA_BROKER']!], logLevel: logLevel.NOTHING }))
// A short session, so that the next mailer gets the partitions soon when this one is killed.
const group = { client, topics: ['orders'], group: 'mailer', inbox, sessionMs: 3_000 }
const consuming = kafkaConsumer(group, async (tx, { body }) => {
  const { id, customer } = JSON.parse(Buffer.from(body).toString()) as { id: string; customer: string }
  await tx.query('insert into mails (order_id, customer) values ($1, $2)', [id, customer])
})
process.once('SIGTERM', () => void consuming.stop().then(() => process.exit()))

// The relay publishes to Kafka what the shop's outbox holds, until it is told to stop. Run as many as you like.
// DATABASE_URL=postgres://… KAFKA_BROKER=host:port node examples/order-events/relay.ts

import { Kafka, logLevel } from 'kafkajs'
import pg from 'pg'
import { kafkajsClient, kafkaPublisher } from 'onceonly/kafka'
import { createOutbox, createRelay } from 'onceonly/outbox'
import { postgresStore } from 'onceonly/postgres'

const pool = new pg.Pool({ connectionString: process.env['DATABASE_URL'] })
const outbox = createOutbox({ store: postgresStore({ pool }), source: 'shop' })
const client = kafkajsClient(new Kafka({ brokers: [process.env['KAFKA_BROKER']!], logLevel: logLevel.NOTHING }))
// A short lease, so that the next relay takes over soon when this one is killed.
const relay = createRelay({ outbox, publisher: kafkaPublisher({ client }), leaseMs: 1_000 })
relay.start()
process.once('SIGTERM', () => void relay.stop().then(() => process.exit()))

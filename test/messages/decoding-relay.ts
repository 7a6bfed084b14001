// A relay with logical decoding as a process that can be killed: `decoding-relay.ts DATABASE SLOT`. Its broker is a table without
// constraints. It says when it has published, so that a kill can be aimed between two messages.
import pg from 'pg'
import { createDecoding, createOutbox, createRelay } from '../../src/messages/outbox.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import { requireReplication } from '../servers/pg-logical-replication.ts'

const [connectionString, slot] = process.argv.slice(2) as [string, string]
process.on('disconnect', () => process.exit(1))
const pool = new pg.Pool({ connectionString, max: 8 })
pool.on('error', () => {})
const outbox = createOutbox({ store: postgresStore({ pool }), source: 'shop' })
const decoding = createDecoding({ outbox, library: requireReplication(), connection: { connectionString }, slot })
const relay = createRelay({
  outbox: decoding,
  batch: 5,
  // A killed relay keeps its shards for this long.
  leaseMs: 1_000,
  publisher: {
    name: 'table',
    async publish(messages) {
      for (const { id, key } of messages) {
        await pool.query('insert into arrived (id, key) values ($1, $2)', [id, key])
        process.send?.('published')
      }
      return messages.map(() => undefined)
    },
  },
})
relay.start()

// The programs of docs/messaging.md about outbox and relay run as written.

import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { afterAll, expect, test } from 'vitest'
import { needs } from '../../servers/needs.ts'
import { startPostgres } from '../../servers/postgres.ts'
import { take } from '../blocks.ts'
import { openPrograms } from '../programs.ts'

const running = openPrograms()
afterAll(() => running[Symbol.dispose]())

// The one that publishes to Kafka is run by kafka.ts.
const programs = take(
  'docs/messaging.md',
  (code) => code.includes("'onceonly/outbox'") && !code.includes("'onceonly/kafka'"),
)

test('outbox: an event that is committed is published', async () => {
  expect(programs).toHaveLength(2)
  const end = `
while ((await outbox.status()).unsent > 0) await new Promise((resolve) => setTimeout(resolve, 20))
await relay.stop()
await once.close()
`
  expect(await running.run('outbox', `${programs[0]!.code}${end}`)).toBe('orders order-42 order.placed {"total":1999}')
})

needs(['postgres', 'pg-logical-replication'], { ours: true }).test(
  'outbox: a relay with logical decoding',
  async () => {
    await using server = await startPostgres({ settings: { wal_level: 'logical' } })
    const world = pathToFileURL(join(import.meta.dirname, '../../servers/pg-logical-replication.ts')).href
    const library = `import { requireReplication } from '${world}'\nconst library: ReplicationLibrary = requireReplication()`
    const { code } = programs[1]!
    expect(code).toContain('declare const library')
    const end = `
while ((await outbox.status()).unsent > 0) await new Promise((resolve) => setTimeout(resolve, 20))
await relay.stop()
await decoding.drop()
await once.close()
process.exit(0)
`
    const program = code.replace(/^declare const library.*$/m, library) + end
    expect(await running.run('decoding', program, [], { DATABASE_URL: server.url })).toBe('orders order-42')
  },
)

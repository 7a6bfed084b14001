// PgBouncer in transaction mode, in front of a PostgreSQL that is already started: every transaction may get another session.
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import pg from 'pg'
import { findProgram } from './find-program.ts'
import { postgresOwner } from './postgres/programs.ts'
import type { Running, Server } from './server.ts'
import { startServer } from './server/process.ts'

export interface PgbouncerOptions {
  // The server behind it.
  server: Running
}

const urlVariable = 'ONCEONLY_PGBOUNCER_URL'

export const pgbouncer: Server<PgbouncerOptions> = {
  name: 'pgbouncer',
  aptPackages: ['pgbouncer'],
  urlVariable,
  find() {
    const where = findProgram('pgbouncer')
    if (where) return { found: true, where, ours: true }
    return { found: false, reason: 'pgbouncer was not found', cure: 'npm run servers' }
  },
  start: (options) => startPgbouncer(options!.server),
}

export async function startPgbouncer(server: Running): Promise<Running> {
  const program = findProgram('pgbouncer')
  if (!program) throw new Error('pgbouncer was not found; cure: npm run servers')
  return startServer({
    name: 'pgbouncer',
    owner: postgresOwner(),
    command({ folder, port }) {
      const file = join(folder, 'pgbouncer.ini')
      writeFileSync(file, settings(server, port), { mode: 0o644 })
      return { file: program, args: [file] }
    },
    ready: ({ port }) => answers(urlOf(port)),
    url: ({ port }) => urlOf(port),
    shutDownSignal: 'SIGINT',
    portTaken: /cannot listen|Address already in use/,
  })
}

function urlOf(port: number): string {
  return `postgres://postgres@127.0.0.1:${port}/postgres`
}

// Fewer sessions than its clients have connections, so that they really share.
function settings(server: Running, port: number): string {
  return `[databases]
* = host=127.0.0.1 port=${server.port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 6
`
}

async function answers(url: string): Promise<boolean> {
  const client = new pg.Client({ connectionString: url })
  client.on('error', () => {})
  try {
    await client.connect()
    await client.query('select 1')
    return true
  } catch {
    return false
  } finally {
    await client.end().catch(() => {})
  }
}

// The client of logical decoding, for the tests of createDecoding. No server, but had in the same way: an npm package of its own, as a
// user brings it.
import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import type { ReplicationLibrary } from '../../src/messages/outbox.ts'
import type { Server } from './server.ts'

const folder = join(import.meta.dirname, 'packages', 'pg-logical-replication')
const library = join(folder, 'node_modules', 'pg-logical-replication')

export const pgLogicalReplication: Server = {
  name: 'pg-logical-replication',
  aptPackages: [],
  npmPackage: 'pg-logical-replication',
  find() {
    if (existsSync(library)) return { found: true, where: library, ours: true }
    return { found: false, reason: 'pg-logical-replication is not installed', cure: 'npm run servers' }
  },
  async start() {
    throw new Error('pg-logical-replication is a library, not a server')
  },
}

export function requireReplication(): ReplicationLibrary {
  return createRequire(join(folder, 'package.json'))('pg-logical-replication') as ReplicationLibrary
}

// libfaketime, which moves the clock of a process. No server, but had in the same way.
import { globSync } from 'node:fs'
import type { Server } from './server.ts'

export const faketime: Server = {
  name: 'faketime',
  aptPackages: ['libfaketime'],
  urlVariable: 'ONCEONLY_FAKETIME_URL',
  find() {
    const [where] = globSync('/usr/lib/*/faketime/libfaketime.so.1')
    if (where) return { found: true, where, ours: true }
    return { found: false, reason: 'libfaketime was not found', cure: 'npm run servers' }
  },
  async start() {
    throw new Error('faketime is a library, not a server')
  },
}

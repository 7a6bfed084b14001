// SPIN, the model checker, with the compiler that it needs. No server, but had in the same way.
import { findProgram } from './find-program.ts'
import type { Server } from './server.ts'

export const spin: Server = {
  name: 'spin',
  aptPackages: ['spin', 'gcc', 'libc6-dev'],
  urlVariable: 'ONCEONLY_SPIN_URL',
  find() {
    const missing = ['spin', 'gcc'].filter((program) => !findProgram(program))
    if (missing.length === 0) return { found: true, where: findProgram('spin')!, ours: true }
    return { found: false, reason: `${missing.join(' and ')} not found`, cure: 'npm run servers' }
  },
  async start() {
    throw new Error('spin is a program, not a server')
  },
}

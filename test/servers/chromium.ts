// Chromium, for the pages as a person sees them. No server, but had in the same way; playwright-core drives it.
import { findProgram } from './find-program.ts'
import type { Server } from './server.ts'

export const chromium: Server = {
  name: 'chromium',
  aptPackages: ['chromium'],
  urlVariable: 'ONCEONLY_CHROMIUM_URL',
  find() {
    const where = findProgram('chromium', 'chromium-browser', 'google-chrome')
    if (where) return { found: true, where, ours: true }
    return { found: false, reason: 'chromium was not found', cure: 'npm run servers' }
  },
  async start() {
    throw new Error('chromium is a program, not a server')
  },
}

// The official verifier of Standard Webhooks, which must verify what we sign. No server, but had in the same way: an npm package of its
// own.
import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import type { Server } from './server.ts'

const folder = join(import.meta.dirname, 'packages', 'standardwebhooks')
const library = join(folder, 'node_modules', 'standardwebhooks')

export const standardwebhooks: Server = {
  name: 'standardwebhooks',
  aptPackages: [],
  npmPackage: 'standardwebhooks',
  find() {
    if (existsSync(library)) return { found: true, where: library, ours: true }
    return { found: false, reason: 'standardwebhooks is not installed', cure: 'npm run servers' }
  },
  async start() {
    throw new Error('standardwebhooks is a library, not a server')
  },
}

/** The part of the official package that the tests and the bench use. */
export interface OfficialWebhook {
  verify(payload: string | Buffer, headers: Record<string, string>, options?: { jsonParse?: boolean }): unknown
  sign(id: string, timestamp: Date, payload: string | Buffer): string
}

export function requireStandardWebhooks(): new (secret: string) => OfficialWebhook {
  const required = createRequire(join(folder, 'package.json'))('standardwebhooks') as {
    readonly Webhook: new (secret: string) => OfficialWebhook
  }
  return required.Webhook
}

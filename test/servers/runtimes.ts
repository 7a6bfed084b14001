// What runs JavaScript besides our own Node, and Next.js: from npm, each in a package of its own. No servers, but had in the same way.
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import type { Server } from './server.ts'

const packages = join(import.meta.dirname, 'packages')

/** `file` is in the node_modules of the package. */
function fromNpm(name: string, file: string): Server {
  const where = join(packages, name, 'node_modules', file)
  return {
    name,
    aptPackages: [],
    npmPackage: name,
    find() {
      if (existsSync(where)) return { found: true, where, ours: true }
      return { found: false, reason: `${name} is not installed`, cure: 'npm run servers' }
    },
    async start() {
      throw new Error(`${name} is a program, not a server`)
    },
  }
}

/** The oldest Node of `engines`. */
export const node22: Server = fromNpm('node22', 'node/bin/node')
export const bun: Server = fromNpm('bun', 'bun/bin/bun.exe')
export const deno: Server = fromNpm('deno', 'deno/deno')
export const next: Server = fromNpm('next', 'next/dist/bin/next')

// Prisma, for `once.within(tx)` in its transactions. No server, but had in the same way: an npm package of its own, which is too heavy
// for everybody's `npm ci`. Its client is generated from schema.prisma, without the engine that it would download.
import { execFileSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import type { Server } from './server.ts'

const folder = join(import.meta.dirname, 'packages', 'prisma')
const program = join(folder, 'node_modules', 'prisma', 'build', 'index.js')
const generated = join(folder, 'node_modules', 'generated', 'client.js')

export const prisma: Server = {
  name: 'prisma',
  aptPackages: [],
  npmPackage: 'prisma',
  find() {
    if (existsSync(program)) return { found: true, where: folder, ours: true }
    return { found: false, reason: 'Prisma is not installed', cure: 'npm run servers' }
  },
  async start() {
    throw new Error('prisma is a library, not a server')
  },
}

// The part of a PrismaClient that the tests use.
export interface PrismaClient {
  $transaction<T>(work: (tx: PrismaTx) => Promise<T>): Promise<T>
  $disconnect(): Promise<void>
}

export interface PrismaTx {
  readonly effect: { create(row: { data: { name: string } }): Promise<unknown> }
  $queryRawUnsafe<T>(text: string, ...values: unknown[]): Promise<T>
  $executeRawUnsafe(text: string, ...values: unknown[]): Promise<number>
}

export async function createPrismaClient(url: string): Promise<PrismaClient> {
  // /bin/true in place of the schema engine, which only migrations need.
  if (!existsSync(generated)) {
    execFileSync(process.execPath, [program, 'generate', '--schema', 'schema.prisma'], {
      cwd: folder,
      env: { ...process.env, PRISMA_SCHEMA_ENGINE_BINARY: '/bin/true' },
    })
  }
  const adapter = createRequire(join(folder, 'package.json')).resolve('@prisma/adapter-pg')
  const { PrismaPg } = (await import(pathToFileURL(adapter).href)) as {
    PrismaPg: new (options: { connectionString: string }) => object
  }
  const { PrismaClient } = (await import(pathToFileURL(generated).href)) as {
    PrismaClient: new (options: { adapter: object }) => PrismaClient
  }
  return new PrismaClient({ adapter: new PrismaPg({ connectionString: url }) })
}

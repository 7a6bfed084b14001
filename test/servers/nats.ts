// NATS with JetStream, unpacked from Debian trixie: a Go program that needs nothing else. Invariant: its streams are in files of its
// own folder, written through at once, so that what it has acknowledged survives a crash.
import { existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { listensOn } from './listens-on.ts'
import { givenServer, type Running, type Server } from './server.ts'
import { type Recipe, startServer } from './server/process.ts'
import { suiteFolder, type SuitePackages } from './suite-folder.ts'

export interface NatsOptions {
  startTimeoutMs?: number
}

const urlVariable = 'ONCEONLY_NATS_URL'
const suitePackages: SuitePackages = { suite: 'trixie', packages: ['nats-server'] }
const program = join(suiteFolder(suitePackages), 'usr/sbin/nats-server')
const missing = 'nats-server was not found in .servers'

export const nats: Server<NatsOptions> = {
  name: 'nats',
  aptPackages: [],
  suitePackages,
  urlVariable,
  find() {
    const url = process.env[urlVariable]
    if (url) return { found: true, where: url, ours: false }
    if (existsSync(program)) return { found: true, where: program, ours: true }
    return { found: false, reason: missing, cure: `npm run servers, or set ${urlVariable}` }
  },
  start: startNats,
}

export async function startNats(options: NatsOptions = {}): Promise<Running> {
  return given() ?? startServer(recipeOf(options))
}

function given(): Running | undefined {
  const url = process.env[urlVariable]
  return url ? givenServer({ name: 'nats', url, urlVariable, stop: async () => {} }) : undefined
}

function recipeOf(options: NatsOptions): Recipe {
  if (!existsSync(program)) throw new Error(`${missing}; cure: npm run servers`)
  return {
    name: 'nats',
    command: ({ folder, dataDir, port }) => {
      const file = join(folder, 'nats.conf')
      // Without sync_interval it may forget what it acknowledged in the last two minutes when the machine dies.
      writeFileSync(file, `listen: "127.0.0.1:${port}"\njetstream { store_dir: "${dataDir}", sync_interval: always }\n`)
      return { file: program, args: ['-c', file] }
    },
    ready: ({ port }, pid) => listensOn(pid, port),
    url: ({ port }) => `nats://127.0.0.1:${port}`,
    shutDownSignal: 'SIGTERM',
    portTaken: /address already in use/,
    startTimeoutMs: options.startTimeoutMs,
  }
}

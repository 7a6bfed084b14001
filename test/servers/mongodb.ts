// A server that speaks MongoDB's protocol: mongo-java-server, from Maven, as no mongod can be had from a registry. Invariant: it
// keeps its data in a file, and what it has acknowledged survives a crash.
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { findProgram } from './find-program.ts'
import { listensOn } from './listens-on.ts'
import { mavenFolder } from './maven-folder.ts'
import { programOf } from './mongodb/program.ts'
import { givenServer, type Running, type Server } from './server.ts'
import { startServer, type Surroundings } from './server/process.ts'

export interface MongodbOptions {
  surroundings?: Surroundings
  startTimeoutMs?: number
}

const urlVariable = 'ONCEONLY_MONGODB_URL'
const mavenArtefacts = ['de.bwaldvogel:mongo-java-server-h2-backend:1.47.0', 'org.mozilla:rhino-all:1.9.1']

export const mongodb: Server<MongodbOptions> = {
  name: 'mongodb',
  get aptPackages() {
    return [...(findProgram('java') ? [] : ['openjdk-17-jre-headless']), ...(findProgram('mvn') ? [] : ['maven'])]
  },
  mavenArtefacts,
  urlVariable,
  find() {
    const url = process.env[urlVariable]
    if (url) return { found: true, where: url, ours: false }
    const missing = whatIsMissing()
    if (!missing) return { found: true, where: mavenFolder(mavenArtefacts), ours: true }
    return { found: false, reason: missing, cure: `npm run servers, or set ${urlVariable}` }
  },
  start: startMongodb,
}

export async function startMongodb(options: MongodbOptions = {}): Promise<Running> {
  const url = process.env[urlVariable]
  if (url) return givenServer({ name: 'mongodb', url, urlVariable, stop: async () => {} })
  const missing = whatIsMissing()
  if (missing) throw new Error(`${missing}; cure: npm run servers`)
  const java = findProgram('java')!
  return startServer({
    name: 'mongodb',
    surroundings: options.surroundings,
    command: ({ dataDir, port }) => ({ file: java, args: commandLine(dataDir, port) }),
    // It opens its file before it listens.
    ready: ({ port }, pid) => listensOn(pid, port),
    url: ({ port }) => `mongodb://127.0.0.1:${port}/?directConnection=true`,
    shutDownSignal: 'SIGTERM',
    portTaken: /BindException: Address already in use/,
    startTimeoutMs: options.startTimeoutMs,
  })
}

function commandLine(dataDir: string, port: number): string[] {
  // Small and quick to start: the tests want correctness of it, not throughput.
  const machine = ['-Xmx256m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1', '-cp', `${mavenFolder(mavenArtefacts)}/*`]
  const place = { port, dataFile: join(dataDir, 'data.mv'), clockFile: join(dataDir, 'clock') }
  return [...machine, 'org.mozilla.javascript.tools.shell.Main', '-version', '200', '-e', programOf(place)]
}

function whatIsMissing(): string | undefined {
  if (!findProgram('java')) return 'java was not found'
  return existsSync(mavenFolder(mavenArtefacts)) ? undefined : 'mongo-java-server was not found in .servers'
}

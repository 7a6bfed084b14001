// DynamoDB Local, Amazon's own, from Maven. Invariant: it keeps its tables in a file, so that they survive a crash, and all
// regions and credentials see the same ones.
import { existsSync } from 'node:fs'
import { findProgram } from './find-program.ts'
import { listensOn } from './listens-on.ts'
import { mavenFolder } from './maven-folder.ts'
import { givenServer, type Running, type Server } from './server.ts'
import { startServer, type Surroundings } from './server/process.ts'

export interface DynamodbOptions {
  surroundings?: Surroundings
  startTimeoutMs?: number
}

const urlVariable = 'ONCEONLY_DYNAMODB_URL'
// 3.3.1 is newer, but four of the libraries that its pom names (awssdk 2.48.3) could not be had from Maven Central.
const mavenArtefacts = ['software.amazon.dynamodb:DynamoDBLocal:3.1.0']
const mainClass = 'software.amazon.dynamodb.services.local.main.ServerRunner'

export const dynamodb: Server<DynamodbOptions> = {
  name: 'dynamodb',
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
  start: startDynamodb,
}

export async function startDynamodb(options: DynamodbOptions = {}): Promise<Running> {
  const url = process.env[urlVariable]
  if (url) return givenServer({ name: 'dynamodb', url, urlVariable, stop: async () => {} })
  const missing = whatIsMissing()
  if (missing) throw new Error(`${missing}; cure: npm run servers`)
  const java = findProgram('java')!
  return startServer({
    name: 'dynamodb',
    surroundings: options.surroundings,
    command: ({ dataDir, port }) => ({ file: java, args: commandLine(dataDir, port) }),
    ready: async ({ port }, pid) => listensOn(pid, port) && (await answers(port)),
    url: ({ port }) => `http://127.0.0.1:${port}`,
    shutDownSignal: 'SIGTERM',
    portTaken: /BindException: Address already in use/,
    startTimeoutMs: options.startTimeoutMs,
  })
}

function commandLine(dataDir: string, port: number): string[] {
  const folder = mavenFolder(mavenArtefacts)
  // Small and quick to start: the tests want correctness of it, not throughput.
  const machine = ['-Xmx256m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1', `-Djava.library.path=${folder}`]
  const settings = ['-port', String(port), '-dbPath', dataDir, '-sharedDb', '-disableTelemetry']
  return [...machine, '-cp', `${folder}/*`, mainClass, ...settings]
}

function whatIsMissing(): string | undefined {
  if (!findProgram('java')) return 'java was not found'
  return existsSync(mavenFolder(mavenArtefacts)) ? undefined : 'DynamoDB Local was not found in .servers'
}

// Any answer will do; without a signature it is a refusal.
async function answers(port: number): Promise<boolean> {
  try {
    await (await fetch(`http://127.0.0.1:${port}/`, { method: 'POST', body: '{}' })).body?.cancel()
    return true
  } catch {
    return false
  }
}

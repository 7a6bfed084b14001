// ElasticMQ, a server that speaks the protocol of SQS, from Maven. Invariant: queues and messages are in files, so that they survive
// a crash. What does not: which deduplication ids a FIFO queue has seen.
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { findProgram } from './find-program.ts'
import { listensOn } from './listens-on.ts'
import { mavenFolder } from './maven-folder.ts'
import { givenServer, type Running, type Server } from './server.ts'
import { type Place, startServer } from './server/process.ts'

export interface ElasticmqOptions {
  startTimeoutMs?: number
}

const urlVariable = 'ONCEONLY_SQS_URL'
const mavenArtefacts = ['org.elasticmq:elasticmq-server_3:1.7.1']

export const elasticmq: Server<ElasticmqOptions> = {
  name: 'elasticmq',
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
  start: startElasticmq,
}

export async function startElasticmq(options: ElasticmqOptions = {}): Promise<Running> {
  const url = process.env[urlVariable]
  if (url) return givenServer({ name: 'elasticmq', url, urlVariable, stop: async () => {} })
  const missing = whatIsMissing()
  if (missing) throw new Error(`${missing}; cure: npm run servers`)
  const java = findProgram('java')!
  return startServer({
    name: 'elasticmq',
    command: (place) => ({ file: java, args: commandLine(place) }),
    ready: async (place, pid) => listensOn(pid, place.port) && hasItsQueues(place) && (await answers(place.port)),
    url: ({ port }) => `http://127.0.0.1:${port}`,
    shutDownSignal: 'SIGTERM',
    // It says so and stays: launch ends it.
    portTaken: /Cannot start SQS rest server/,
    startTimeoutMs: options.startTimeoutMs,
  })
}

function commandLine(place: Place): string[] {
  const file = join(place.folder, 'elasticmq.conf')
  writeFileSync(file, configuration(place))
  // Small and quick to start: the tests want correctness of it, not throughput.
  const machine = ['-Xmx256m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1', `-Dconfig.file=${file}`]
  return [...machine, '-cp', `${mavenFolder(mavenArtefacts)}/*`, 'org.elasticmq.server.Main']
}

// Without WRITE_DELAY=0 the database writes a moment after it has confirmed, and a crash loses what it confirmed.
function configuration({ dataDir, port }: Place): string {
  return `include classpath("application.conf")
node-address { protocol = http, host = "127.0.0.1", port = ${port}, context-path = "" }
rest-sqs { enabled = true, bind-port = ${port}, bind-hostname = "127.0.0.1", sqs-limits = strict }
rest-stats { enabled = false }
messages-storage {
  enabled = true
  driver-class = "org.h2.Driver"
  uri = "jdbc:h2:${join(dataDir, 'messages')};WRITE_DELAY=0"
  username = "sa"
  password = ""
}
queues-storage { enabled = true, path = "${join(dataDir, 'queues.conf')}" }
`
}

function whatIsMissing(): string | undefined {
  if (!findProgram('java')) return 'java was not found'
  return existsSync(mavenFolder(mavenArtefacts)) ? undefined : 'ElasticMQ was not found in .servers'
}

// It listens a moment before it has restored the queues of its earlier lives, and each queue a moment before its messages. Only its log
// tells.
function hasItsQueues({ folder }: Place): boolean {
  const lives = readFileSync(join(folder, 'log'), 'utf8').split('Starting ElasticMQ server')
  const now = lives.pop()!
  const queues = Array.from(lives.join('').matchAll(/Creating queue CreateQueueData\(([\w.-]+),/g), ([, name]) => name!)
  return queues.every((name) => now.includes(`messages in queue ${name}\n`))
}

// Any answer will do; a question without an action is refused.
async function answers(port: number): Promise<boolean> {
  try {
    await (await fetch(`http://127.0.0.1:${port}/`)).body?.cancel()
    return true
  } catch {
    return false
  }
}

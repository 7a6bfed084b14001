// Apache Kafka, one broker that is its own controller (KRaft), from Maven. Invariants: it listens on loopback only, its logs survive a
// crash, and time-outs are short, so that a broker that was killed is back within seconds and a dead consumer is found out soon.
import { randomBytes } from 'node:crypto'
import { cpSync, existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { findProgram } from './find-program.ts'
import { listensOn } from './listens-on.ts'
import { mavenFolder } from './maven-folder.ts'
import { runCommand } from './run-command.ts'
import { builtOnce } from './run-folder.ts'
import { givenServer, type Running, type Server } from './server.ts'
import { type Place, startServer } from './server/process.ts'

export interface KafkaOptions {
  // Clients go where the broker says that it is. So a fault proxy needs a listener of its own on `port`, which tells them `advertisedPort`:
  // the proxy's.
  proxied?: { readonly port: number; readonly advertisedPort: number }
  settings?: Readonly<Record<string, string | number>>
  startTimeoutMs?: number
}

const urlVariable = 'ONCEONLY_KAFKA_URL'
// The second is what writes the log, without which nothing says that the broker is ready.
const mavenArtefacts = ['org.apache.kafka:kafka_2.13:4.3.1', 'org.apache.logging.log4j:log4j-slf4j-impl:2.25.4']
const folder = mavenFolder(mavenArtefacts)
// The classes of a broker that has run once, which halves its start (3.0 to 1.7 s). Java ignores an archive that does not fit.
const classArchive = join(folder, 'kafka.jsa')

export const kafka: Server<KafkaOptions> = {
  name: 'kafka',
  get aptPackages() {
    // With the compiler, which a program that is one source file needs (kafkaJava).
    return [...(findProgram('javac') ? [] : ['openjdk-17-jdk-headless']), ...(findProgram('mvn') ? [] : ['maven'])]
  },
  mavenArtefacts,
  urlVariable,
  find() {
    const url = process.env[urlVariable]
    if (url) return { found: true, where: url, ours: false }
    const missing = whatIsMissing()
    if (!missing) return { found: true, where: folder, ours: true }
    return { found: false, reason: missing, cure: `npm run servers, or set ${urlVariable}` }
  },
  async finishInstall() {
    const server = await startBroker({}, [`-XX:ArchiveClassesAtExit=${classArchive}`])
    await server.shutDown()
    await server.stop()
  },
  start: startKafka,
}

export async function startKafka(options: KafkaOptions = {}): Promise<Running> {
  const url = process.env[urlVariable]
  if (url) return givenServer({ name: 'kafka', url, urlVariable, stop: async () => {} })
  const missing = whatIsMissing()
  if (missing) throw new Error(`${missing}; cure: npm run servers`)
  return startBroker(options, existsSync(classArchive) ? [`-XX:SharedArchiveFile=${classArchive}`] : [])
}

// The command line of a Java program that is one source file, and that has the classes of Kafka.
export function kafkaJava(sourceFile: string, args: readonly string[]): { file: string; args: string[] } {
  return { file: findProgram('java')!, args: [...machine, '-cp', `${folder}/*`, sourceFile, ...args] }
}

const machine = ['-Xmx512m', '-Xms64m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1']

function startBroker(options: KafkaOptions, archive: string[]): Promise<Running> {
  const java = findProgram('java')!
  // The log goes on over a restart: ready is what says so after this length.
  let logStart = 0
  return startServer({
    name: 'kafka',
    prepare: async ({ dataDir }) => cpSync(await pristine(java), dataDir, { recursive: true }),
    command: (place) => {
      logStart = statSync(join(place.folder, 'log')).size
      writeFileSync(join(place.folder, 'server.properties'), propertiesOf(place, options))
      const logging = `-Dlog4j2.configurationFile=${loggingFile(place.folder)}`
      const args = [...machine, ...archive, logging, '-cp', `${folder}/*`, 'kafka.Kafka']
      return { file: java, args: [...args, join(place.folder, 'server.properties')] }
    },
    ready: (place, pid) =>
      readFileSync(join(place.folder, 'log')).subarray(logStart).includes('Kafka Server started') &&
      listensOn(pid, place.port),
    url: ({ port }) => `kafka://127.0.0.1:${port}`,
    shutDownSignal: 'SIGTERM',
    portTaken: /Address already in use/,
    startTimeoutMs: options.startTimeoutMs,
  })
}

function whatIsMissing(): string | undefined {
  if (!findProgram('java')) return 'java was not found'
  if (!findProgram('javac')) return 'javac was not found'
  return existsSync(folder) ? undefined : 'Kafka was not found in .servers'
}

// No port is stored, so one folder serves every broker of the run.
function pristine(java: string): Promise<string> {
  return builtOnce('pristine-kafka', async (path, run) => {
    mkdirSync(path)
    const file = join(path, 'format.properties')
    writeFileSync(file, propertiesOf({ dataDir: path, port: 1, secondPort: 2 }, {}))
    const id = randomBytes(16).toString('base64url')
    const format = ['kafka.tools.StorageTool', 'format', '-t', id, '-c', file]
    await runCommand(run, java, [
      ...machine,
      `-Dlog4j2.configurationFile=${loggingFile(path)}`,
      '-cp',
      `${folder}/*`,
      ...format,
    ])
  })
}

function loggingFile(inFolder: string): string {
  const file = join(inFolder, 'log4j2.xml')
  writeFileSync(
    file,
    `<Configuration><Appenders><Console name="C"><PatternLayout pattern="%d %p %m (%c{1})%n%throwable"/></Console></Appenders>
<Loggers><Logger name="org.apache.kafka.common.config.AbstractConfig" level="WARN"/>
<Root level="INFO"><AppenderRef ref="C"/></Root></Loggers></Configuration>`,
  )
  return file
}

function propertiesOf(
  place: Pick<Place, 'dataDir' | 'port' | 'secondPort'>,
  { proxied, settings }: KafkaOptions,
): string {
  const own = `PLAINTEXT://127.0.0.1:${place.port}`
  const listeners = [own, ...(proxied ? [`PROXIED://127.0.0.1:${proxied.port}`] : [])]
  const advertised = [own, ...(proxied ? [`PROXIED://127.0.0.1:${proxied.advertisedPort}`] : [])]
  const all: Record<string, string | number> = {
    'process.roles': 'broker,controller',
    'node.id': 1,
    'controller.quorum.voters': `1@127.0.0.1:${place.secondPort}`,
    'controller.listener.names': 'CONTROLLER',
    'inter.broker.listener.name': 'PLAINTEXT',
    listeners: [...listeners, `CONTROLLER://127.0.0.1:${place.secondPort}`].join(','),
    'advertised.listeners': advertised.join(','),
    'listener.security.protocol.map': 'PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT',
    'log.dirs': join(place.dataDir, 'logs'),
    ...forOneBroker,
    ...shortTimes,
    ...settings,
  }
  return Object.entries(all)
    .map(([name, value]) => `${name}=${value}\n`)
    .join('')
}

const forOneBroker = {
  'auto.create.topics.enable': 'false',
  'offsets.topic.replication.factor': 1,
  'offsets.topic.num.partitions': 1,
  'transaction.state.log.replication.factor': 1,
  'transaction.state.log.num.partitions': 1,
  'transaction.state.log.min.isr': 1,
  'share.coordinator.state.topic.replication.factor': 1,
  'share.coordinator.state.topic.min.isr': 1,
}

// With the defaults a broker is away for 13 s after kill -9, because its controller believes in the old one. With these it is 3 s.
const shortTimes = {
  'broker.session.timeout.ms': 1_000,
  'broker.heartbeat.interval.ms': 200,
  'group.initial.rebalance.delay.ms': 0,
  'group.min.session.timeout.ms': 500,
  'group.consumer.min.session.timeout.ms': 500,
  'group.consumer.session.timeout.ms': 1_500,
  'group.consumer.min.heartbeat.interval.ms': 100,
  'group.consumer.heartbeat.interval.ms': 300,
}

// Debezium's connector for PostgreSQL in a standalone worker of Kafka Connect, from Maven: `npm run test:versions` runs it once. Its
// event router reads the outbox table with its own defaults.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { findProgram } from './find-program.ts'
import { copyFromMaven, mavenFolder } from './maven-folder.ts'
import type { Running } from './server.ts'
import { startServer } from './server/process.ts'

const artefacts = [
  'io.debezium:debezium-connector-postgres:3.5.0.Final',
  'org.apache.kafka:connect-runtime:4.3.1',
  'org.apache.kafka:connect-json:4.3.1',
  'org.apache.logging.log4j:log4j-slf4j-impl:2.25.4',
]
const folder = mavenFolder(artefacts)

/** "Debezium 3.5.0.Final". */
export const debeziumVersion = `Debezium ${artefacts[0]!.split(':')[2]!}`

/** Copies it from Maven. Throws where it cannot be had. */
export function getDebezium(): void {
  const mvn = findProgram('mvn')
  if (!mvn || !findProgram('java')) throw new Error('java and mvn are needed; cure: npm run servers')
  if (!existsSync(folder)) copyFromMaven(mvn, artefacts)
}

export interface DebeziumOptions {
  readonly kafkaHost: string
  readonly databaseUrl: string
  readonly slot: string
  // The table, with its schema.
  readonly table: string
}

export async function startDebezium(options: DebeziumOptions): Promise<Running> {
  return startServer({
    name: 'debezium',
    command: (place) => {
      mkdirSync(place.dataDir, { recursive: true })
      const files = {
        worker: {
          'bootstrap.servers': options.kafkaHost,
          'key.converter': 'org.apache.kafka.connect.storage.StringConverter',
          'value.converter': 'org.apache.kafka.connect.storage.StringConverter',
          'offset.storage.file.filename': join(place.dataDir, 'offsets'),
          'offset.flush.interval.ms': '1000',
          listeners: `http://127.0.0.1:${place.port}`,
        },
        connector: connectorOf(options),
      }
      const paths = Object.entries(files).map(([name, properties]) => {
        const path = join(place.folder, `${name}.properties`)
        writeFileSync(
          path,
          Object.entries(properties)
            .map((pair) => `${pair.join('=')}\n`)
            .join(''),
        )
        return path
      })
      const logging = join(place.folder, 'log4j2.xml')
      writeFileSync(logging, loggingFile)
      const machine = ['-Xmx512m', '-Xms64m', '-XX:+UseSerialGC', `-Dlog4j2.configurationFile=${logging}`]
      const main = 'org.apache.kafka.connect.cli.ConnectStandalone'
      return { file: findProgram('java')!, args: [...machine, '-cp', `${folder}/*`, main, ...paths] }
    },
    ready: (place) => readFileSync(join(place.folder, 'log')).includes('Starting streaming'),
    url: ({ port }) => `http://127.0.0.1:${port}`,
    shutDownSignal: 'SIGTERM',
    portTaken: /Address already in use/,
    startTimeoutMs: 120_000,
  })
}

// The router has no options: its defaults must do.
function connectorOf({ databaseUrl, slot, table }: DebeziumOptions): Record<string, string> {
  const url = new URL(databaseUrl)
  return {
    name: 'outbox',
    'connector.class': 'io.debezium.connector.postgresql.PostgresConnector',
    'tasks.max': '1',
    'database.hostname': url.hostname,
    'database.port': url.port,
    'database.user': url.username,
    'database.password': 'trusted',
    'database.dbname': url.pathname.slice(1),
    'topic.prefix': 'shop',
    'plugin.name': 'pgoutput',
    'slot.name': slot,
    'publication.autocreate.mode': 'filtered',
    'publish.via.partition.root': 'true',
    'table.include.list': table,
    'snapshot.mode': 'no_data',
    transforms: 'outbox',
    'transforms.outbox.type': 'io.debezium.transforms.outbox.EventRouter',
  }
}

const loggingFile = `<Configuration><Appenders><Console name="C"><PatternLayout pattern="%d %p %m (%c{1})%n%throwable"/></Console></Appenders>
<Loggers><Logger name="org.apache.kafka.common.config.AbstractConfig" level="WARN"/>
<Root level="INFO"><AppenderRef ref="C"/></Root></Loggers></Configuration>
`

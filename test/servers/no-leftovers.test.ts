// Nothing is left behind, however the process ends that started a server. The owner gets a temporary folder of its own, so
// that everything it leaves there can be seen, and every process that it leaves has that folder in its arguments.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, existsSync, globSync, mkdtempSync, readdirSync, readFileSync, rmdirSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import type { ServerName } from './index.ts'
import { needs } from './needs.ts'
import { pollUntil } from './poll.ts'
import { isAlive } from './process-tree.ts'

interface Owner {
  child: ChildProcess
  folder: string
  said(): string
}

function startOwner(server: ServerName): Owner {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-owner-'))
  // PostgreSQL runs as another user there.
  chmodSync(folder, 0o755)
  let output = ''
  const child = spawn(process.execPath, [join(import.meta.dirname, 'fixtures/owner.ts'), server], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { PATH: process.env['PATH'], TMPDIR: folder },
  })
  child.stdout.on('data', (chunk: Buffer) => (output += chunk.toString()))
  return { child, folder, said: () => output }
}

function processesIn(folder: string): string[] {
  return globSync('/proc/[0-9]*/cmdline').filter((file) => {
    try {
      return readFileSync(file, 'utf8').includes(folder)
    } catch {
      return false
    }
  })
}

async function expectNothingLeft({ folder }: Owner): Promise<void> {
  await pollUntil(`${folder} to be empty`, () => readdirSync(folder).length === 0)
  await pollUntil(`the processes in ${folder} to end`, () => processesIn(folder).length === 0)
  rmdirSync(folder)
}

async function end(owner: Owner, signal: NodeJS.Signals): Promise<void> {
  const exited = once(owner.child, 'exit')
  owner.child.kill(signal)
  await exited
}

for (const server of ['postgres', 'redis', 'rabbitmq'] as const) {
  // The other ways to end are the same to the watchdog, so the quicker server is enough.
  const signals: NodeJS.Signals[] = server === 'redis' ? ['SIGKILL', 'SIGINT', 'SIGTERM'] : ['SIGKILL']
  // The moments at which something is half made: the first folder, a command under way, the data, the server's process.
  const moments = { redis: ['*', '*/log'], postgres: ['*/groups/*', '*/data'], rabbitmq: ['*/pid'] }[server]

  needs(server, { ours: true }).describe(`the owner of a ${server}`, () => {
    for (const signal of signals) {
      test(`ended by ${signal} leaves no process and no file`, async () => {
        const owner = startOwner(server)
        await pollUntil(`${server} to start`, () => owner.said().endsWith('}'))
        const { pid, dataDir } = JSON.parse(owner.said()) as { pid: number; dataDir: string }
        expect(isAlive(pid) && existsSync(dataDir)).toBe(true)
        await end(owner, signal)
        await expectNothingLeft(owner)
        // Killed, it has its number until whoever inherited it has taken notice.
        await pollUntil(`process ${pid} to be gone`, () => !isAlive(pid))
      })
    }

    for (const moment of moments) {
      test(`killed as soon as there is ${moment} leaves no process and no file`, async () => {
        const owner = startOwner(server)
        await pollUntil(moment, () => globSync(moment, { cwd: owner.folder }).length > 0, { intervalMs: 1 })
        await end(owner, 'SIGKILL')
        await expectNothingLeft(owner)
      })
    }
  })
}

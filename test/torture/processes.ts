// Processes under torture, each with a journal and a log in the folder of its part: how they are started, how one is found to
// listen, and how its end is waited for.
import type { ChildProcess } from 'node:child_process'
import { closeSync, openSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { spawnIn } from '../servers/guarded-folder.ts'
import { pollUntil } from '../servers/poll.ts'
import { followJournal, type Written } from './journal.ts'

export interface Worker {
  readonly name: string
  readonly child: ChildProcess
  readonly ended: Promise<NodeJS.Signals | number>
  lines(): readonly Written[]
  /** The end of what it printed, which is nothing unless it failed. */
  said(): string
  /** Of one that listens by now. */
  port(): number | undefined
}

interface Where {
  /** The guarded folder: what is started there goes with it. */
  readonly root: string
  readonly folder: string
  readonly name: string
}

export function startProcess({ root, folder, name }: Where, args: string[], env: NodeJS.ProcessEnv): Worker {
  const log = openSync(join(folder, `${name}.log`), 'a')
  const child = spawnIn(root, process.execPath, args, {
    log,
    // What V8 has compiled once need not be compiled by each of a thousand processes.
    env: { NODE_COMPILE_CACHE: join(root, 'compiled'), NODE_NO_WARNINGS: '1', ...env },
  })
  closeSync(log)
  const ended = new Promise<NodeJS.Signals | number>((resolve) =>
    child.once('exit', (code, signal) => resolve(signal ?? code ?? -1)),
  )
  const lines = followJournal(folder, name)
  return {
    name,
    child,
    ended,
    lines,
    said: () => readFileSync(join(folder, `${name}.log`), 'utf8').slice(-2_000),
    port() {
      const line = lines().find(({ is }) => is === 'listening')
      return line?.is === 'listening' ? line.port : undefined
    },
  }
}

/** A process that does not end is killed, and the error says so. */
export async function endOf(worker: Worker, msMax = 60_000): Promise<NodeJS.Signals | number> {
  const bound = new AbortController()
  const hung = sleep(msMax, 'hung' as const, { signal: bound.signal, ref: false }).catch(() => 'hung' as const)
  const ended = await Promise.race([worker.ended, hung])
  bound.abort()
  if (ended !== 'hung') return ended
  worker.child.kill('SIGKILL')
  throw new Error(`${worker.name} did not end within ${msMax} ms`)
}

/** What is waited for from a process that has ended, or was killed, never comes. */
export function mustRun({ name, child: { exitCode, signalCode }, said }: Worker): void {
  if (exitCode !== null || signalCode !== null)
    throw new Error(`${name} ended with ${signalCode ?? exitCode}: ${said()}`)
}

/** The port of a process that serves HTTP. */
export function portOf(worker: Worker): Promise<number> {
  return pollUntil(`${worker.name} to listen`, () => {
    const port = worker.port()
    if (port === undefined) mustRun(worker)
    return port
  })
}

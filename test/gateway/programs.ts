// The gateway as its users start it, and the service behind it, as processes of their own that can be stopped, paused and killed.
// None of them outlives the test: each ends when the pipe to it does.
import { type ChildProcess, spawn } from 'node:child_process'
import { once as onceEvent } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { freePort } from '../servers/free-port.ts'
import { pollUntil } from '../servers/poll.ts'

const root = join(import.meta.dirname, '..', '..')

export interface Place {
  readonly folder: string
  readonly ledgerPath: string
  /** Key, attempt and receipt of every charge, in their order. */
  charges(): { key: string; attempt: string; receipt: string }[]
  startService(): Promise<string>
  startGateway(args: readonly string[]): Promise<GatewayProcess>
  close(): Promise<void>
}

export interface GatewayProcess {
  readonly url: string
  readonly admin: string | undefined
  readonly child: ChildProcess
  /** The lines of its log. */
  readonly lines: readonly Readonly<Record<string, unknown>>[]
  /** Resolves to the exit code, or the signal that ended it. */
  readonly ended: Promise<number | NodeJS.Signals>
  signal(signal: NodeJS.Signals): void
}

export function openPlace(): Place {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-gateway-'))
  const ledgerPath = join(folder, 'ledger')
  const children: ChildProcess[] = []
  return {
    folder,
    ledgerPath,
    charges() {
      const text = existsSync(ledgerPath) ? readFileSync(ledgerPath, 'utf8') : ''
      const lines = text.split('\n').filter((line) => line !== '')
      return lines.map((line) => {
        const [key, attempt, receipt] = line.split(' ') as [string, string, string]
        return { key, attempt, receipt }
      })
    },
    async startService() {
      const child = spawn(process.execPath, [join(import.meta.dirname, 'service.ts'), ledgerPath], {
        stdio: ['pipe', 'pipe', 'inherit'],
      })
      children.push(child)
      const [port] = (await onceEvent(child.stdout!, 'data')) as [Buffer]
      return `http://127.0.0.1:${Number(port.toString())}`
    },
    async startGateway(args) {
      const started = await startGatewayProcess(args)
      children.push(started.child)
      return started
    },
    async close() {
      await Promise.all(children.map(end))
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

/** A paused process cannot be ended in order. */
async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const exited = onceEvent(child, 'exit')
  child.kill('SIGKILL')
  await exited
}

/** On a port of its own, which it keeps when it is started again with the same arguments. */
export async function gatewayArguments(
  upstream: string,
  store: string,
  more: readonly string[] = [],
): Promise<string[]> {
  const listen = `127.0.0.1:${await freePort()}`
  return ['--upstream', upstream, '--store', store, '--listen', listen, '--tenant', 'shared', ...more]
}

async function startGatewayProcess(args: readonly string[]): Promise<GatewayProcess> {
  const program = join(root, 'src', 'cli', 'main.ts')
  const child = spawn(process.execPath, [program, 'gateway', ...args], { stdio: ['ignore', 'pipe', 'pipe'] })
  const lines: Record<string, unknown>[] = []
  let errors = ''
  child.stderr.on('data', (chunk: Buffer) => void (errors += chunk.toString()))
  createInterface(child.stdout).on('line', (line) => void lines.push(JSON.parse(line) as Record<string, unknown>))
  const ended = onceEvent(child, 'exit').then(([code, signal]) => (code ?? signal) as number | NodeJS.Signals)
  let isOver = false
  void ended.then(() => void (isOver = true))
  const listening = await pollUntil('the gateway to listen', () => {
    if (isOver) throw new Error(`the gateway ended before it listened: ${errors}`)
    return lines.find(({ event }) => event === 'listening')
  })
  return {
    url: listening['url'] as string,
    admin: listening['admin'] as string | undefined,
    child,
    lines,
    ended,
    signal: (signal) => void child.kill(signal),
  }
}

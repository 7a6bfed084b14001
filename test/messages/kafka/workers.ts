// Workers in processes of their own, which a test can kill and halt. Each is a program of this folder that gets its options as JSON and
// prints lines: `ready` when it listens to SIGTERM.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'

export interface Worker extends AsyncDisposable {
  readonly pid: number
  /** The lines that it has printed. */
  readonly said: readonly string[]
  readonly hasEnded: boolean
  signal(name: NodeJS.Signals): void
  /** Ends with this signal, with SIGTERM once it is ready for it. Returns the exit code, or the signal. */
  end(name: NodeJS.Signals): Promise<number | string>
  readonly exited: Promise<number | string>
}

export function startWorker(program: string, options: object): Worker {
  const child: ChildProcess = spawn(process.execPath, [join(import.meta.dirname, program), JSON.stringify(options)], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, NODE_NO_WARNINGS: '1' },
  })
  const said: string[] = []
  const ready = Promise.withResolvers<void>()
  createInterface({ input: child.stdout! }).on('line', (line) => {
    said.push(line)
    if (line === 'ready') ready.resolve()
  })
  const exited = once(child, 'exit').then(([code, signal]) => (code ?? signal) as number | string)
  return {
    pid: child.pid!,
    said,
    get hasEnded() {
      return child.exitCode !== null || child.signalCode !== null
    },
    signal: (name) => void child.kill(name),
    async end(name) {
      if (name === 'SIGTERM') await Promise.race([ready.promise, exited])
      child.kill(name)
      return exited
    },
    exited,
    async [Symbol.asyncDispose]() {
      child.kill('SIGKILL')
      await exited
    },
  }
}

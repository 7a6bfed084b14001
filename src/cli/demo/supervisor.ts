// Keeps the payment service of the demo running: after a kill it is restarted on the same port, on the same ledger.

import { fork } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { extname, join } from 'node:path'

export interface Charge {
  readonly charge: number
  readonly order: string
  readonly cents: number
  readonly atMs: number
}

export interface SupervisedService {
  readonly url: string
  /** How often the service was restarted. */
  readonly restarts: number
  /** Resolves when the service takes requests. */
  up(): Promise<void>
  /** What the service has written down. */
  charges(): readonly Charge[]
  close(): Promise<void>
}

export async function superviseService(ledger: string, port: number): Promise<SupervisedService> {
  writeFileSync(ledger, '')
  let child: ChildProcess
  let closing = false
  let restarts = 0

  const start = async (onPort: number): Promise<number> => {
    const program = join(import.meta.dirname, `service${extname(import.meta.filename)}`)
    // Without the flags of this process: a test runner has its own.
    child = fork(program, [ledger, String(onPort)], { execArgv: [], stdio: ['ignore', 'ignore', 'inherit', 'ipc'] })
    const [said] = (await Promise.race([once(child, 'message'), once(child, 'exit')])) as [unknown]
    const { port: taken, problem } = (said ?? {}) as { port?: number; problem?: object }
    if (taken === undefined) throw Object.assign(new Error('the payment service did not start'), problem)
    child.once('exit', () => {
      if (closing) return
      restarts += 1
      up = start(taken)
      up.catch(() => {}) // a caller of up() gets the error
    })
    return taken
  }
  let up = start(port)
  const url = `http://127.0.0.1:${await up}`
  return {
    url,
    get restarts() {
      return restarts
    },
    up: async () => void (await up),
    charges: () => readCharges(ledger),
    async close() {
      closing = true
      await up.catch(() => {})
      if (child.exitCode !== null || child.signalCode !== null) return
      const gone = once(child, 'exit')
      child.kill('SIGKILL')
      await gone
    },
  }
}

function readCharges(ledger: string): Charge[] {
  const lines = readFileSync(ledger, 'utf8').split('\n').slice(0, -1)
  return lines.map((line) => JSON.parse(line) as Charge)
}

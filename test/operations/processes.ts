// Starts the processes of test/operations, a few at a time. A killed process is told apart from one that failed.

import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import type { Orders, Said } from './program.ts'

export interface Ground extends AsyncDisposable {
  readonly folder: string
  readonly outside: string
  /** "effect bank order-1" and "asked bank order-1", in their order. */
  outsideLines(): string[]
  run(orders: Orders): Promise<'killed' | Said>
}

const here = import.meta.dirname

export async function openGround(): Promise<Ground> {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-operations-'))
  const file = join(folder, 'outside')
  const outside = spawn(process.execPath, [join(here, 'outside.ts'), file], { stdio: ['pipe', 'pipe', 'inherit'] })
  const [port] = (await once(outside.stdout, 'data')) as [Buffer]
  // Compiled once, a process starts in a third of the time.
  const env = { ...process.env, NODE_COMPILE_CACHE: join(folder, 'compiled'), NODE_NO_WARNINGS: '1', NODE_OPTIONS: '' }
  return {
    folder,
    outside: `http://127.0.0.1:${Number(port.toString())}`,
    outsideLines: () =>
      readFileSync(file, 'utf8')
        .split('\n')
        .filter((line) => line !== ''),
    async run(orders) {
      const child = spawn(process.execPath, [join(here, 'program.ts'), JSON.stringify(orders)], {
        env,
        stdio: ['ignore', 'pipe', 'pipe'],
      })
      const [[code, signal], out, error] = await Promise.all([
        once(child, 'close') as Promise<[number | null, NodeJS.Signals | null]>,
        text(child.stdout),
        text(child.stderr),
      ])
      if (signal === 'SIGKILL') return 'killed'
      if (code === 0) return JSON.parse(out) as Said
      throw new Error(`${orders.do} of ${orders.names.join(', ')} ended with ${code ?? signal}: ${error.slice(-2_000)}`)
    },
    async [Symbol.asyncDispose]() {
      await end(outside)
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const exited = once(child, 'exit')
  child.stdin!.end()
  await exited
}

/** In their order, so many at once. */
export async function together<T, U>(items: readonly T[], atOnce: number, work: (item: T) => Promise<U>): Promise<U[]> {
  const results: U[] = []
  let next = 0
  const lane = async (): Promise<void> => {
    for (let index = next++; index < items.length; index = next++) results[index] = await work(items[index]!)
  }
  // Nothing runs on when one has failed: it would outlive the test, and what the test cleans up.
  const lanes = await Promise.allSettled(Array.from({ length: atOnce }, lane))
  for (const ended of lanes) if (ended.status === 'rejected') throw ended.reason
  return results
}

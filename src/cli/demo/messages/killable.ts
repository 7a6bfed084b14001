// A process of the demo that can be killed in the middle of its work, and started again. It kills itself with SIGKILL at the point that
// it was told, so that what comes after the point has not happened. It ends with the process that started it.

import { fork } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { extname, join } from 'node:path'

/** `armed`: it runs, and is killed when it gets to its point. */
export type KillableState = 'off' | 'starting' | 'running' | 'armed' | 'killed'

export interface Killable {
  readonly state: KillableState
  start(): Promise<void>
  /** The point at which it kills itself. Does nothing unless it runs. */
  killAt(point: string): void
  tell(word: object): void
  close(): Promise<void>
}

export interface KillableOptions {
  /** The file beside this one, without its ending. */
  readonly program: string
  readonly args: readonly string[]
  /** Called for what the process says. It gets an answer when this returns. */
  onSaid(said: object): void
  /** It runs, and is ready. */
  onStarted(): void
  onKilled(point: string | undefined): void
}

export function killable({ program, args, onSaid, onStarted, onKilled }: KillableOptions): Killable {
  let state: KillableState = 'off'
  let child: ChildProcess | undefined
  let point: string | undefined

  const run = async (): Promise<void> => {
    state = 'starting'
    point = undefined
    const path = join(import.meta.dirname, `${program}${extname(import.meta.filename)}`)
    // Without the flags of this process: a test runner has its own.
    const started = fork(path, args, {
      execArgv: [],
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
      serialization: 'advanced',
    })
    child = started
    started.once('exit', () => {
      state = 'killed'
      onKilled(point)
    })
    const isReady = await new Promise<boolean>((resolve) => {
      started.once('exit', () => resolve(false))
      // The first word says that it is ready, and what follows may come in the same moment.
      started.once('message', () => {
        started.on('message', hear)
        resolve(true)
      })
    })
    if (!isReady) throw new Error(`the ${program} did not start`)
    state = 'running'
    onStarted()
  }
  const hear = (said: { readonly ask?: number }): void => {
    onSaid(said)
    if (said.ask !== undefined) tell({ answered: said.ask })
  }
  const tell = (word: object): void => {
    // One that has just been killed hears nothing.
    if (child?.connected) child.send(word, () => {})
  }
  let starting: Promise<void> | undefined
  return {
    get state() {
      return state
    },
    start() {
      if (state === 'off' || state === 'killed') starting = run()
      return starting ?? Promise.resolve()
    },
    killAt(given) {
      if (state !== 'running') return
      state = 'armed'
      point = given
      tell({ killAt: given })
    },
    tell,
    async close() {
      await starting?.catch(() => {})
      if (!child || child.exitCode !== null || child.signalCode !== null) return
      child.removeAllListeners('exit')
      const gone = once(child, 'exit')
      child.kill('SIGKILL')
      await gone
    },
  }
}

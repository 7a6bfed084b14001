// The same with real processes: a script is started again and again and kills itself with SIGKILL at its n-th call, before and
// after it. Then it is started anew until it ends well. Nothing is cleaned up for it, as nothing is when a machine dies.

import { fork } from 'node:child_process'
import { once } from 'node:events'
import { sleep, systemClock } from '../../core/clock.ts'
import { aFunction, aString, checkOptions, optional, positiveMs } from '../../core/options.ts'
import { crashPoints } from './points.ts'
import type { CrashKind, CrashPoints } from './points.ts'
import { reportCells } from './report.ts'
import type { CrashCell, CrashReport } from './report.ts'

export interface CrashProcessesOptions<World> {
  /** The program. It takes its points from `await crashPointsHere()` and ends with code 0 when it has its answer. */
  readonly script: string
  /** What outlives a process, new for every cell: a file, a database. */
  setUp(): World | Promise<World>
  /** The arguments of the script. */
  args?(world: World): readonly string[]
  /** The invariant, when the script has ended well: throws when it does not hold. */
  check(world: World): void | Promise<void>
  tearDown?(world: World): void | Promise<void>
  /** How long the script is started again until it ends well. More than its lease. Default 30 s. */
  readonly patienceMs?: number
}

type DyingKind = Extract<CrashKind, `dies ${string}`>
const dyingKinds: readonly DyingKind[] = ['dies before', 'dies after']

/** What the parent tells the script: where to die, and which calls are known to return a promise. */
interface Orders {
  readonly onceonly: 'orders'
  readonly point: number
  readonly kind: DyingKind
  readonly asynchronous: readonly string[]
}

/** What the script tells its parent. */
type Told = { readonly onceonly: 'ready' } | { readonly onceonly: 'point'; readonly name: string }

/**
 * Returns the points at which `crashProcesses` kills this script. Started by anything else, the points do nothing.
 *
 * @example
 * import { createOnce } from 'onceonly'
 * import { sqliteStore } from 'onceonly/sqlite'
 * import { crashPointsHere } from 'onceonly/testing'
 *
 * const { wrap, outside } = await crashPointsHere()
 * const store = wrap('store', sqliteStore({ path: process.argv[2]! }))
 * const once = createOnce({ store, scope: 'shop', leaseMs: 500 })
 * await once.run('order-1', () => outside('mail', async () => 'sent'))
 */
export async function crashPointsHere(): Promise<CrashPoints> {
  const tell = process.send?.bind(process)
  if (!tell) return crashPoints({ ...noTransactions, asynchronous: new Set(), pass: async (_, carry) => carry() })
  const heard = once(process, 'message') as Promise<[Orders]>
  tell({ onceonly: 'ready' } satisfies Told)
  const [orders] = await heard
  // The channel is for orders only: it must not keep the script alive.
  process.channel?.unref()
  let points = 0
  return crashPoints({
    ...noTransactions,
    asynchronous: new Set(orders.asynchronous),
    async pass(name, carry) {
      tell({ onceonly: 'point', name } satisfies Told)
      const isHere = ++points === orders.point
      if (isHere && orders.kind === 'dies before') process.kill(process.pid, 'SIGKILL')
      const answer = await carry()
      if (isHere) process.kill(process.pid, 'SIGKILL')
      return answer
    },
  })
}

// The database itself ends what a dead process had open.
const noTransactions = { opened: (): void => {}, ended: (): void => {} }

/**
 * Starts a script again and again, killed at its n-th call, before and after it. Rejects with all cells when one is broken.
 *
 * @example
 * import assert from 'node:assert/strict'
 * import { existsSync, mkdtempSync } from 'node:fs'
 * import { crashProcesses } from 'onceonly/testing'
 *
 * const report = await crashProcesses({
 *   script: 'checkout.ts',
 *   setUp: () => mkdtempSync('/tmp/checkout-'),
 *   args: (folder) => [`${folder}/once.db`],
 *   check: (folder) => assert.ok(existsSync(`${folder}/once.db`)),
 * })
 * console.log(report.text)
 */
export async function crashProcesses<World>(options: CrashProcessesOptions<World>): Promise<CrashReport> {
  checkOptions('crashProcesses', options, {
    script: aString,
    setUp: aFunction,
    args: optional(aFunction),
    check: aFunction,
    tearDown: optional(aFunction),
    patienceMs: optional(positiveMs),
  })
  const sound = await runCell(options, { point: 0, kind: 'dies before', asynchronous: [] })
  if (sound.broken !== undefined) throw new Error(`crashProcesses: without any crash already: ${sound.broken}`)
  if (sound.names.length === 0)
    throw new Error('crashProcesses: the script made no call through its crashPointsHere(), so there is no point.')
  const asynchronous = [...new Set(sound.names)]
  const cells: CrashCell[] = []
  for (const [index, name] of sound.names.entries()) {
    for (const kind of dyingKinds) {
      const { tries, broken } = await runCell(options, { point: index + 1, kind, asynchronous })
      cells.push({ point: index + 1, name, kind, tries, ...(broken !== undefined && { broken }) })
    }
  }
  return reportCells('crashProcesses', cells)
}

interface Ended {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
  readonly names: readonly string[]
  readonly said: string
}

async function runCell<World>(
  options: CrashProcessesOptions<World>,
  at: Omit<Orders, 'onceonly'>,
): Promise<{ names: readonly string[]; tries: number; broken?: string }> {
  const world = await options.setUp()
  const args = options.args?.(world) ?? []
  let names: readonly string[] = []
  try {
    let ended = await runScript(options.script, args, { onceonly: 'orders', ...at })
    names = ended.names
    if (at.point > 0 && ended.signal !== 'SIGKILL')
      return { names, tries: 1, broken: `the script was not killed at its call ${at.point}: ${ended.said}` }
    const untilMs = systemClock.elapsed() + (options.patienceMs ?? 30_000)
    let tries = 1
    for (; ended.code !== 0; tries++) {
      if (systemClock.elapsed() >= untilMs) return { names, tries, broken: `it never ended well: ${ended.said}` }
      // Short beside any lease, long beside the start of a process.
      await sleep(systemClock, 50)
      ended = await runScript(options.script, args, { onceonly: 'orders', ...at, point: 0 })
    }
    await options.check(world)
    return { names, tries }
  } catch (error) {
    return { names, tries: 0, broken: error instanceof Error ? error.message : String(error) }
  } finally {
    await options.tearDown?.(world)
  }
}

async function runScript(script: string, args: readonly string[], orders: Orders): Promise<Ended> {
  const child = fork(script, args, { stdio: ['ignore', 'ignore', 'pipe', 'ipc'] })
  const names: string[] = []
  let said = ''
  child.stderr?.on('data', (chunk: Buffer) => (said = `${said}${chunk.toString()}`.slice(-2_000)))
  child.on('message', (told: Told) => {
    if (told.onceonly === 'ready') child.send(orders, () => {})
    else names.push(told.name)
  })
  const [code, signal] = (await once(child, 'close')) as [number | null, NodeJS.Signals | null]
  return { code, signal, names, said: said.trim() || `it ended with ${signal ?? `code ${code}`}` }
}

// Runs a user's code again and again and crashes it at every call that leaves it, before and after, in this process and on a
// clock that stands still. After the crash what the code waits for never comes, its timers never fire, its calls are not made,
// and what it had open is given up. Then other callers ask for the same, and the user's own invariant must hold.

import { isDeepStrictEqual } from 'node:util'
import { setImmediate } from 'node:timers/promises'
import { sleep, systemClock } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { FinalError, OnceError } from '../core/errors.ts'
import { aFunction, checkOptions, optional } from '../core/options.ts'
import type { Rule } from '../core/options.ts'
import { crashKinds, crashPoints } from './crash-everywhere/points.ts'
import type { CrashKind, CrashPoints, OpenTransaction } from './crash-everywhere/points.ts'
import { reportCells } from './crash-everywhere/report.ts'
import type { CrashCell, CrashReport } from './crash-everywhere/report.ts'
import { manualClock } from './manual-clock.ts'
import type { ManualClock } from './manual-clock.ts'

export { crashPointsHere, crashProcesses } from './crash-everywhere/processes.ts'
export type { CrashProcessesOptions } from './crash-everywhere/processes.ts'
export type { CrashKind, CrashPoints } from './crash-everywhere/points.ts'
export type { CrashCell, CrashReport } from './crash-everywhere/report.ts'

export interface CrashingProcess extends CrashPoints {
  /** The clock for `createOnce`: the timers of a dead process never fire. */
  readonly clock: Clock
}

export interface CrashEverywhereOptions<World> {
  /** What outlives a process: the store, the world outside. New for every cell. Give the clock to the store. */
  setUp(clock: ManualClock): World | Promise<World>
  /** One request to one process, built anew: its store and its outside calls go through `process`. */
  run(process: CrashingProcess, world: World): Promise<unknown>
  /** The invariant, when every client has its answer: throws when it does not hold. */
  check(world: World, answers: readonly CrashAnswer[]): void | Promise<void>
  tearDown?(world: World): void | Promise<void>
  /** Default: all of them. */
  readonly kinds?: readonly CrashKind[]
}

/** What a client got in the end. */
export type CrashAnswer = { readonly value: unknown } | { readonly error: unknown }

export const kindsRule: Rule = (value) =>
  Array.isArray(value) && value.length > 0 && value.every((each) => crashKinds.includes(each as CrashKind))
    ? undefined
    : `a list of ${crashKinds.map((kind) => `"${kind}"`).join(', ')}`

/**
 * Runs your code once for each call that leaves the process and each way to crash there. Rejects with all cells when one is broken.
 *
 * @example
 * import assert from 'node:assert/strict'
 * import { createOnce } from 'onceonly'
 * import { memoryStore } from 'onceonly/memory'
 * import { crashEverywhere } from 'onceonly/testing'
 *
 * const report = await crashEverywhere({
 *   setUp: (clock) => ({ store: memoryStore({ clock }), charges: new Set<string>() }),
 *   async run({ wrap, outside, clock }, { store, charges }) {
 *     const once = createOnce({ store: wrap('store', store), scope: 'shop', clock })
 *     const charge = (key: string) => outside('bank.charge', async () => void charges.add(key))
 *     await once.run('order-1', (op) => charge(op.keyFor('charge')))
 *   },
 *   check: ({ charges }) => assert.equal(charges.size, 1),
 * })
 * console.log(report.text)
 */
export async function crashEverywhere<World>(options: CrashEverywhereOptions<World>): Promise<CrashReport> {
  checkOptions('crashEverywhere', options, {
    setUp: aFunction,
    run: aFunction,
    check: aFunction,
    tearDown: optional(aFunction),
    kinds: optional(kindsRule),
  })
  const asynchronous = new Set<string>()
  const sound = await runCell(options, asynchronous, undefined)
  if (sound.broken !== undefined) throw new Error(`crashEverywhere: without any crash already: ${sound.broken}`)
  if (sound.names.length === 0)
    throw new Error(
      'crashEverywhere: run() made no call through process.wrap or process.outside, so there is no point.',
    )
  const cells: CrashCell[] = []
  for (const [index, name] of sound.names.entries()) {
    for (const kind of options.kinds ?? crashKinds) {
      const { tries, broken } = await runCell(options, asynchronous, { point: index + 1, kind })
      cells.push({ point: index + 1, name, kind, tries, ...(broken !== undefined && { broken }) })
    }
  }
  return reportCells('crashEverywhere', cells)
}

interface CrashAt {
  readonly point: number
  readonly kind: CrashKind
}

interface Ran {
  readonly tries: number
  /** The calls of the first process. */
  readonly names: readonly string[]
  readonly broken?: string
}

async function runCell<World>(
  options: CrashEverywhereOptions<World>,
  asynchronous: Set<string>,
  crashAt: CrashAt | undefined,
): Promise<Ran> {
  const clock = manualClock()
  const world = await options.setUp(clock)
  const first = startLife(clock, asynchronous, crashAt)
  try {
    const { answer, tries } = await askUntilAnswered(options, world, clock, [first], asynchronous)
    const again = await askUntilAnswered(options, world, clock, [], asynchronous)
    const answers = [answer, again.answer]
    const broken =
      notReached(first, crashAt) ?? disagreement(answers) ?? (await failureOf(() => options.check(world, answers)))
    return { tries, names: first.names, ...(broken !== undefined && { broken }) }
  } catch (error) {
    return { tries: triesMax, names: first.names, broken: messageOf(error) }
  } finally {
    await options.tearDown?.(world)
  }
}

// The default lease is 30 s: with 10 s between two tries, the client of a key that is taken over in time has its answer long
// before the last try.
const triesMax = 30
const betweenTriesMs = 10_000

/** As a client does: while it gets no answer, or the answer to ask again, it asks again. */
async function askUntilAnswered<World>(
  { run }: CrashEverywhereOptions<World>,
  world: World,
  clock: ManualClock,
  lives: Life[],
  asynchronous: Set<string>,
): Promise<{ answer: CrashAnswer; tries: number }> {
  let last: unknown
  for (let tries = 1; tries <= triesMax; tries++) {
    const life = lives.shift() ?? startLife(clock, asynchronous, undefined)
    const ended = await untilEnded(life, clock, () => run(life.process, world))
    if (ended && ('value' in ended || isFinal(ended.error))) return { answer: ended, tries }
    if (ended) last = ended.error
    await clock.advance(betweenTriesMs)
  }
  throw new Error(`asked ${triesMax} times, there was no answer; the last was ${messageOf(last)}`)
}

function isFinal(error: unknown): boolean {
  return error instanceof FinalError || (error instanceof OnceError && !error.retryable)
}

function notReached({ names }: Life, crashAt: CrashAt | undefined): string | undefined {
  if (!crashAt || names.length >= crashAt.point) return undefined
  return `the process ended after ${names.length} calls: run() does not do the same each time, so nothing is shown`
}

function disagreement(answers: readonly CrashAnswer[]): string | undefined {
  const [first, second] = answers
  if (!first || !second || !('value' in first) || !('value' in second)) return undefined
  if (isDeepStrictEqual(first.value, second.value)) return undefined
  return `asked twice, it answered ${JSON.stringify(first.value)} and then ${JSON.stringify(second.value)}`
}

async function failureOf(check: () => void | Promise<void>): Promise<string | undefined> {
  try {
    await check()
    return undefined
  } catch (error) {
    return messageOf(error)
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}

interface Life {
  readonly process: CrashingProcess
  readonly names: string[]
  isDead(): boolean
  /** Calls that are really under way. */
  readonly underWay: Set<Promise<unknown>>
}

const never = new Promise<never>(() => {})

function startLife(clock: ManualClock, asynchronous: Set<string>, crashAt: CrashAt | undefined): Life {
  const names: string[] = []
  const underWay = new Set<Promise<unknown>>()
  const transactions = new Map<OpenTransaction, string>()
  let dead = false
  /** Those on the connection of this call, or all of them when the process is dead. */
  const giveUp = async (call: string): Promise<void> => {
    const open = [...transactions].filter(([, name]) => name.startsWith(call) || call.startsWith(name))
    for (const [transaction] of open) {
      transactions.delete(transaction)
      await transaction.abandon().catch(() => {})
    }
  }
  const die = async (): Promise<never> => {
    dead = true
    void track(underWay, giveUp(''))
    return never
  }
  async function pass<T>(name: string, carry: () => T | Promise<T>): Promise<T> {
    if (dead) return never
    const point = names.push(name)
    const kind = crashAt?.point === point ? crashAt.kind : undefined
    if (kind === 'dies before') return die()
    if (kind === 'fails before') {
      // The connection is gone, and what it had open with it.
      await giveUp(name)
      throw new Error(`${name} failed before it did anything (crashEverywhere)`)
    }
    const answer = await track(underWay, (async () => carry())()).catch((error: unknown) => {
      if (dead) return never
      throw error
    })
    // The process died while this was under way: what it had opened by then is given up, too.
    if (dead || kind === 'dies after') return die()
    if (kind !== 'fails after') return answer
    await giveUp(name)
    throw new Error(`the answer of ${name} was lost (crashEverywhere)`)
  }
  const points = crashPoints({
    asynchronous,
    pass,
    opened: (transaction, name) => void transactions.set(transaction, name),
    ended: (transaction) => void transactions.delete(transaction),
  })
  return { process: { ...points, clock: clockOf(clock, () => !dead) }, names, isDead: () => dead, underWay }
}

function track<T>(underWay: Set<Promise<unknown>>, work: Promise<T>): Promise<T> {
  const tracked = work.then(
    () => void underWay.delete(tracked),
    () => void underWay.delete(tracked),
  )
  underWay.add(tracked)
  return work
}

function clockOf(clock: Clock, isAlive: () => boolean): Clock {
  return {
    now: () => clock.now(),
    elapsed: () => clock.elapsed(),
    schedule: (run, delayMs, background) => clock.schedule(() => isAlive() && run(), delayMs, background),
  }
}

// Twenty minutes of its clock are more than any attempt has by default (20 leases of 30 s). A process that takes longer hangs.
const stepMs = 250
const stepsMax = (20 * 60_000) / stepMs
/** How long a call to a real server is waited for before the clock goes on. A store that waits by this clock needs the clock to go on. */
const patienceMs = 20

/** Undefined when the process died, or hangs. */
async function untilEnded(
  life: Life,
  clock: ManualClock,
  run: () => Promise<unknown>,
): Promise<CrashAnswer | undefined> {
  let ended: CrashAnswer | undefined
  void (async () => run())().then(
    (value) => void (ended = { value }),
    (error: unknown) => void (ended = { error }),
  )
  for (let step = 0; step < stepsMax && !life.isDead(); step++) {
    // Turns of the event loop, in which everything that needs no waiting ends.
    for (let turn = 0; turn < 5 && !ended && !life.isDead(); turn++) await setImmediate()
    if (ended) break
    if (life.underWay.size > 0) await Promise.race([Promise.all(life.underWay), sleep(systemClock, patienceMs)])
    else await clock.advance(stepMs)
    // About as fast as real time: a server that is slow is not taken for one that is silent.
    if (life.underWay.size > 0) await clock.advance(patienceMs)
  }
  await Promise.race([Promise.all(life.underWay), sleep(systemClock, 1_000, { background: 'background' })])
  return life.isDead() ? undefined : ended
}

// One application, listening, on one store, for one case: with a clock that stands still until the runner moves it. Nothing
// outlives `close`.
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { setImmediate } from 'node:timers/promises'
import type { OnceOptions } from '../../src/core/settings.ts'
import { createOnce, type Once } from '../../src/core/once.ts'
import { eventNames } from '../../src/core/events.ts'
import type { Store } from '../../src/core/store.ts'
import { type ManualClock, manualClock } from '../../src/testing/manual-clock.ts'
import { pollUntil } from '../servers/poll.ts'
import { type AppGround, listen, type Protection, type StartApp } from './apps/app.ts'
import { type ControlledStore, controlledStore, type StoreMode } from './controlled-store.ts'
import { createFixture, defaultSettings, type Fixture, type FixtureSettings } from './fixture.ts'
import { memoryLedger } from './ledger.ts'
import type { Place, StoreKind } from './stores.ts'

export interface WorldOptions {
  readonly start: StartApp
  readonly storeKind: StoreKind
  /** The knobs of the adapter. */
  readonly config: Readonly<Record<string, unknown>>
  readonly settings?: Partial<FixtureSettings>
  readonly once?: Partial<OnceOptions>
}

export interface World {
  readonly port: number
  readonly clock: ManualClock
  readonly fixture: Fixture
  readonly line: ControlledStore
  readonly place: Place
  readonly requestsSeen: () => number
  readonly clientsGone: () => number
  /** Time passes: for the process and for the store. */
  advance(ms: number): Promise<void>
  /** The store and the event loop have nothing left to do but wait for the clock. */
  quiet(): Promise<void>
  /** A second process on the same data. */
  another(): Promise<World>
  close(): Promise<void>
}

/** The types of all problems begin with it. */
export const problemBase = 'https://problems.example/http'

export async function openWorld(options: WorldOptions): Promise<World> {
  const clock = manualClock()
  const place = await options.storeKind.open(clock)
  try {
    return await openOn(options, clock, place, place.store)
  } catch (error) {
    await place.close()
    throw error
  }
}

async function openOn(options: WorldOptions, clock: ManualClock, place: Place, real: Store): Promise<World> {
  const line = controlledStore(real, clock)
  const fixture = createFixture(clock, memoryLedger(), { ...defaultSettings, ...options.settings })
  const once = createOnce({ store: line.store, scope: 'conformance', clock, sweepEveryMs: false, ...options.once })
  const logs = captureEvents()
  const ground: AppGround = {
    once,
    fixture,
    options: (protection) => adapterOptions(options.config, protection),
    transactions: 'none',
    log: logs.add,
    control: (path) => control(path, { fixture, line, place, clock, logs }),
  }
  const server = await listen(options.start, ground)
  const others: World[] = []
  const world: World = {
    port: server.port,
    clock,
    fixture,
    line,
    place,
    requestsSeen: server.requestsSeen,
    clientsGone: server.clientsGone,
    advance: (ms) => advance(world, ms),
    quiet: () => quiet(line),
    async another() {
      const shared = { ...place, close: async () => {} }
      others.push(await openOn(options, clock, shared, await place.another()))
      return others.at(-1)!
    },
    async close() {
      for (const other of others) await other.close()
      fixture.openAllGates()
      line.setMode('restore')
      await drain(world, once, server.close)
      logs.stop()
      await place.close()
    },
  }
  return world
}

export function adapterOptions(
  config: Readonly<Record<string, unknown>>,
  protection: Protection,
): Readonly<Record<string, unknown>> {
  return {
    problemBase,
    ...config,
    ...(protection === 'required' && { required: true }),
    ...(protection === 'transaction' && { transaction: true }),
  }
}

/** Enough turns of the loop for a request to pass through any of the frameworks and the loopback. */
const turnsOfTheLoop = 20

async function quiet(line: ControlledStore): Promise<void> {
  for (let turn = 0; turn < turnsOfTheLoop; turn++) {
    await setImmediate()
    if (line.seen.inFlight > 0) {
      await pollUntil('the store to answer', () => line.seen.inFlight === 0, { intervalMs: 1 })
      turn = 0
    }
  }
}

/**
 * Below a heartbeat of any lease in the cases: between two steps the store has answered what the first one set off. What is
 * due later than some seconds is no heartbeat, and days pass at once where nothing is due.
 */
const stepMs = 50
const smallStepsMs = 10_000

async function advance(world: World, ms: number): Promise<void> {
  await world.quiet()
  for (let passedMs = 0; passedMs < ms;) {
    const dueMs = world.clock.pending === 0 ? ms : passedMs < smallStepsMs ? stepMs : 4 * stepMs
    const step = Math.min(dueMs, ms - passedMs)
    await world.place.advance(step)
    await world.clock.advance(step)
    await world.quiet()
    passedMs += step
  }
}

/** What runs in the background ends by the clock, and the clock stands still: it is moved until all is done. */
async function drain(world: World, once: Once, closeServer: () => Promise<void>): Promise<void> {
  let done = false
  const closing = closeServer()
    .then(() => once.close())
    .finally(() => void (done = true))
  await pollUntil(
    'the world to end',
    async () => {
      if (!done) await world.clock.advance(1_000)
      return done
    },
    { intervalMs: 1 },
  )
  await closing
}

interface Logs {
  add(line: string): void
  all(): string
  stop(): void
}

/** All that the library says, and what the framework logs. */
function captureEvents(): Logs {
  const lines: string[] = []
  const listener = (message: unknown, name: string | symbol): void =>
    void lines.push(`${String(name)} ${JSON.stringify(message)}`)
  const warned = (warning: Error): void => void lines.push(warning.stack ?? warning.message)
  process.on('warning', warned)
  for (const name of eventNames) subscribe(`onceonly:${name}`, listener)
  return {
    add: (line) => void lines.push(line),
    all: () => lines.join('\n'),
    stop() {
      process.off('warning', warned)
      for (const name of eventNames) unsubscribe(`onceonly:${name}`, listener)
    },
  }
}

interface Controlled {
  readonly fixture: Fixture
  readonly line: ControlledStore
  readonly place: Place
  readonly clock: ManualClock
  readonly logs: Logs
}

async function control(path: string, { fixture, line, place, clock, logs }: Controlled): Promise<string> {
  const [what, name = '', ...rest] = path.split('/')
  if (what === 'effects')
    return JSON.stringify((await fixture.ledger.counts()).get(name) ?? { effects: 0, invocations: 0 })
  if (what === 'gate' && rest[0] === 'open') return (fixture.gate(name).open(), 'open')
  if (what === 'clock') return (await clock.advance(Number(name)), `${clock.now()}`)
  if (what === 'store') return (line.setMode(name as StoreMode), name)
  if (what === 'logs') return logs.all()
  if (what === 'store-dump') return place.dump()
  throw new Error(`no control ${path}`)
}

// A schedule as data: which client asks for what and when, how the effects behave, and what goes wrong. All of it follows from
// the seed. A plan can be made smaller by leaving things out, and is still a plan.

import type { MessageFault } from './world/network.ts'
import { mixed, seededRandom } from '../../src/testing/seeded-random.ts'
import type { SeededRandom } from '../../src/testing/seeded-random.ts'

export interface Plan {
  readonly seed: number
  /** What stands behind the network: rows as in SQL, or a Redis. */
  readonly core: 'rows' | 'redis'
  readonly weather: 'calm' | 'faulty'
  readonly theme: Theme
  readonly leaseMs: number
  readonly keepMs: number
  readonly tombstoneMs: number
  readonly attemptMs: number
  readonly storeTimeoutMs: number
  readonly latencyMs: readonly [number, number]
  /** When the faults end. Every call has been made by then. */
  readonly healAtMs: number
  readonly processes: readonly PlannedProcess[]
  readonly calls: readonly PlannedCall[]
  readonly messageFaults: readonly MessageFault[]
  readonly worldFaults: readonly WorldFault[]
  readonly deploys: readonly Deploy[]
  readonly conflictChance: number
  /** Values are stored by a codec that encodes the same value differently each time, as encryption does. */
  readonly isSealed: boolean
  /** Of Redis: whether the server has `SET … IFEQ`. */
  readonly hasIfEq?: boolean
}

export interface PlannedProcess {
  readonly name: string
  readonly skewMs: number
  readonly rate: number
  readonly sweepEveryMs?: number
  /** Times that this process has otherwise than the others, on the same keys. */
  readonly times?: { readonly leaseMs: number; readonly keepMs: number }
  /** On Redis: by native commands where they will do. The others are as an older version, by scripts alone. */
  readonly isNative?: boolean
}

/** A process is asked to close in the middle of its work, ends, and starts again. */
export interface Deploy {
  readonly process: number
  readonly atMs: number
  readonly downMs: number
}

export interface PlannedCall {
  readonly process: number
  readonly atMs: number
  readonly key: number
  readonly asked: string
  readonly how: 'run' | 'transaction'
  /** For the first time that this call runs the effect, the second, and so on. The last one is for all that follow. */
  readonly effects: readonly PlannedEffect[]
  readonly retries: number
  readonly retryMs: number
  readonly waitMs: number
  readonly onTakeover: 'run' | 'refuse'
  readonly onExpired: 'refuse' | 'run'
  readonly onThrow: 'release' | 'store' | 'doubt'
}

export interface PlannedEffect {
  readonly beforeMs: number
  readonly afterMs: number
  readonly ends: 'returns' | 'throws' | 'final' | 'doubt' | 'not-begun' | 'hangs' | 'hangs-until-told'
}

export type WorldFault =
  | { readonly kind: 'crash'; readonly process: number; readonly atMs: number; readonly downMs: number }
  | {
      readonly kind: 'pause'
      readonly process: number
      readonly atMs: number
      readonly forMs: number
      readonly how: 'stop' | 'suspend'
    }
  | { readonly kind: 'jump'; readonly process: number; readonly atMs: number; readonly byMs: number }
  /** `isHeard`: the server is down, and the network says so at once. Otherwise nobody answers. */
  | { readonly kind: 'outage'; readonly atMs: number; readonly forMs: number; readonly isHeard?: true }
  /** Of a Redis: what was written since then is gone, or everything. */
  | {
      readonly kind: 'loss'
      readonly atMs: number
      readonly how: 'emptied' | 'went-back'
      readonly rememberedAtMs: number
    }
  | { readonly kind: 'sweep'; readonly process: number; readonly atMs: number }
  | {
      readonly kind: 'mend'
      readonly process: number
      readonly atMs: number
      readonly key: number
      readonly action: 'release' | 'forget' | 'resolve' | 'keep'
    }

/** The same id in two scopes, and two ids in one: no client may get another key's answer. */
export const keys = [
  { scope: 'shop', id: '1' },
  { scope: 'bank', id: '1' },
  { scope: 'shop', id: '2' },
] as const

const hourMs = 3_600_000

/**
 * What a schedule is mostly about. Chance alone rarely brings together what belongs together: a claim that comes twice and an
 * effect that gave the key back in between (ghosts), a process that stands still while its effect is slow (zombies), retries
 * around the end of retention (expiry), duplicates that wait together in one process (crowd), a key that a person forgets under a
 * slow effect whose claim then comes once more (lives).
 */
type Theme = 'mixed' | 'ghosts' | 'zombies' | 'expiry' | 'crowd' | 'lives'

export function planFor(seed: number): Plan {
  const random = seededRandom(seed)
  const weather = random.chance(0.08) ? 'calm' : 'faulty'
  const theme =
    weather === 'calm'
      ? 'mixed'
      : random.weighted({ mixed: 50, ghosts: 11, zombies: 11, expiry: 11, crowd: 9, lives: 8 })
  const leaseMs = random.pick([600, 1_500, 4_000])
  const isShort = weather === 'faulty' && random.chance(theme === 'expiry' ? 1 : 0.25)
  const ground = {
    seed,
    core: 'rows',
    weather,
    theme,
    leaseMs,
    keepMs: isShort ? Math.ceil(leaseMs * (0.3 + random.fraction() * 2)) : hourMs,
    tombstoneMs: random.pick([0, leaseMs, hourMs]),
    attemptMs: weather === 'calm' ? leaseMs * 20 : Math.ceil(leaseMs * random.pick([0.7, 1.5, 3, 6])),
    storeTimeoutMs: random.pick([250, 700]),
    latencyMs: [1, random.pick([5, 30, 120])],
    healAtMs: leaseMs * 5,
  } as const
  const processes = planProcesses(random, leaseMs)
  const calls = planCalls(random, ground, processes.length)
  const calm = { messageFaults: [], worldFaults: [], conflictChance: 0 }
  const faults = weather === 'calm' ? calm : planFaults(random, ground, processes, calls)
  const plan: Plan = { ...ground, processes, calls, ...faults, deploys: [], isSealed: false }
  return weather === 'calm' ? plan : widened(plan)
}

/** What was added to schedules later is drawn by itself, so that a seed from before still means what it meant, and more. */
const widenedBy = 0x5eed

function widened(plan: Plan): Plan {
  const random = seededRandom(mixed(plan.seed, widenedBy))
  const { leaseMs, keepMs } = plan
  const process = (): number => random.integer(0, plan.processes.length - 1)
  const atMs = (): number => random.fraction() * leaseMs * 3.5
  const times = () => ({
    leaseMs: leaseMs * random.pick([0.5, 2]),
    keepMs: keepMs < hourMs ? Math.ceil(keepMs * random.pick([0.5, 2])) : keepMs,
  })
  const mend = (action: 'resolve' | 'keep'): WorldFault => {
    return { kind: 'mend', process: process(), atMs: atMs(), key: random.integer(0, 1), action }
  }
  // What a person finds out holds for the life that was looked at.
  const isOneLife =
    keepMs >= hourMs && !plan.worldFaults.some((each) => each.kind === 'mend' && each.action === 'forget')
  return {
    ...plan,
    isSealed: random.chance(0.3),
    processes: plan.processes.map((each) => (random.chance(0.25) ? { ...each, times: times() } : each)),
    deploys: random.chance(0.2)
      ? [{ process: process(), atMs: random.fraction() * leaseMs * 3, downMs: random.pick([10, leaseMs]) }]
      : [],
    worldFaults: [
      ...plan.worldFaults,
      ...(random.chance(0.2) ? [mend('keep')] : []),
      ...(isOneLife && random.chance(0.3) ? [mend('resolve'), mend('resolve')] : []),
    ],
  }
}

/** The same schedule for a Redis, which has no transactions and sweeps by itself, and may lose what it holds. */
export function redisPlanFor(seed: number): Plan {
  const plan = planFor(seed)
  const random = seededRandom(seed).fork(1)
  const ways = seededRandom(seed).fork(2)
  const atMs = random.fraction() * plan.leaseMs * 4
  const how = random.pick(['emptied', 'went-back'] as const)
  const loss: WorldFault = { kind: 'loss', atMs, how, rememberedAtMs: atMs * random.fraction() }
  const isLossy = plan.weather === 'faulty' && random.chance(0.15)
  // Longer than a process's mark is kept: what it counted on has gone by itself, and is no loss. A loss of before would go unnoticed.
  const isIdle = plan.weather === 'calm' ? random.chance(0.5) : !isLossy && random.chance(0.08)
  const idleMs = isIdle ? 8 * 24 * hourMs : 0
  return {
    ...plan,
    core: 'redis',
    hasIfEq: seededRandom(seed).fork(3).chance(0.5),
    healAtMs: plan.healAtMs + idleMs,
    // A call may wait for another one, find its script missing, and be sent again: six ways. In calm weather that is in time.
    storeTimeoutMs:
      plan.weather === 'calm' ? Math.max(plan.storeTimeoutMs, 7 * plan.latencyMs[1]) : plan.storeTimeoutMs,
    // Longer than that, too: in calm weather no key is executed twice.
    keepMs: plan.keepMs + (plan.weather === 'calm' ? 2 * idleMs : 0),
    processes: plan.processes.map(({ sweepEveryMs: _sweepEveryMs, ...process }) => ({
      ...process,
      isNative: ways.chance(0.6),
    })),
    calls: plan.calls.map((call, index) => ({ ...call, how: 'run', atMs: call.atMs + (index % 2) * idleMs })),
    worldFaults: [...plan.worldFaults.filter(({ kind }) => kind !== 'sweep'), ...(isLossy ? [loss] : [])],
    conflictChance: 0,
  }
}

type Ground = Pick<Plan, 'weather' | 'theme' | 'leaseMs' | 'latencyMs' | 'healAtMs' | 'keepMs'>

function planProcesses(random: SeededRandom, leaseMs: number): PlannedProcess[] {
  return Array.from({ length: random.integer(2, 3) }, (_, index) => ({
    name: `process ${index + 1}`,
    skewMs: random.chance(0.4) ? random.integer(-hourMs, hourMs) : 0,
    rate: random.chance(0.3) ? 0.999 + random.fraction() * 0.002 : 1,
    ...(random.chance(0.05) && { sweepEveryMs: leaseMs }),
  }))
}

function planCalls(random: SeededRandom, ground: Ground, processes: number): PlannedCall[] {
  const { leaseMs, weather, theme } = ground
  const isCrowd = theme === 'crowd'
  const keysUsed = isCrowd || theme === 'lives' ? 1 : random.weighted({ 1: 6, 2: 3, 3: 1 })
  const style = random.weighted(
    isCrowd ? { run: 50, transaction: 30, both: 20 } : { run: 70, transaction: 22, both: 8 },
  )
  const bursts = Array.from({ length: random.integer(1, 3) }, () => random.fraction() * leaseMs * 3)
  return Array.from({ length: random.integer(3, 6) }, () => ({
    process: isCrowd ? 0 : random.integer(0, processes - 1),
    atMs: random.pick(bursts) + random.fraction() * random.pick([2, 50, leaseMs]),
    key: random.integer(0, Number(keysUsed) - 1),
    asked: weather === 'faulty' && random.chance(isCrowd ? 0.3 : 0.1) ? 'that' : 'this',
    how: style === 'both' ? random.pick(['run', 'transaction']) : style,
    effects: Array.from({ length: random.integer(1, 2) }, () => planEffect(random, ground)),
    retries: weather === 'calm' ? 0 : random.integer(0, 2),
    retryMs: random.pick([10, 200, leaseMs]),
    waitMs: random.chance(isCrowd ? 0.9 : 0.35) ? Math.ceil(leaseMs * random.pick(isCrowd ? [1, 3] : [0.2, 1, 2])) : 0,
    onTakeover: random.chance(0.15) ? 'refuse' : 'run',
    onExpired: random.chance(0.3) ? 'run' : 'refuse',
    onThrow: random.weighted({ release: 8, store: 1, doubt: 1 }),
  }))
}

function planEffect(random: SeededRandom, { weather, theme, leaseMs }: Ground): PlannedEffect {
  const duration = (): number => {
    const kind = random.weighted({
      none: 3,
      short: 4,
      long: 3,
      longer: theme === 'zombies' || theme === 'lives' ? 6 : 2,
    })
    if (kind === 'none') return 0
    if (kind === 'short') return random.fraction() * 60
    return kind === 'long' ? leaseMs * random.fraction() : leaseMs * (0.8 + random.fraction() * 1.4)
  }
  const ends =
    weather === 'calm'
      ? random.weighted({ returns: 8, final: 2 })
      : random.weighted({
          returns: theme === 'ghosts' ? 15 : 60,
          throws: theme === 'ghosts' ? 25 : 10,
          final: 8,
          doubt: 5,
          'not-begun': theme === 'ghosts' ? 15 : 6,
          hangs: 5,
          'hangs-until-told': 4,
        })
  return { beforeMs: duration(), afterMs: duration(), ends }
}

function planFaults(
  random: SeededRandom,
  ground: Ground,
  processes: readonly PlannedProcess[],
  calls: readonly PlannedCall[],
): Pick<Plan, 'messageFaults' | 'worldFaults' | 'conflictChance'> {
  const count = (most: number): undefined[] => Array.from({ length: random.integer(0, most) }, () => undefined)
  const inTransactions = calls.some(({ how }) => how === 'transaction')
  const revival = ground.theme === 'lives' ? [planRevival(random, ground, calls)] : []
  return {
    messageFaults: [
      ...count(4).map(() => planMessageFault(random, ground, random.pick(processes).name)),
      ...(ground.theme === 'ghosts' ? processes.map(({ name }) => planGhost(random, ground, name)) : []),
      ...revival.map(({ process, delayMs }) => revivalOf(random, processes[process]!.name, delayMs)),
    ],
    worldFaults: [
      ...count(4).map(() => planWorldFault(random, ground, processes.length)),
      ...revival.map(({ forget }) => forget),
    ],
    conflictChance: inTransactions && random.chance(0.2) ? 0.3 : 0,
  }
}

function planMessageFault(random: SeededRandom, { leaseMs }: Ground, process: string): MessageFault {
  const does = random.weighted({
    'lose-request': 2,
    'lose-reply': 4,
    'delay-request': 2,
    'delay-reply': 2,
    duplicate: 4,
    refuse: 1,
    'crash-on-decision': 2,
  })
  const delayMs = random.pick([0, 30, 500, leaseMs * (0.5 + random.fraction() * 2)])
  // A loss that is never noticed ends by the time-out of the caller.
  const isSilent = (does === 'lose-request' || does === 'lose-reply') && random.chance(0.5)
  return { process, message: random.integer(0, 6), does, ...(!isSilent && { delayMs }) }
}

/** One of the first messages of a process, mostly a claim, comes once more when its effect has long ended. */
function planGhost(random: SeededRandom, { leaseMs }: Ground, process: string): MessageFault {
  const delayMs = random.pick([150, 600, leaseMs * 0.7, leaseMs * (1 + random.fraction() * 2)])
  return { process, message: random.pick([0, 0, 1, 2]), does: 'duplicate', delayMs }
}

type Asking = Pick<PlannedCall, 'process' | 'atMs'> & { readonly key?: number; readonly operation?: number }

/** Meanwhile a person forgets what is asked for first at its process, and soon after that its claim comes once more. */
export function planRevival(
  random: SeededRandom,
  { leaseMs, latencyMs }: Pick<Plan, 'leaseMs' | 'latencyMs'>,
  asked: readonly Asking[],
): { readonly process: number; readonly delayMs: number; readonly forget: WorldFault & { readonly kind: 'mend' } } {
  const { process } = random.pick(asked)
  const ofProcess = asked.filter((each) => each.process === process)
  const first = ofProcess.reduce((earliest, each) => (each.atMs < earliest.atMs ? each : earliest))
  const afterMs = leaseMs * random.fraction()
  const key = first.key ?? first.operation!
  return {
    process,
    delayMs: afterMs + latencyMs[1] + random.fraction() * leaseMs * 0.2,
    forget: { kind: 'mend', process, atMs: first.atMs + afterMs, key, action: 'forget' },
  }
}

/** Its claim, that is, unless something else is claimed before it. */
export function revivalOf(random: SeededRandom, process: string, delayMs: number): MessageFault {
  return { process, of: 'claim', message: random.pick([0, 0, 0, 1]), does: 'duplicate', delayMs }
}

function planWorldFault(random: SeededRandom, ground: Ground, processes: number): WorldFault {
  const { leaseMs, healAtMs, keepMs, theme } = ground
  const process = random.integer(0, processes - 1)
  const atMs = random.fraction() * leaseMs * 3.5
  const weights = { crash: 5, pause: theme === 'zombies' ? 15 : 6, jump: 2, outage: 2, sweep: 2, mend: 2 }
  const kind = random.weighted(theme === 'expiry' ? { ...weights, sweep: 8 } : weights)
  switch (kind) {
    case 'crash':
      return { kind, process, atMs, downMs: random.pick([10, leaseMs / 2, leaseMs * 2]) }
    case 'pause':
      return { kind, process, atMs, forMs: leaseMs * random.pick([0.3, 1.1, 2]), how: random.pick(['stop', 'suspend']) }
    case 'jump':
      return { kind, process, atMs, byMs: random.integer(-hourMs, hourMs) }
    case 'outage':
      return { kind, atMs, forMs: random.pick([50, 700, leaseMs * 1.2]) }
    case 'sweep':
      return { kind, process, atMs: Math.min(atMs + (keepMs < hourMs ? keepMs : 0), healAtMs) }
    case 'mend':
      return { kind, process, atMs, key: random.integer(0, 1), action: random.pick(['release', 'forget']) }
  }
}

/** The plan with one thing left out, each in its turn. */
export function* smallerPlans(plan: Plan): Generator<Plan> {
  for (const list of ['worldFaults', 'deploys', 'messageFaults', 'calls'] as const) {
    for (const index of plan[list].keys()) yield { ...plan, [list]: plan[list].filter((_, other) => other !== index) }
  }
  if (plan.isSealed) yield { ...plan, isSealed: false }
  if (plan.conflictChance > 0) yield { ...plan, conflictChance: 0 }
  for (const [index, { name, skewMs, rate, sweepEveryMs, times }] of plan.processes.entries()) {
    if (skewMs === 0 && rate === 1 && sweepEveryMs === undefined && times === undefined) continue
    yield { ...plan, processes: plan.processes.with(index, { name, skewMs: 0, rate: 1 }) }
  }
  for (const [index, call] of plan.calls.entries()) {
    if (call.retries > 0) yield { ...plan, calls: plan.calls.with(index, { ...call, retries: 0 }) }
    if (call.waitMs > 0) yield { ...plan, calls: plan.calls.with(index, { ...call, waitMs: 0 }) }
    for (const effect of call.effects.length > 1 ? call.effects : []) {
      yield { ...plan, calls: plan.calls.with(index, { ...call, effects: [effect] }) }
    }
  }
}

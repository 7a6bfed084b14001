// What a run has been through, and the least that it must have. A run that met less has shown nothing: it is INVALID.
import { type Judged, takeoversIn } from './judge.ts'

export interface Counts {
  kills: number
  zombies: number
  restarts: number
  cuts: number
  diskFull: number
  clockJumps: number
  calls: number
  keys: number
  executions: number
  effects: number
  takeovers: number
  fenced: number
  replays: number
  mismatches: number
  outcomeUnknown: number
  unavailable: number
  auditedWrites: number
  linearized: number
  undecided: number
}

export function noCounts(): Counts {
  return {
    kills: 0,
    zombies: 0,
    restarts: 0,
    cuts: 0,
    diskFull: 0,
    clockJumps: 0,
    calls: 0,
    keys: 0,
    executions: 0,
    effects: 0,
    takeovers: 0,
    fenced: 0,
    replays: 0,
    mismatches: 0,
    outcomeUnknown: 0,
    unavailable: 0,
    auditedWrites: 0,
    linearized: 0,
    undecided: 0,
  }
}

/** The targets of a run on all stores, and a third or less of what it meets besides. */
export const quotas: Readonly<Partial<Record<keyof Counts, number>>> = {
  kills: 500,
  zombies: 100,
  restarts: 20,
  cuts: 100,
  takeovers: 150,
  fenced: 60,
  mismatches: 20,
  // The COMMITs that are cut off on purpose are twice as many. What else is cut or killed at one brings some 50 to 100 in all.
  outcomeUnknown: 16,
  unavailable: 60,
}

/** Only where the machine lets us: see what was skipped. */
export const quotasWhereAllowed = { diskFull: 120, clockJumps: 20 } as const

export interface Met {
  readonly counts: Counts
  readonly scale: number
  readonly skipped: readonly string[]
  /** How often each point of a kill was met. */
  readonly points: Readonly<Record<string, number>>
  /** Every store was asked for. */
  readonly isWhole: boolean
  /** ONCEONLY_REQUIRE=all: what is missing on this machine is a failure of the run, whatever it is. */
  readonly isStrict: boolean
}

/** Why a run has shown too little. */
export function invalidities({ counts, scale, skipped, points, isWhole, isStrict }: Met): string[] {
  const unmet = Object.keys(points).filter((point) => points[point] === 0)
  const storesAreThere = skipped.every((line) => isOfMachine(line))
  return [
    ...(isStrict && !isWhole ? ['--only leaves stores out, and ONCEONLY_REQUIRE=all forbids it'] : []),
    ...(isStrict ? skipped.map((line) => `skipped: ${line} (a skip is a failure because ONCEONLY_REQUIRE=all)`) : []),
    ...unmet.map((point) => `never killed at ${point}`),
    ...(isStrict || (isWhole && storesAreThere) ? missedQuotas(counts, scale, isStrict ? [] : skipped) : []),
  ]
}

/** A full disk and a moved clock need what not every machine allows. */
const isOfMachine = (line: string): boolean => /^(full disk|moved clocks)/.test(line)

export function missedQuotas(counts: Counts, scale: number, skipped: readonly string[]): string[] {
  const wanted: Partial<Record<keyof Counts, number>> = { ...quotas }
  if (!skipped.some((line) => line.startsWith('full disk'))) wanted.diskFull = quotasWhereAllowed.diskFull
  if (!skipped.some((line) => line.startsWith('moved clocks'))) wanted.clockJumps = quotasWhereAllowed.clockJumps
  return Object.entries(wanted).flatMap(([name, once]) => {
    // What chance decides does not grow with the plan as exactly as the plan does.
    const least = once * (planned.includes(name) ? scale : Math.max(1, scale / 2))
    const met = counts[name as keyof Counts]
    return met < least ? [`${name}: ${met}, at least ${least} expected`] : []
  })
}

const planned: readonly string[] = ['kills', 'zombies', 'restarts'] satisfies (keyof Counts)[]

export function countHistory(counts: Counts, { history, linearized, undecided }: Judged): void {
  counts.calls += history.calls.length
  counts.keys += new Set(history.calls.map(({ key }) => `${key.scope}/${key.id}`)).size
  counts.executions += history.executions.length
  counts.effects += history.effects.length
  counts.takeovers += takeoversIn(history)
  counts.auditedWrites += history.changes.length
  counts.linearized += linearized
  counts.undecided += undecided
  for (const operation of history.operations) if (operation.answer === 'lost') counts.fenced++
  for (const { answer } of history.calls) {
    if (answer?.is === 'value' && answer.replayed) counts.replays++
    if (answer?.is !== 'refused') continue
    if (answer.code === 'MISMATCH') counts.mismatches++
    if (answer.code === 'OUTCOME_UNKNOWN') counts.outcomeUnknown++
    if (answer.code === 'STORE_UNAVAILABLE') counts.unavailable++
  }
}

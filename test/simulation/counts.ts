// What a run has been through. A run that met too little of what it is about has shown nothing: it is invalid, not passed.

import type { History } from '../../src/testing/history-checker.ts'
import { quotas } from './quotas.ts'
import type { NetworkCounts } from './world/network.ts'

export type Counts = NetworkCounts & {
  schedules: number
  calm: number
  calls: number
  executions: number
  crashes: number
  pauses: number
  clockJumps: number
  outages: number
  losses: number
  quarantined: number
  mends: number
  sweeps: number
  takeovers: number
  reopened: number
  fenced: number
  replays: number
  busy: number
  mismatches: number
  doubts: number
  expiries: number
  grantedAgain: number
  revivals: number
  commits: number
  rollbacks: number
  outcomeUnknown: number
  claimLost: number
  deadlines: number
  deploys: number
  sealed: number
  /** Schedules whose processes have different leases and retention. */
  mixed: number
  /** Schedules with a week in which nothing happens. */
  idle: number
  /** Schedules of Redis in which a process uses native commands. */
  native: number
  resolves: number
  keeps: number
}

/** Fewer schedules than this may miss a quota by chance. */
export const quotaSchedulesMin = 5_000

export function noCounts(): Counts {
  return {
    schedules: 0,
    calm: 0,
    calls: 0,
    executions: 0,
    crashes: 0,
    pauses: 0,
    clockJumps: 0,
    outages: 0,
    losses: 0,
    quarantined: 0,
    mends: 0,
    sweeps: 0,
    lostRequests: 0,
    lostAcknowledgements: 0,
    duplicates: 0,
    takeovers: 0,
    reopened: 0,
    fenced: 0,
    replays: 0,
    busy: 0,
    mismatches: 0,
    doubts: 0,
    expiries: 0,
    grantedAgain: 0,
    revivals: 0,
    commits: 0,
    rollbacks: 0,
    outcomeUnknown: 0,
    claimLost: 0,
    deadlines: 0,
    deploys: 0,
    sealed: 0,
    mixed: 0,
    idle: 0,
    native: 0,
    resolves: 0,
    keeps: 0,
  }
}

export function addCounts(sum: Record<string, number>, more: Readonly<Record<string, number>>): void {
  for (const [name, count] of Object.entries(more)) sum[name] = (sum[name] ?? 0) + count
}

/** What the history shows. Faults are counted where they are done. */
export function countHistory(counts: Counts, history: History): void {
  counts.calls += history.calls.length
  counts.executions += history.executions.length
  for (const { answer } of history.calls) {
    if (answer?.is !== 'refused') continue
    if (answer.message.startsWith('Redis has lost data')) counts.quarantined++
    if (answer.code === 'OUTCOME_UNKNOWN') counts.outcomeUnknown++
    if (answer.code === 'CLAIM_LOST') counts.claimLost++
    if (answer.code === 'DEADLINE_PASSED') counts.deadlines++
  }
  countRevivals(counts, history)
  for (const operation of history.operations) {
    if (operation.call === 'claim' || operation.call === 'begin') countVerdict(counts, operation)
    else if (operation.answer === 'lost') counts.fenced++
    if (operation.call === 'commit' && operation.answer === 'done') counts.commits++
    if (operation.call === 'rollback' && operation.answer === 'done') counts.rollbacks++
    if (operation.call === 'mend' && operation.answer) {
      counts.mends++
      if (typeof operation.action === 'object') counts['resolve' in operation.action ? 'resolves' : 'keeps']++
    }
    if (operation.call === 'sweep' && operation.answer) counts.sweeps++
  }
}

/** A claim that came once more began another life of its key, or of one that others had held since. */
function countRevivals(counts: Counts, { changes }: History): void {
  const held = new Set<string>()
  for (const { before, after } of changes) {
    if (!after || before?.token === after.token) continue
    if (held.has(after.token)) counts.revivals++
    held.add(after.token)
  }
}

const verdictCounts = {
  settled: 'replays',
  busy: 'busy',
  mismatch: 'mismatches',
  doubt: 'doubts',
  expired: 'expiries',
} as const

function countVerdict(
  counts: Counts,
  { answer, repeated }: History['operations'][number] & { call: 'claim' | 'begin' },
): void {
  if (!answer) return
  if (answer.is !== 'granted') counts[verdictCounts[answer.is]]++
  else if (repeated) counts.grantedAgain++
  else if (answer.how === 'taken-over') counts.takeovers++
  else if (answer.how === 'reopened') counts.reopened++
}

/** What the run met too little of. Quotas are for a thousand schedules. */
export function missedQuotas(
  counts: Readonly<Record<string, number>>,
  least: Readonly<Record<string, number>> = quotas,
): string[] {
  return Object.entries(least).flatMap(([name, perThousand]) => {
    const expected = Math.floor((perThousand * (counts['schedules'] ?? 0)) / 1_000)
    const met = counts[name] ?? 0
    return met < expected ? [`${name}: ${met}, at least ${expected} expected`] : []
  })
}

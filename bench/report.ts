// One line a target: what was measured, what was aimed at, whether it was reached. A missed target is said, not hidden; it
// does not fail the run, because a noisy machine is not a broken build.

import type { Compared, Round } from './measure.ts'
import { median } from './measure.ts'

export interface Target {
  readonly id: string
  readonly what: string
  readonly measured: number
  readonly atLeast?: number
  readonly atMost?: number
}

const reached: Target[] = []

export function report(target: Target): void {
  reached.push(target)
  process.stdout.write(`${line(target)}\n`)
}

export function reportRates(names: readonly [string, string], compared: Compared): void {
  const rates = (which: 0 | 1): string => {
    const of = (pick: (round: Round) => number): string =>
      median(compared.rounds.map((pair) => pick(pair[which]))).toPrecision(3)
    return `${names[which]} ${Number(of((each) => each.perSecond)).toFixed(0)}/s p50 ${of((each) => each.p50Ms)} ms p99 ${of((each) => each.p99Ms)} ms`
  }
  process.stdout.write(`      ${rates(0)}; ${rates(1)}\n`)
}

export function summarize(): void {
  const missed = reached.filter((target) => !isReached(target))
  process.stdout.write(
    `\n${reached.length - missed.length} of ${reached.length} targets reached${missed.length ? '; missed:' : ''}\n`,
  )
  for (const target of missed) process.stdout.write(`${line(target)}\n`)
}

function isReached({ measured, atLeast, atMost }: Target): boolean {
  return (atLeast === undefined || measured >= atLeast) && (atMost === undefined || measured <= atMost)
}

function line(target: Target): string {
  const aim = target.atLeast === undefined ? `≤ ${target.atMost}×` : `≥ ${target.atLeast}×`
  return `${isReached(target) ? 'ok    ' : 'MISSED'} ${target.id.padEnd(4)} ${target.what.padEnd(58)} ${target.measured.toFixed(2)}× (aim ${aim})`
}

// One line a target: what was measured, what was aimed at, whether it was reached. A missed target is said, not hidden; it
// does not fail the run, because a noisy machine is not a broken build. All of it goes to bench/results/latest.json, from where
// scripts/figures.ts writes it into the docs.

import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Compared, Round } from './measure.ts'
import { median } from './measure.ts'

export interface Target {
  readonly id: string
  readonly what: string
  readonly measured: number
  /** A figure without either is shown, and not aimed at. */
  readonly atLeast?: number
  readonly atMost?: number
  /** The least and the most of several runs. */
  readonly spread?: readonly [number, number]
  /** Default ×: a ratio. */
  readonly unit?: 'B' | 'MB' | 's' | 'rows'
}

/** What a part measured, on which day, and in how many runs. */
export interface PartResults {
  readonly day: string
  readonly runs: number
  readonly figures: readonly Target[]
}

export type Results = Readonly<Record<string, PartResults>>

const latest = join(import.meta.dirname, 'results/latest.json')

export function readResults(): Results {
  return existsSync(latest) ? (JSON.parse(readFileSync(latest, 'utf8')) as Results) : {}
}

/** Replaces the results of one part. The others stay as they were measured. */
export function writeResults(part: string, figures: readonly Target[]): void {
  const day = new Date().toISOString().slice(0, 10)
  mkdirSync(join(latest, '..'), { recursive: true })
  writeFileSync(latest, `${JSON.stringify({ ...readResults(), [part]: { day, runs: 1, figures } }, null, 2)}\n`)
}

const reached: Target[] = []

/** How many were reported before: a part's own are those from there on. */
export function reportedFrom(start: number): readonly Target[] {
  return reached.slice(start)
}

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
  const aimed = reached.filter(isAimed)
  const missed = aimed.filter((target) => !isReached(target))
  process.stdout.write(
    `\n${aimed.length - missed.length} of ${aimed.length} targets reached${missed.length ? '; missed:' : ''}\n`,
  )
  for (const target of missed) process.stdout.write(`${line(target)}\n`)
}

function isAimed({ atLeast, atMost }: Target): boolean {
  return atLeast !== undefined || atMost !== undefined
}

function isReached({ measured, atLeast, atMost }: Target): boolean {
  return (atLeast === undefined || measured >= atLeast) && (atMost === undefined || measured <= atMost)
}

function line(target: Target): string {
  const mark = !isAimed(target) ? '      ' : isReached(target) ? 'ok    ' : 'MISSED'
  const aim = isAimed(target) ? ` (aim ${aimOf(target)})` : ''
  return `${mark} ${target.id.padEnd(4)} ${target.what.padEnd(58)} ${amountOf(target)}${aim}`
}

/** As people read it: 2.16×, 404 B. */
export function amountOf({ measured, unit, spread }: Target): string {
  if (spread)
    return spread.map((each) => amountOf({ id: '', what: '', measured: each, ...(unit && { unit }) })).join(' to ')
  if (unit === undefined) return `${measured.toFixed(2)}×`
  return `${measured >= 100 ? measured.toFixed(0) : measured.toPrecision(2)} ${unit}`
}

export function aimOf({ atLeast, atMost, unit }: Target): string {
  const end = unit === 'rows' ? ' rows' : '×'
  if (atLeast !== undefined) return `≥ ${atLeast}${end}`
  return atMost === undefined ? '' : `≤ ${atMost}${end}`
}

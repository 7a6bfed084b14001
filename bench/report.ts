// One line a target: what was measured, what was aimed at, whether it was reached. A missed target is said, not hidden; it
// does not fail the run, because a noisy machine is not a broken build. A full run goes to bench/results/latest.json, from where
// scripts/figures.ts writes it into the docs. A quick run goes to bench/results/quick.json and never touches that record.

import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import type { Machine } from './machine.ts'
import { commit, machine } from './machine.ts'
import type { Compared, ComparedAll } from './measure.ts'
import { medianOf } from './measure.ts'
import type { Effort } from './plan.ts'
import { effort } from './plan.ts'

export interface Target {
  readonly id: string
  readonly what: string
  readonly measured: number
  /** A figure without either is shown, and not aimed at. */
  readonly atLeast?: number
  readonly atMost?: number
  /** The quartiles of the rounds. */
  readonly spread?: readonly [number, number]
  /** Default ×: a ratio. */
  readonly unit?: 'B' | 'MB' | 's' | 'ms' | 'µs' | 'rows'
}

/** What one unit of work took and cost with one variant, each figure the median of its rounds. */
export interface VariantRow {
  readonly name: string
  readonly perSecond?: number
  readonly p50Ms?: number
  readonly p99Ms?: number
  readonly clientCpuUs?: number
  readonly serverCpuUs?: number
  readonly serverCalls?: number
}

/** Variants that ran interleaved. */
export interface ComparisonRow {
  readonly title: string
  readonly variants: readonly VariantRow[]
}

/** What a part measured: when, of which commit, and on what. */
export interface PartResults {
  readonly day: string
  readonly commit?: string
  readonly effort?: Effort
  readonly tookS?: number
  readonly machine?: Machine
  readonly figures: readonly Target[]
  readonly comparisons?: readonly ComparisonRow[]
}

export type Results = Readonly<Record<string, PartResults>>

const results = join(import.meta.dirname, 'results')

export function resultsPath(of: Effort): string {
  return join(results, of === 'quick' ? 'quick.json' : 'latest.json')
}

export function readResults(path: string = resultsPath('full')): Results {
  return existsSync(path) ? (JSON.parse(readFileSync(path, 'utf8')) as Results) : {}
}

/** Replaces the results of one part. The others stay as they were measured. */
export function writeResults(part: string, measured: Reported, tookS: number, path = resultsPath(effort())): void {
  const day = new Date().toISOString().slice(0, 10)
  const found: PartResults = { day, commit: commit(), effort: effort(), tookS, machine: machine(), ...measured }
  mkdirSync(dirname(path), { recursive: true })
  writeFileSync(path, `${JSON.stringify({ ...readResults(path), [part]: rounded(found) }, null, 2)}\n`)
}

/** To four digits: more would be noise, and the file is read by people. */
function rounded<T>(value: T): T {
  const short = (_key: string, each: unknown): unknown =>
    typeof each === 'number' && !Number.isInteger(each) ? Number(each.toPrecision(4)) : each
  return JSON.parse(JSON.stringify(value, short)) as T
}

export interface Reported {
  readonly figures: readonly Target[]
  readonly comparisons: readonly ComparisonRow[]
}

const figures: Target[] = []
const comparisons: ComparisonRow[] = []

/** How much was reported so far: a part's own is what comes after. */
export function reportedSoFar(): { figures: number; comparisons: number } {
  return { figures: figures.length, comparisons: comparisons.length }
}

export function reportedSince(before: ReturnType<typeof reportedSoFar>): Reported {
  return { figures: figures.slice(before.figures), comparisons: comparisons.slice(before.comparisons) }
}

export function report(target: Target): void {
  figures.push(target)
  say(line(target))
}

/** The variants of a comparison, one line each. A target whose text begins with `title` has them beside it in the table. */
export function reportComparison(title: string, compared: ComparedAll): void {
  reportVariants(
    title,
    compared.names.map((name) => rowOf(name, compared)),
  )
}

/** Variants that were not measured by `compare`. */
export function reportVariants(title: string, variants: readonly VariantRow[]): void {
  comparisons.push({ title, variants })
  const width = Math.max(...variants.map(({ name }) => name.length))
  for (const variant of variants) say(`       ${variant.name.padEnd(width)}  ${costsOf(variant)}`)
}

/** As `reportComparison`, of the target that was reported last. */
export function reportRates(_names: readonly [string, string], compared: Compared, title?: string): void {
  reportComparison(title ?? figures.at(-1)?.what.split(': ')[0] ?? '', compared.all)
}

function rowOf(name: string, compared: ComparedAll): VariantRow {
  const row = {
    perSecond: medianOf(compared, 'perSecond', name),
    p50Ms: medianOf(compared, 'p50Ms', name),
    p99Ms: medianOf(compared, 'p99Ms', name),
    clientCpuUs: medianOf(compared, 'cpuMs', name) * 1_000,
    serverCpuUs: medianOf(compared, 'serverCpuMs', name) * 1_000,
    serverCalls: compared.serverCalls.get(name) ?? Number.NaN,
  }
  // What could not be measured is left out.
  return { name, ...Object.fromEntries(Object.entries(row).filter(([, value]) => !Number.isNaN(value))) }
}

function costsOf({ perSecond, p50Ms, p99Ms, clientCpuUs, serverCpuUs, serverCalls }: VariantRow): string {
  const words = [
    perSecond === undefined ? '' : `${short(perSecond)}/s`,
    p50Ms === undefined ? '' : `p50 ${digits(p50Ms)} ms`,
    p99Ms === undefined ? '' : `p99 ${digits(p99Ms)} ms`,
    clientCpuUs === undefined ? '' : `CPU ${digits(clientCpuUs)} µs`,
    serverCpuUs === undefined ? '' : `of servers ${digits(serverCpuUs)} µs`,
    serverCalls === undefined ? '' : `${digits(serverCalls)} calls of servers`,
  ]
  return words.filter(Boolean).join('  ')
}

/** 3 digits, without an exponent. */
export function digits(value: number): string {
  if (value >= 100) return value.toFixed(0)
  return value >= 10 ? value.toFixed(1) : value.toFixed(value >= 0.1 || value === 0 ? 2 : 3)
}

/** 940, 9.4k, 94k. */
export function short(value: number): string {
  if (value < 1_000) return value.toFixed(0)
  return `${(value / 1_000).toFixed(value < 100_000 ? 1 : 0)}k`
}

/** Everything at the end, as one table: id, what, target, measured (quartiles), verdict, and who ran beside it. */
export function summarize(): void {
  say(`\n${tableOf(figures, comparisons)}\n`)
  const aimed = figures.filter(isAimed)
  const missed = aimed.filter((target) => !isReached(target))
  say(`${aimed.length - missed.length} of ${aimed.length} targets reached${missed.length ? '; missed:' : ''}`)
  for (const target of missed) say(line(target))
}

export function tableOf(all: readonly Target[], beside: readonly ComparisonRow[]): string {
  const number = (id: string): number => (/^P\d+$/.test(id) ? Number(id.slice(1)) : 1_000)
  const rows = all
    .toSorted((a, b) => number(a.id) - number(b.id))
    .map((each) => [each.id, each.what, aimOf(each), amountOf(each), verdictOf(each), besideOf(each, beside)])
  const table = [['id', 'what', 'target', 'measured (quartiles)', 'verdict', 'in the same run'], ...rows]
  const widths = table[0]!.map((_, column) => Math.max(...table.map((row) => row[column]!.length)))
  return table
    .map((row) =>
      row
        .map((cell, at) => cell.padEnd(widths[at]!))
        .join('  ')
        .trimEnd(),
    )
    .join('\n')
}

/** Whoever ran in the comparison that the target speaks of: naive 3.3k/s, onceonly 15.2k/s. */
export function besideOf({ what }: Target, all: readonly ComparisonRow[]): string {
  const found = all.find(({ title }) => title !== '' && what.startsWith(title))
  const shown = found?.variants.flatMap(({ name, perSecond, clientCpuUs }) => {
    if (perSecond !== undefined) return `${name} ${short(perSecond)}/s`
    return clientCpuUs === undefined ? [] : `${name} ${digits(clientCpuUs)} µs`
  })
  return shown?.join(', ') ?? ''
}

export function isAimed({ atLeast, atMost }: Target): boolean {
  return atLeast !== undefined || atMost !== undefined
}

export function isReached({ measured, atLeast, atMost }: Target): boolean {
  return (atLeast === undefined || measured >= atLeast) && (atMost === undefined || measured <= atMost)
}

export function verdictOf(target: Target): 'reached' | 'MISSED' | '' {
  if (!isAimed(target)) return ''
  return isReached(target) ? 'reached' : 'MISSED'
}

function line(target: Target): string {
  const aim = isAimed(target) ? ` (aim ${aimOf(target)})` : ''
  return `${verdictOf(target).padEnd(7)} ${target.id.padEnd(4)} ${target.what.padEnd(58)} ${amountOf(target)}${aim}`
}

/** As people read it: 2.16× (2.02 to 2.21), 404 B. */
export function amountOf({ measured, unit, spread }: Target): string {
  const end = unit === undefined ? '×' : ` ${unit}`
  const one = (value: number): string => (unit === 'rows' ? value.toFixed(0) : digits(value))
  return `${one(measured)}${end}${spread ? ` (${one(spread[0])} to ${one(spread[1])})` : ''}`
}

export function aimOf({ atLeast, atMost, unit }: Target): string {
  const end = unit === undefined ? '×' : ` ${unit}`
  if (atLeast !== undefined) return `≥ ${atLeast}${end}`
  return atMost === undefined ? '' : `≤ ${atMost}${end}`
}

function say(text: string): void {
  process.stdout.write(`${text}\n`)
}

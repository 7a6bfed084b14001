// Compares variants in one interleaved run: machines are shared and noisy, so only the ratio of rounds that lie side by side
// means anything. Every round runs every variant, odd rounds in the reverse order. A figure is the median of the paired ratios, and its
// spread are their quartiles.

import { serverCpu } from './server-cpu.ts'
import { countServerCalls } from './server-calls.ts'
import { effort, size } from './plan.ts'

export interface Variant {
  readonly name: string
  /** Does one unit of work; `index` is new for every call of every round. */
  work(index: number): Promise<unknown>
  /** Before each round, outside the measured time. */
  prepare?(operations: number): Promise<void>
  /** After each round, outside the measured time: throws unless so many units of work were done since `prepare`. */
  verify?(operations: number): Promise<void>
}

export interface Comparison {
  readonly concurrency: number
  /** Units of work a round and variant. A quick run does a part of them. */
  readonly operations: number
  readonly rounds?: number
}

export interface Round {
  readonly perSecond: number
  readonly p50Ms: number
  readonly p99Ms: number
  /** Of this process, for each unit of work. */
  readonly cpuMs: number
  /** Of all processes that the bench has started, for each unit of work. NaN where the system does not say. */
  readonly serverCpuMs: number
}

/** Of one variant to another. */
export interface Ratio {
  /** The median over the rounds, each compared with its own. */
  readonly measured: number
  /** The quartiles. */
  readonly spread: readonly [number, number]
}

export interface ComparedAll {
  readonly names: readonly string[]
  readonly rounds: readonly ReadonlyMap<string, Round>[]
  /** Statements or reads that the servers counted, for each unit of work. */
  readonly serverCalls: ReadonlyMap<string, number>
}

export interface Compared {
  /** Of the second variant to the first, each the median over the rounds. */
  readonly throughput: number
  readonly p50: number
  readonly p99: number
  readonly cpu: number
  readonly serverCpu: number
  readonly rounds: readonly (readonly [Round, Round])[]
  readonly all: ComparedAll
}

let nextIndex = 0
// A quick run does this part of a full one, in as many rounds as the targets ask for.
const quickPart = 0.3
const quickRounds = 5

function planned({ concurrency, operations, rounds = 5 }: Comparison): Required<Comparison> {
  if (effort() !== 'quick') return { concurrency, operations, rounds }
  const fewer = Math.max(concurrency, Math.ceil(operations * quickPart))
  return { concurrency, operations: Math.min(operations, fewer), rounds: Math.min(rounds, quickRounds) }
}

/** All variants within each round, the order reversed on odd rounds. */
export async function compareAll(variants: readonly Variant[], asked: Comparison): Promise<ComparedAll> {
  const comparison = planned(asked)
  const names = variants.map(({ name }) => name)
  if (new Set(names).size < names.length) throw new Error(`two variants have one name: ${names.join(', ')}`)
  const short = { ...comparison, operations: Math.max(comparison.concurrency, Math.ceil(comparison.operations / 5)) }
  for (const variant of variants) await warmUp(variant, short)
  const rounds: ReadonlyMap<string, Round>[] = []
  for (let count = 0; count < comparison.rounds; count++) {
    const measured = new Map<string, Round>()
    for (const variant of count % 2 === 0 ? variants : variants.toReversed()) {
      measured.set(variant.name, await round(variant, comparison))
    }
    rounds.push(measured)
  }
  return { names, rounds, serverCalls: await callsOf(variants, short) }
}

// A server that has run for a minute has its code compiled, and that is what is compared. Compiling happens in the rounds otherwise, and
// costs most where most code is called: without it one caller on Redis reached 0.67 of node-idempotency's calls, and with it 0.76 to 0.80. So
// many calls of one way are enough, and a way that is slow has its time limit.
const warmUpOperations = (): number => size(16_000, 8_000)
const warmUpMs = (): number => size(4_000, 1_500)

async function warmUp(variant: Variant, short: Required<Comparison>): Promise<void> {
  const untilMs = performance.now() + warmUpMs()
  for (let did = 0; did < warmUpOperations() && performance.now() < untilMs; did += short.operations) {
    await round(variant, short)
  }
}

// In rounds of their own: counting costs the server time for every statement, most where there are most of them.
async function callsOf(variants: readonly Variant[], short: Comparison): Promise<ReadonlyMap<string, number>> {
  const calls = new Map<string, number>()
  for (const variant of variants) {
    await variant.prepare?.(short.operations)
    // Without its preparation and its proof, which call the server, too.
    const { name, work } = variant
    const counted = await countServerCalls(() => round({ name, work: (index) => work.call(variant, index) }, short))
    if (counted !== undefined) calls.set(variant.name, counted / short.operations)
  }
  return calls
}

export async function compare(variants: readonly [Variant, Variant], comparison: Comparison): Promise<Compared> {
  const all = await compareAll(variants, comparison)
  const [first, second] = [variants[0].name, variants[1].name]
  const of = (measure: keyof Round): number => ratioIn(all, measure, second, first).measured
  return {
    throughput: of('perSecond'),
    p50: of('p50Ms'),
    p99: of('p99Ms'),
    cpu: of('cpuMs'),
    serverCpu: of('serverCpuMs'),
    rounds: all.rounds.map((each) => [each.get(first)!, each.get(second)!]),
    all,
  }
}

/** Of one variant to another: `ratioIn(compared, 'perSecond', 'onceonly', 'naive')`. */
export function ratioIn({ rounds }: ComparedAll, measure: keyof Round, of: string, to: string): Ratio {
  return ratioFrom(rounds.map((each) => each.get(of)![measure] / each.get(to)![measure]))
}

/** The median of paired ratios, and their quartiles. */
export function ratioFrom(ratios: readonly number[]): Ratio {
  return { measured: median(ratios), spread: [quantile(ratios, 0.25), quantile(ratios, 0.75)] }
}

/** The middle of a variant's rounds. */
export function medianOf({ rounds }: ComparedAll, measure: keyof Round, of: string): number {
  return median(rounds.map((each) => each.get(of)![measure]))
}

async function round(variant: Variant, { concurrency, operations }: Comparison): Promise<Round> {
  await variant.prepare?.(operations)
  const durationsMs: number[] = []
  let started = 0
  const worker = async (): Promise<void> => {
    while (started++ < operations) {
      const beganMs = performance.now()
      await variant.work(nextIndex++)
      durationsMs.push(performance.now() - beganMs)
    }
  }
  const serversSpentMs = serverCpu()
  const beganMs = performance.now()
  const usedBefore = process.cpuUsage()
  await Promise.all(Array.from({ length: concurrency }, worker))
  const tookMs = performance.now() - beganMs
  const used = process.cpuUsage(usedBefore)
  const serverCpuMs = serversSpentMs() / operations
  if (durationsMs.length !== operations) throw new Error(`${variant.name} did ${durationsMs.length} of ${operations}`)
  await variant.verify?.(operations)
  const cpuMs = (used.user + used.system) / 1_000 / operations
  return { perSecond: (operations / tookMs) * 1_000, ...percentiles(durationsMs), cpuMs, serverCpuMs }
}

export function percentiles(durationsMs: readonly number[]): Pick<Round, 'p50Ms' | 'p99Ms'> {
  const sorted = durationsMs.toSorted((a, b) => a - b)
  const at = (part: number): number => sorted[Math.floor((sorted.length - 1) * part)]!
  return { p50Ms: at(0.5), p99Ms: at(0.99) }
}

/** What is filled, and then drained. The draining is measured. */
export interface Drained {
  readonly name: string
  readonly rows: number
  /** Before each round, outside the measured time. */
  fill(count: number): Promise<void>
  /** Until all of them are done with. Resolves to how many that were, where it may be more. */
  drain(count: number): Promise<number | void>
  /** After each round, outside the measured time. */
  verify?(): Promise<void>
}

export type Rates = ReadonlyMap<string, readonly number[]>

/** What draining costs, a row as the unit of work. A row has no latency of its own: p50 and p99 are NaN. */
export async function compareDrains(all: readonly Drained[], rounds: number): Promise<ComparedAll> {
  const measured: Map<string, Round>[] = []
  for (let round = -size(3, 2); round < (effort() === 'quick' ? Math.min(rounds, quickRounds) : rounds); round++) {
    const costs = new Map<string, Round>()
    for (const each of round % 2 === 0 ? all : all.toReversed()) costs.set(each.name, await drained(each, round < 0))
    // The first rounds warm up.
    if (round >= 0) measured.push(costs)
  }
  return { names: all.map(({ name }) => name), rounds: measured, serverCalls: new Map() }
}

async function drained({ rows, fill, drain, verify }: Drained, warmsUp: boolean): Promise<Round> {
  // As many in a quick run: with fewer rows, the start of a worker would be what is measured.
  const count = warmsUp ? Math.ceil(rows / 10) : rows
  await fill(count)
  const serversSpentMs = serverCpu()
  const [beganMs, usedBefore] = [performance.now(), process.cpuUsage()]
  const did = (await drain(count)) ?? count
  const [tookMs, used] = [performance.now() - beganMs, process.cpuUsage(usedBefore)]
  const serverCpuMs = serversSpentMs() / did
  await verify?.()
  const cpuMs = (used.user + used.system) / 1_000 / did
  return { perSecond: (did / tookMs) * 1_000, p50Ms: Number.NaN, p99Ms: Number.NaN, cpuMs, serverCpuMs }
}

/** Rows per second of each, per round. */
export async function drainRates(all: readonly Drained[], rounds: number): Promise<Rates> {
  const compared = await compareDrains(all, rounds)
  return new Map(all.map(({ name }) => [name, compared.rounds.map((each) => each.get(name)!.perSecond)]))
}

/** The median over rounds that lie side by side. */
export function ratioOf(rates: Rates, of: string, to: string): number {
  return median(rates.get(of)!.map((rate, round) => rate / rates.get(to)![round]!))
}

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.floor(sorted.length / 2)]!
}

/** Between two neighbours, as far from the one as from the other. */
export function quantile(values: readonly number[], part: number): number {
  const sorted = values.toSorted((a, b) => a - b)
  const at = (sorted.length - 1) * part
  const below = Math.floor(at)
  const above = sorted[Math.min(below + 1, sorted.length - 1)]!
  return sorted[below]! + (above - sorted[below]!) * (at - below)
}

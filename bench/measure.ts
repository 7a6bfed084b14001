// Compares variants in one interleaved run: machines are shared and noisy, so only the ratio of rounds that lie side by side
// means anything. The order changes with every round, and the figures are medians over the rounds.

export interface Variant {
  readonly name: string
  /** Does one unit of work; `index` is new for every call of every round. */
  work(index: number): Promise<unknown>
  /** Before each round, outside the measured time. */
  prepare?(operations: number): Promise<void>
}

export interface Comparison {
  readonly concurrency: number
  /** Units of work a round and variant. */
  readonly operations: number
  readonly rounds?: number
}

export interface Round {
  readonly perSecond: number
  readonly p50Ms: number
  readonly p99Ms: number
  /** Of this process, for each unit of work. */
  readonly cpuMs: number
}

export interface Compared {
  /** Of the second variant to the first, each the median over the rounds. */
  readonly throughput: number
  readonly p50: number
  readonly p99: number
  readonly cpu: number
  readonly rounds: readonly (readonly [Round, Round])[]
}

let nextIndex = 0

export async function compare(variants: readonly [Variant, Variant], comparison: Comparison): Promise<Compared> {
  const { rounds = 5 } = comparison
  const warmUp = { ...comparison, operations: Math.max(comparison.concurrency, Math.ceil(comparison.operations / 5)) }
  for (const variant of variants) await round(variant, warmUp)
  const measured: [Round, Round][] = []
  for (let count = 0; count < rounds; count++) {
    const order = count % 2 === 0 ? ([0, 1] as const) : ([1, 0] as const)
    const pair: Partial<[Round, Round]> = []
    for (const which of order) pair[which] = await round(variants[which], comparison)
    measured.push(pair as [Round, Round])
  }
  const ratio = (of: (round: Round) => number): number =>
    median(measured.map(([first, second]) => of(second) / of(first)))
  return {
    throughput: ratio((each) => each.perSecond),
    p50: ratio((each) => each.p50Ms),
    p99: ratio((each) => each.p99Ms),
    cpu: ratio((each) => each.cpuMs),
    rounds: measured,
  }
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
  const beganMs = performance.now()
  const usedBefore = process.cpuUsage()
  await Promise.all(Array.from({ length: concurrency }, worker))
  const tookMs = performance.now() - beganMs
  const used = process.cpuUsage(usedBefore)
  durationsMs.sort((a, b) => a - b)
  const at = (part: number): number => durationsMs[Math.floor((durationsMs.length - 1) * part)]!
  const cpuMs = (used.user + used.system) / 1_000 / durationsMs.length
  return { perSecond: (durationsMs.length / tookMs) * 1_000, p50Ms: at(0.5), p99Ms: at(0.99), cpuMs }
}

/** What is filled, and then drained. The draining is measured. */
export interface Drained {
  readonly name: string
  readonly rows: number
  /** Before each round, outside the measured time. */
  fill(count: number): Promise<void>
  /** Until all of them are done with. */
  drain(count: number): Promise<void>
  /** After each round, outside the measured time. */
  verify?(): Promise<void>
}

export type Rates = ReadonlyMap<string, readonly number[]>

/** Rows per second of each, per round. The order changes with every round. */
export async function drainRates(all: readonly Drained[], rounds: number): Promise<Rates> {
  const rates = new Map<string, number[]>(all.map(({ name }) => [name, []]))
  for (let round = -1; round < rounds; round++) {
    for (const each of round % 2 === 0 ? all : all.toReversed()) {
      const count = round < 0 ? Math.ceil(each.rows / 10) : each.rows
      await each.fill(count)
      const beganMs = performance.now()
      await each.drain(count)
      const rate = (count / (performance.now() - beganMs)) * 1_000
      await each.verify?.()
      // The first round warms up.
      if (round >= 0) rates.get(each.name)!.push(rate)
    }
  }
  return rates
}

/** The median over rounds that lie side by side. */
export function ratioOf(rates: Rates, of: string, to: string): number {
  return median(rates.get(of)!.map((rate, round) => rate / rates.get(to)![round]!))
}

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.floor(sorted.length / 2)]!
}

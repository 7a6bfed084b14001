// npm run simulate -- --seed S --schedules N [--what keys|redis|operations|inbox|ways|relay|chain|sessions] [--seconds T] [--workers W] [--json FILE] [--fresh [--record]]
//
// Runs the schedules of the seeds S, S + 1, … on all cores. With --fresh it chooses S by chance, and with --record it adds itself to
// searches.json, so that many runs are one search (scripts/guarantees.ts reports them). Exit code 0: no violation, and the quotas were met. 1: a
// violation, with its story. 2: INVALID, the run met too little of what it is about.

import { randomInt } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { parseArgs } from 'node:util'
import { isMainThread, parentPort, Worker } from 'node:worker_threads'
import { mixed } from '../../src/testing/seeded-random.ts'
import { addCounts, missedQuotas, quotaSchedulesMin } from './counts.ts'
import { commit, describeFailure } from './failure.ts'
import { recordSearch } from './searches.ts'
import { simulations } from './simulations.ts'

type Counts = Record<string, number>

interface Batch {
  readonly what: string
  readonly seed: number
  readonly schedules: number
}

interface BatchDone {
  readonly counts: Counts
  /** Of all traces of the batch, so that two runs can be compared. */
  readonly traceHash: number
  readonly failed: readonly number[]
}

/** Long enough that handing out costs nothing, short enough that the cores end together. */
const batchSchedules = 250
/** The first failures tell enough. The rest are mostly the same. */
const failuresMax = 3

async function runBatch({ what, seed, schedules }: Batch): Promise<BatchDone> {
  const { planFor, judgePlan } = simulations[what]!
  const counts: Counts = {}
  const failed: number[] = []
  let traceHash = 0
  for (let each = seed; each < seed + schedules; each++) {
    const judged = await judgePlan(planFor(each))
    addCounts(counts, judged.counts)
    traceHash = mixed(traceHash, judged.traceHash)
    if (judged.violations.length > 0) failed.push(each)
  }
  return { counts, traceHash, failed }
}

interface Wanted {
  readonly what: string
  readonly seed: number
  readonly schedules: number
  readonly seconds: number
  readonly workers: number
  readonly json: string | undefined
  readonly fresh: boolean
  readonly record: boolean
}

/** Far from the seeds that are run every time, which begin at 1. */
const freshSeeds = [1_000_000_000, 2_000_000_000] as const

function readWanted(): Wanted {
  const { values } = parseArgs({
    options: {
      what: { type: 'string', default: 'keys' },
      seed: { type: 'string', default: '1' },
      schedules: { type: 'string', default: '20000' },
      seconds: { type: 'string', default: '0' },
      workers: { type: 'string', default: String(availableParallelism()) },
      json: { type: 'string' },
      fresh: { type: 'boolean', default: false },
      record: { type: 'boolean', default: false },
    },
  })
  const whole = (name: 'seed' | 'schedules' | 'seconds' | 'workers', least: number): number => {
    const value = Number(values[name])
    if (Number.isSafeInteger(value) && value >= least) return value
    throw new Error(`expected --${name} to be a whole number from ${least} on, got "${values[name]}"`)
  }
  const { what } = values
  if (!Object.hasOwn(simulations, what)) {
    throw new Error(`expected --what to be one of ${Object.keys(simulations).join(', ')}, got "${what}"`)
  }
  return {
    what,
    seed: values.fresh ? randomInt(...freshSeeds) : whole('seed', 0),
    schedules: whole('schedules', 1),
    seconds: whole('seconds', 0),
    workers: whole('workers', 1),
    json: values.json,
    fresh: values.fresh,
    record: values.record,
  }
}

interface Total {
  readonly counts: Counts
  readonly failed: number[]
  traceHash: number
}

/** At least as many schedules as were asked for, and on until the time has passed. */
async function runAll(wanted: Wanted): Promise<Total> {
  const untilMs = performance.now() + wanted.seconds * 1_000
  const total: Total = { counts: {}, failed: [], traceHash: 0 }
  let handedOut = 0
  const next = (): Batch | undefined => {
    const left = wanted.schedules - handedOut
    if (total.failed.length >= failuresMax || (left <= 0 && performance.now() >= untilMs)) return undefined
    const schedules = left > 0 ? Math.min(batchSchedules, left) : batchSchedules
    const batch = { what: wanted.what, seed: wanted.seed + handedOut, schedules }
    handedOut += schedules
    return batch
  }
  const add = ({ counts, failed, traceHash }: BatchDone, { seed }: Batch): void => {
    addCounts(total.counts, counts)
    total.failed.push(...failed)
    // A sum, as batches end in any order.
    total.traceHash = (total.traceHash + mixed(traceHash, seed)) >>> 0
  }
  await Promise.all(Array.from({ length: wanted.workers }, () => runWorker(next, add)))
  return total
}

function runWorker(next: () => Batch | undefined, add: (done: BatchDone, batch: Batch) => void): Promise<void> {
  return new Promise((resolve, reject) => {
    let batch = next()
    if (!batch) return resolve()
    // Everything in a schedule is young when it dies: with room for it, nothing is copied around.
    const worker = new Worker(import.meta.filename, { resourceLimits: { maxYoungGenerationSizeMb: 64 } })
    worker.on('error', reject)
    worker.on('message', (done: BatchDone) => {
      add(done, batch!)
      batch = next()
      if (batch) worker.postMessage(batch)
      else void worker.terminate().then(() => resolve())
    })
    worker.postMessage(batch)
  })
}

function work(): void {
  // No stack is ever read here, and taking them costs a tenth of the time.
  Error.stackTraceLimit = 0
  const port = parentPort!
  const answer = async (batch: Batch): Promise<void> => port.postMessage(await runBatch(batch))
  port.on('message', (batch: Batch) => void answer(batch))
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}

async function main(): Promise<void> {
  const wanted = readWanted()
  const simulation = simulations[wanted.what]!
  const beganMs = performance.now()
  const { counts, failed, traceHash } = await runAll(wanted)
  const seconds = (performance.now() - beganMs) / 1_000
  for (const [name, count] of Object.entries(counts)) say(`${name.padEnd(22)} ${String(count).padStart(12)}`)
  const schedules = counts['schedules'] ?? 0
  const rate = Math.round(schedules / seconds)
  // On a machine that others use, too, only this can be compared.
  const { user, system } = process.cpuUsage()
  const cpuMs = ((user + system) / 1_000 / schedules).toFixed(2)
  say(
    `${wanted.what}, seed ${wanted.seed}, trace ${traceHash.toString(16)}, ${seconds.toFixed(1)} s, ${rate} schedules a second on ${wanted.workers} cores, ${cpuMs} ms of processor time each`,
  )
  const missed = schedules < quotaSchedulesMin ? [] : missedQuotas(counts, simulation.quotas)
  for (const line of missed) say(`INVALID: ${line}`)
  for (const seed of failed.slice(0, failuresMax)) say(`\n${await describeFailure(simulation, seed)}`)
  say(verdict(failed.length, missed.length))
  if (schedules < quotaSchedulesMin) say(`(quotas are looked at from ${quotaSchedulesMin} schedules on)`)
  if (wanted.json) {
    const run = { ...wanted, commit: commit(), seconds, counts, traceHash, failed, missed }
    writeFileSync(wanted.json, JSON.stringify(run, null, 2))
  }
  if (wanted.fresh && wanted.record) recordSearch(wanted.what, { commit: commit(), schedules, found: failed.length })
  process.exitCode = failed.length > 0 ? 1 : missed.length > 0 ? 2 : 0
}

function verdict(failed: number, missed: number): string {
  if (failed > 0) return `FAILED: ${failed} schedules with violations`
  return missed > 0 ? 'INVALID: no violation, and too little was met' : '0 violations'
}

if (isMainThread) await main()
else work()

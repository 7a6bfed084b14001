// One schedule, from its seed to its judgement. The same seed always gives the same trace.

import { setImmediate } from 'node:timers/promises'
import { tellStory } from '../../src/testing/history-checker.ts'
import type { Violation } from '../../src/testing/history-checker.ts'
import { countHistory } from './counts.ts'
import type { Counts } from './counts.ts'
import { judge } from './judge.ts'
import { planFor } from './plan.ts'
import type { Plan } from './plan.ts'
import { runPlan } from './workload.ts'
import type { Run } from './workload.ts'

export interface Judged {
  readonly run: Run
  readonly counts: Counts
  readonly traceHash: number
  readonly violations: readonly Violation[]
  story(): string
}

/** One schedule of so many takes a turn of the event loop for each event, to see rejections that are handled too late. */
const thoroughEvery = 64

export async function runSchedule(seed: number): Promise<Judged> {
  return judgePlan(planFor(seed))
}

export async function judgePlan(plan: Plan): Promise<Judged> {
  const rejections: unknown[] = []
  const collect = (reason: unknown): void => void rejections.push(reason)
  process.on('unhandledRejection', collect)
  try {
    const run = await runPlan(plan, { drain: plan.seed % thoroughEvery === 0 ? 'thorough' : 'quick' })
    await setImmediate() // Node reports what was rejected at the end of its turn
    countHistory(run.counts, run.history)
    const { counts, traceHash, history } = run
    return { run, counts, traceHash, violations: judge(run, rejections), story: () => tellStory(history) }
  } finally {
    process.off('unhandledRejection', collect)
  }
}

// One schedule of operations, from its seed to its judgement.

import { setImmediate } from 'node:timers/promises'
import { checkStore } from '../../src/testing/history-checker.ts'
import { checkOperations } from './world/operations/checker.ts'
import { tellOperations } from './world/operations/checker/story.ts'
import type { Violation } from '../../src/testing/history-checker.ts'
import { countOperations } from './operation-counts.ts'
import type { OperationCounts } from './operation-counts.ts'
import type { OperationPlan } from './operation-plan.ts'
import { runOperationPlan } from './operation-workload.ts'
import type { OperationRun } from './operation-workload.ts'

export interface JudgedOperations {
  readonly run: OperationRun
  readonly counts: OperationCounts
  readonly traceHash: number
  readonly violations: readonly Violation[]
  story(): string
}

/** As in schedule.ts. */
const thoroughEvery = 64

export async function judgeOperationPlan(plan: OperationPlan): Promise<JudgedOperations> {
  const rejections: unknown[] = []
  const collect = (reason: unknown): void => void rejections.push(reason)
  process.on('unhandledRejection', collect)
  try {
    const run = await runOperationPlan(plan, { drain: plan.seed % thoroughEvery === 0 ? 'thorough' : 'quick' })
    await setImmediate() // Node reports what was rejected at the end of its turn
    countOperations(run.counts, run.history)
    const { counts, traceHash, history } = run
    return { run, counts, traceHash, violations: judge(run, rejections), story: () => tellOperations(history) }
  } finally {
    process.off('unhandledRejection', collect)
  }
}

function judge(run: OperationRun, rejections: readonly unknown[]): Violation[] {
  const { plan, history, rested, unclosed, leftovers, leftOpen } = run
  const violations = [...checkStore(history.store, { seenBy: 'store' }), ...checkOperations(history)]
  if (!rested) violations.push({ assertion: 'everybody-answered', message: 'something goes on for ever' })
  for (const name of unclosed) {
    violations.push({ assertion: 'everybody-answered', message: `the close of ${name} never came back` })
  }
  // Every client asks for an operation with the same input, whatever the codec makes of it.
  const isAskedOtherwise = plan.drift?.kind === 'asked-otherwise'
  for (const { operation: key, text, process: by } of isAskedOtherwise ? [] : history.answers) {
    if (text === 'MISMATCH') violations.push({ assertion: 'same-answer', key, message: `${by} was told MISMATCH` })
  }
  if (leftOpen > 0) {
    const message = `${leftOpen} transactions of steps were still open when everything was closed`
    violations.push({ assertion: 'storage-bounded', message })
  }
  if (leftovers > 0) {
    const message = `${leftovers} entries and records were left when all retention was over and a sweep had been there`
    violations.push({ assertion: 'storage-bounded', message })
  }
  for (const reason of rejections) violations.push({ assertion: 'no-unhandled-rejection', message: String(reason) })
  return violations
}

// The end of a run in plain words: the matrix of the stores' contracts, if any ran, and as the last line, for people and for
// scripts, how many tests passed, failed and were skipped.

import type { Reporter, TestModule } from 'vitest/node'
import { contractMatrix } from './contract-matrix.ts'

export default class ClosingLine implements Reporter {
  onTestRunEnd(modules: readonly TestModule[]): void {
    const counts = { passed: 0, failed: 0, skipped: 0 }
    for (const module of modules) {
      const failedBefore = counts.failed
      for (const test of module.children.allTests()) {
        const { state } = test.result()
        counts[state === 'pending' ? 'skipped' : state]++
      }
      // A file or a suite that could not be set up has no failed test to count, and yet it failed.
      if (module.state() === 'failed' && counts.failed === failedBefore) counts.failed++
    }
    const outcomes = modules.flatMap((module) =>
      Array.from(module.children.allTests(), (test) => ({
        file: module.moduleId,
        name: test.name,
        state: test.result().state,
      })),
    )
    for (const line of [...contractMatrix(outcomes), '']) process.stdout.write(`${line}\n`)
    process.stdout.write(`${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped\n`)
  }
}

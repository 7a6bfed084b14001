// The last line of a run in plain words, for people and for scripts: how many tests passed, failed and were skipped.

import type { Reporter, TestModule } from 'vitest/node'

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
    process.stdout.write(`\n${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped\n`)
  }
}

// What the mutation tester runs: the tests that run.ts has chosen (tests.ts), in one process.

import { defineConfig } from 'vitest/config'
import { testsVariable, usualTests } from './tests.ts'

const chosen = process.env[testsVariable]

export default defineConfig({
  test: {
    include: chosen === undefined ? usualTests : (JSON.parse(chosen) as string[]),
    setupFiles: ['test/mutants/load.ts'],
    isolate: false,
    // A mutant that hangs costs as much. Far above what a test takes on a busy machine, since a time-out counts as killed.
    testTimeout: 120_000,
    hookTimeout: 120_000,
  },
})

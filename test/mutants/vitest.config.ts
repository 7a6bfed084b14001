// The tests that the mutation tester runs: those that need no server and no process, on memory, SQLite and a manual clock, and a few
// simulated schedules.

import { defineConfig } from 'vitest/config'

const usual = [
  'src/core/**/*.test.ts',
  'src/http/**/*.test.ts',
  'src/stores/memory/*.test.ts',
  'test/http/adapters.test.ts',
  'test/codecs.test.ts',
  'test/mutants/schedules.ts',
]

export default defineConfig({
  test: {
    include: process.env['ONCEONLY_MUTANT_TESTS']?.split(',') ?? usual,
    isolate: false,
    testTimeout: 15_000,
  },
})

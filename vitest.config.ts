import { defineConfig } from 'vitest/config'

// Tests that start servers run in processes of their own, one file at a time on each core; all others share threads.
const withServers = ['src/stores/{postgres,redis,mysql,dynamodb,mongodb}*.test.ts', 'test/**/*.test.ts']
const withoutServers = ['test/tidy.test.ts']

export default defineConfig({
  test: {
    projects: [
      {
        test: {
          name: 'unit',
          include: ['src/**/*.test.ts', ...withoutServers],
          exclude: withServers.slice(0, 1),
          pool: 'threads',
          isolate: false,
        },
      },
      {
        test: {
          name: 'servers',
          include: withServers,
          exclude: withoutServers,
          pool: 'forks',
          testTimeout: 120_000,
          hookTimeout: 120_000,
        },
      },
    ],
  },
})

import { availableParallelism } from 'node:os'
import { defineConfig } from 'vitest/config'
import { findEmbeddedPrograms, findInstalledPrograms, versionVariable } from './test/servers/postgres/programs.ts'
import { versionsVariable } from './test/servers/versions.ts'

// Tests that start servers, or move gigabytes, run in processes of their own; all others share threads, without isolation,
// and are quick.
const servers = [
  'src/stores/{postgres,redis,redis-postgres,mysql,dynamodb,mongodb}/*.test.ts',
  'src/messages/{kafka,rabbitmq,nats,sqs,redis-streams}{.test.ts,/**/*.test.ts}',
  'test/**/*.test.ts',
  // Once by `npm run test:versions`, and not in every run.
  ...(process.env[versionsVariable] === undefined ? [] : ['test/**/*.versions.ts']),
]
// These need no server and are quick, though they belong to no single file of src.
const quick = [
  'test/tidy.test.ts',
  'test/seeded-bugs/table.test.ts',
  'test/http/adapters.test.ts',
  'test/simulation/world/*.test.ts',
  'bench/*.test.ts',
]

// Where a PostgreSQL is installed (Debian's is 15), everything of PostgreSQL runs on the one from npm (18) as well.
const otherPostgres = process.env[versionVariable] === undefined && findInstalledPrograms() && findEmbeddedPrograms()
const ofPostgres = ['src/stores/postgres/*.test.ts', 'test/writes/postgres.test.ts']

export default defineConfig({
  test: {
    globalSetup: ['test/servers/global-setup.ts'],
    // Most of the time a test waits for a process or a server; the default on two cores would be one worker.
    maxWorkers: Math.max(3, availableParallelism() - 1),
    reporters: ['default', './test/reporter.ts'],
    projects: [
      {
        test: {
          name: 'unit',
          include: ['src/**/*.test.ts', ...quick],
          exclude: servers.filter((pattern) => pattern.startsWith('src/')),
          pool: 'threads',
          isolate: false,
          testTimeout: 60_000,
        },
      },
      {
        extends: true,
        test: {
          name: 'servers',
          include: servers,
          exclude: ['**/node_modules/**', ...quick],
          pool: 'forks',
          testTimeout: 180_000,
          hookTimeout: 180_000,
        },
      },
      ...(otherPostgres
        ? [
            {
              extends: true as const,
              test: {
                name: 'postgres-embedded',
                include: ofPostgres,
                env: { [versionVariable]: 'embedded' },
                pool: 'forks' as const,
                testTimeout: 180_000,
                hookTimeout: 180_000,
              },
            },
          ]
        : []),
    ],
  },
})

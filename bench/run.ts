// npm run bench [-- --only P1,P4,http] [--quick | --huge]: every target that stands, or those that are named by their id or their part.
// What was measured goes to bench/results; npm run figures writes the record of a full run into the docs.

import { benchClient } from './client.ts'
import { benchCore } from './core.ts'
import { benchGateway } from './gateway.ts'
import { benchGrowth } from './growth.ts'
import { benchHttp } from './http.ts'
import { benchInbox } from './inbox.ts'
import { benchLimits } from './limits.ts'
import { described, machine } from './machine.ts'
import { benchMessages } from './messages.ts'
import { benchOperations } from './operations.ts'
import { benchOutbox } from './outbox.ts'
import { follow, planOf, wants } from './plan.ts'
import type { Parts, Plan } from './plan.ts'
import { benchPostgres } from './postgres.ts'
import { benchRedis } from './redis.ts'
import { reportedSince, reportedSoFar, summarize, writeResults } from './report.ts'
import { benchRetention } from './retention.ts'
import { benchSessions } from './sessions.ts'
import { benchSqlite } from './sqlite.ts'
import { benchWebhooks } from './webhooks.ts'

const parts: Parts = {
  limits: { targets: ['limits'], run: benchLimits },
  core: { targets: ['P14'], run: benchCore },
  sqlite: { targets: ['P5'], run: benchSqlite },
  postgres: { targets: ['P1', 'P2', 'P3'], run: benchPostgres },
  retention: { targets: ['P6', 'P7'], run: benchRetention },
  growth: { targets: [], run: benchGrowth },
  redis: { targets: ['P4'], run: benchRedis },
  http: { targets: ['P8'], run: benchHttp },
  gateway: { targets: ['P12'], run: benchGateway },
  operations: { targets: ['P11'], run: benchOperations },
  inbox: { targets: ['P10'], run: benchInbox },
  outbox: { targets: ['P9'], run: benchOutbox },
  sessions: { targets: ['P13'], run: benchSessions },
  messages: { targets: [], run: benchMessages },
  client: { targets: [], run: benchClient },
  webhooks: { targets: [], run: benchWebhooks },
}

async function main({ parts: names, effort }: Plan): Promise<void> {
  process.stdout.write(`${described(machine())}; ${effort} run of ${names.join(', ')}\n`)
  process.stdout.write(
    'Ratios of variants interleaved in one run; absolute figures mean nothing on a shared machine.\n',
  )
  const beganMs = performance.now()
  for (const name of names) {
    process.stdout.write(`\n${name}\n`)
    const before = reportedSoFar()
    const partBeganMs = performance.now()
    await parts[name]!.run()
    const tookS = Math.round((performance.now() - partBeganMs) / 1_000)
    process.stdout.write(`       ${name} took ${tookS} s\n`)
    const reported = reportedSince(before)
    // A part of which only some targets ran would push the others out of the record.
    if (reported.figures.length > 0 && parts[name]!.targets.every(wants)) writeResults(name, reported, tookS)
  }
  summarize()
  process.stdout.write(`${Math.round((performance.now() - beganMs) / 1_000)} s in all, ${described(machine())}\n`)
}

let plan: Plan | undefined
try {
  plan = planOf(process.argv.slice(2), parts)
} catch (error) {
  process.stderr.write(`${(error as Error).message}\n`)
  process.exitCode = 2
}
if (plan) {
  follow(plan)
  await main(plan)
}

// npm run bench: every target that stands, or those that are named (npm run bench -- postgres). What was measured goes to
// bench/results/latest.json; node scripts/figures.ts writes it into the docs.

import { benchClient } from './client.ts'
import { benchGateway } from './gateway.ts'
import { benchHttp } from './http.ts'
import { benchInbox } from './inbox.ts'
import { benchMessages } from './messages.ts'
import { benchOperations } from './operations.ts'
import { benchOutbox } from './outbox.ts'
import { benchPostgres } from './postgres.ts'
import { benchRedis } from './redis.ts'
import { reportedFrom, summarize, writeResults } from './report.ts'
import { benchRetention } from './retention.ts'
import { benchSessions } from './sessions.ts'
import { benchSqlite } from './sqlite.ts'
import { benchWebhooks } from './webhooks.ts'

const parts: Readonly<Record<string, () => Promise<void>>> = {
  sqlite: benchSqlite,
  postgres: benchPostgres,
  retention: benchRetention,
  redis: benchRedis,
  http: benchHttp,
  gateway: benchGateway,
  operations: benchOperations,
  inbox: benchInbox,
  outbox: benchOutbox,
  messages: benchMessages,
  client: benchClient,
  sessions: benchSessions,
  webhooks: benchWebhooks,
}

const asked = process.argv.slice(2)
const unknown = asked.filter((name) => !Object.hasOwn(parts, name))
if (unknown.length > 0) {
  process.stderr.write(`unknown part ${unknown.join(', ')}; there are ${Object.keys(parts).join(', ')}\n`)
  process.exit(2)
}
process.stdout.write(
  'Ratios of variants interleaved in one run; absolute figures mean nothing on a shared machine.\n\n',
)
let reported = 0
for (const [name, part] of Object.entries(parts)) {
  if (asked.length > 0 && !asked.includes(name)) continue
  await part()
  const figures = reportedFrom(reported)
  reported += figures.length
  if (figures.length > 0) writeResults(name, figures)
}
summarize()

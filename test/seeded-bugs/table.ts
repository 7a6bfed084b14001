// The seeded bugs, in one table: mistakes that idempotency layers really make, each with the assertion that must notice it.
// To add one: a row in the file of its group, with a find that stands in its source once, and
// npm run seeded-bugs -- --only "its id".

import type { SeededBug } from './bug.ts'
import { clientBugs } from './table/client.ts'
import { sessionClientBugs } from './table/session-client.ts'
import { coreBugs, transactionBugs } from './table/core.ts'
import { memoryBugs, sqliteBugs } from './table/embedded-stores.ts'
import { dashboardBugs, gatewayBugs, messagesViewBugs, programBugs } from './table/gateway.ts'
import { operatorBugs } from './table/operators.ts'
import { httpBugs } from './table/http.ts'
import { decodingBugs } from './table/messages-decoding.ts'
import { kafkaBugs } from './table/messages-kafka.ts'
import { outboxBugs } from './table/messages-outbox.ts'
import { redisStreamBugs } from './table/messages-redis-streams.ts'
import { sqsBugs } from './table/messages-sqs.ts'
import { inboxBugs } from './table/messages-inbox.ts'
import { natsBugs } from './table/messages-nats.ts'
import { rabbitmqBugs } from './table/messages-rabbitmq.ts'
import { operationBugs } from './table/operations.ts'
import {
  dynamodbBugs,
  mongodbBugs,
  mysqlBugs,
  postgresBugs,
  redisBugs,
  redisPostgresBugs,
} from './table/server-stores.ts'
import { sessionBugs } from './table/sessions.ts'
import { simulationBugs } from './table/simulation.ts'
import { webhookSenderBugs } from './table/webhooks-sender.ts'
import { webhookBugs } from './table/webhooks-receiver.ts'
import { writesBugs } from './table/writes.ts'

export const seededBugs: readonly SeededBug[] = [
  ...coreBugs,
  ...transactionBugs,
  ...memoryBugs,
  ...sqliteBugs,
  ...postgresBugs,
  ...redisBugs,
  ...mysqlBugs,
  ...dynamodbBugs,
  ...mongodbBugs,
  ...redisPostgresBugs,
  ...writesBugs,
  ...httpBugs,
  ...operationBugs,
  ...inboxBugs,
  ...gatewayBugs,
  ...dashboardBugs,
  ...messagesViewBugs,
  ...operatorBugs,
  ...programBugs,
  ...rabbitmqBugs,
  ...natsBugs,
  ...simulationBugs,
  ...outboxBugs,
  ...sqsBugs,
  ...redisStreamBugs,
  ...kafkaBugs,
  ...decodingBugs,
  ...clientBugs,
  ...sessionClientBugs,
  ...sessionBugs,
  ...webhookSenderBugs,
  ...webhookBugs,
]

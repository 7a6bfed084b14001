// The servers that the tests can have. To add one: a file of the same shape beside the others, and a line here; then
// `needs`, `npm run servers`, STORES and the summary of skipped servers know it.
import { chromium } from './chromium.ts'
import { confluent } from './confluent.ts'
import { dynamodb } from './dynamodb.ts'
import { elasticmq } from './elasticmq.ts'
import { faketime } from './faketime.ts'
import { kafka } from './kafka.ts'
import { mariadb } from './mariadb.ts'
import { mongodb } from './mongodb.ts'
import { mysql } from './mysql.ts'
import { nats } from './nats.ts'
import { pgLogicalReplication } from './pg-logical-replication.ts'
import { pgbouncer } from './pgbouncer.ts'
import { postgres } from './postgres.ts'
import { prisma } from './prisma.ts'
import { rabbitmq } from './rabbitmq.ts'
import { redis } from './redis.ts'
import { bun, deno, next, node22 } from './runtimes.ts'
import type { Found, Missing } from './server.ts'
import { spin } from './spin.ts'
import { standardwebhooks } from './standardwebhooks.ts'
import { valkey } from './valkey.ts'

export const servers = {
  postgres,
  pgbouncer,
  'pg-logical-replication': pgLogicalReplication,
  redis,
  valkey,
  mariadb,
  mysql,
  dynamodb,
  mongodb,
  elasticmq,
  kafka,
  confluent,
  rabbitmq,
  nats,
  spin,
  chromium,
  node22,
  faketime,
  prisma,
  bun,
  deno,
  next,
  standardwebhooks,
}

export type ServerName = keyof typeof servers

// Stores that live inside the test process: always there, but selected by STORES like the others.
export const embeddedStores = ['memory', 'sqlite'] as const

export type StoreName = ServerName | (typeof embeddedStores)[number]

export const storeNames: readonly StoreName[] = [...embeddedStores, ...(Object.keys(servers) as ServerName[])]

export function findStore(name: StoreName): Found | Missing {
  return isServer(name) ? servers[name].find() : { found: true, where: 'this process', ours: true }
}

export function isServer(name: StoreName): name is ServerName {
  return name in servers
}

// The stores whose answers are compared with every order of the calls: those that the whole contract is run on. Poolers, isolation levels
// and clusters have parts of it, and are not here.

import { startMariadb } from '../servers/mariadb.ts'
import { startMysql } from '../servers/mysql.ts'
import type { StoreName } from '../servers/index.ts'
import { startDynamodbGround } from '../subjects/dynamodb.ts'
import { memorySubject } from '../subjects/memory.ts'
import { startMongodbGround } from '../subjects/mongodb.ts'
import { startMysqlGround } from '../subjects/mysql.ts'
import { startPostgresGround } from '../subjects/postgres.ts'
import { startRedisPostgresGround } from '../subjects/redis-postgres.ts'
import { startRedisGround } from '../subjects/redis.ts'
import { sqliteForms, sqliteSubject } from '../subjects/sqlite.ts'
import type { ContractSubject } from '../../src/testing/index.ts'

export interface OrdersGround {
  readonly needs: readonly StoreName[]
  start(): Promise<Place>
}

interface Place extends AsyncDisposable {
  create(): Promise<ContractSubject>
}

const periodMs = 60 * 3_600_000

export const ordersGrounds: Readonly<Record<string, OrdersGround>> = {
  memory: inProcess(memorySubject),
  ...Object.fromEntries(
    Object.entries(sqliteForms).map(([name, form]) => [name, inProcess(() => sqliteSubject(form))]),
  ),
  postgres: on('postgres', startPostgresGround, (ground) => ground.createSubject()),
  'postgres in periods': on(
    'postgres',
    () => startPostgresGround({ periodMs }),
    (ground) => ground.createSubject(),
  ),
  mariadb: on(
    'mariadb',
    () => startMysqlGround({}, startMariadb),
    (ground) => ground.createSubject(),
  ),
  // It goes MySQL's ways.
  'mariadb as mysql': on(
    'mariadb',
    () => startMysqlGround({ settings: { version: '8.0.40' } }, startMariadb),
    (ground) => ground.createSubject(),
  ),
  mysql: on(
    'mysql',
    () => startMysqlGround({}, startMysql),
    (ground) => ground.createSubject(),
  ),
  mongodb: on('mongodb', startMongodbGround, (ground) => ground.createSubject()),
  'mongodb, expects replays': on('mongodb', startMongodbGround, (ground) =>
    ground.createSubject({ expects: 'replays' }),
  ),
  dynamodb: on('dynamodb', startDynamodbGround, (ground) => ground.createSubject()),
  'dynamodb, expects replays': on('dynamodb', startDynamodbGround, (ground) =>
    ground.createSubject({ expects: 'replays' }),
  ),
  'redis: node-redis': on('redis', startRedisGround, (ground) => ground.createSubject('node-redis')),
  'redis: ioredis': on('redis', startRedisGround, (ground) => ground.createSubject('ioredis')),
  valkey: on(
    'valkey',
    () => startRedisGround('valkey'),
    (ground) => ground.createSubject('node-redis'),
  ),
  'redis over postgres': on(['postgres', 'redis'], startRedisPostgresGround, (ground) =>
    ground.createSubject('node-redis'),
  ),
}

function inProcess(create: () => Promise<ContractSubject>): OrdersGround {
  return { needs: [], start: async () => ({ create, [Symbol.asyncDispose]: async () => {} }) }
}

function on<Ground extends AsyncDisposable>(
  needs: StoreName | readonly StoreName[],
  startGround: () => Promise<Ground>,
  create: (ground: Ground) => Promise<ContractSubject>,
): OrdersGround {
  return {
    needs: [needs].flat(),
    async start() {
      const ground = await startGround()
      return { create: () => create(ground), [Symbol.asyncDispose]: () => ground[Symbol.asyncDispose]() }
    },
  }
}

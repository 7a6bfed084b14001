// The programs of docs/stores.md and docs/operating.md run as written: only the address of the server is another.

import { afterAll, expect, test } from 'vitest'
import { startDynamodb } from '../servers/dynamodb.ts'
import { startMariadb } from '../servers/mariadb.ts'
import { startMongodb } from '../servers/mongodb.ts'
import { needs } from '../servers/needs.ts'
import { startPostgres } from '../servers/postgres.ts'
import { startRedis } from '../servers/redis.ts'
import { createClient } from '../subjects/dynamodb.ts'
import { take } from './blocks.ts'
import { openPrograms } from './programs.ts'

const running = openPrograms()
afterAll(() => running[Symbol.dispose]())
let environment: Record<string, string> = {}

const programs = [...take('docs/stores.md'), ...take('docs/operating.md', (code) => code.includes('periodMs'))]

/** What only this program of the pages says. */
const sayings = {
  sqlite: "from 'better-sqlite3'",
  postgres: 'or run store.schema() with your own migrations',
  mysql: "from 'mysql2/promise'",
  redis: "createClient({ url: 'redis://localhost:6379' }).connect()\nconst once",
  ioredis: "from 'ioredis'",
  quarantine: 'store.quarantine()',
  redisPostgres: "from 'onceonly/redis-postgres'",
  dynamodb: 'or give store.schema() to whatever creates your tables',
  dynamodbTransaction: 'tx.put(',
  mongodb: "from 'mongodb'",
  periods: 'periodMs: 3 * day',
}

test.each(programs)('$where is run here, as one of the programs below', ({ code }) => {
  expect(Object.values(sayings).filter((saying) => code.includes(saying))).toHaveLength(1)
})

/** Runs this program with these replacements, and two asks at its end. */
async function runs(name: keyof typeof sayings, changes: Readonly<Record<string, string>>, end: string): Promise<void> {
  let program = programs.find(({ code }) => code.includes(sayings[name]))!.code
  for (const [written, real] of Object.entries(changes)) {
    expect(program).toContain(written)
    program = program.replace(written, real)
  }
  if (!program.includes('createOnce')) {
    program = `import { createOnce } from 'onceonly'\n${program}\nconst once = createOnce({ store, scope: 'payments' })`
  }
  const ask = `for (const _ of [1, 2]) console.log(JSON.stringify(await once.run('order-1', () => 'ran')))`
  const said = await running.run(name, `${program}\n${ask}\nawait once.close()\n${end}\n`, [], environment)
  expect(said.split('\n')).toEqual([
    '{"value":"ran","replayed":false,"attempt":1}',
    '{"value":"ran","replayed":true,"attempt":1}',
  ])
}

test('SQLite runs as written', async () => {
  await runs('sqlite', {}, 'database.close()')
})

needs('postgres').describe('PostgreSQL', () => {
  test('runs as written', async () => {
    await using postgres = await startPostgres()
    environment = { DATABASE_URL: await postgres.createDatabase() }
    await runs('postgres', {}, 'await pool.end()')
  })
})

needs('redis').describe('Redis', () => {
  test.each([
    ['redis', 'await client.close()'],
    ['ioredis', 'process.exit()'],
    ['quarantine', 'await client.close()'],
  ] as const)('with %s runs as written', async (client, end) => {
    await using server = await startRedis({ config: { appendonly: 'yes', appendfsync: 'everysec' } })
    await runs(client, { 'redis://localhost:6379': server.url }, end)
  })
})

needs('mariadb').describe('MySQL, MariaDB', () => {
  test('runs as written', async () => {
    await using server = await startMariadb()
    await runs('mysql', { 'mysql://root@127.0.0.1:3306/shop': await server.createDatabase() }, 'process.exit()')
  })
})

needs('mongodb').describe('MongoDB', () => {
  test('runs as written', async () => {
    await using server = await startMongodb()
    await runs('mongodb', { 'mongodb://db1,db2,db3/?replicaSet=main': server.url }, 'await client.close()')
  })
})

needs('dynamodb').describe('DynamoDB', () => {
  test('runs as written', async () => {
    await using server = await startDynamodb()
    const region = `region: 'eu-central-1'`
    const credentials = `credentials: { accessKeyId: 'a', secretAccessKey: 'b' }`
    const here = { [region]: `${region}, endpoint: '${server.url}', ${credentials}` }
    await runs('dynamodb', here, '')
    const client = createClient(server.url)
    for (const TableName of ['orders', 'stock']) {
      await client.createTable({
        TableName,
        BillingMode: 'PAY_PER_REQUEST',
        KeySchema: [{ AttributeName: 'id', KeyType: 'HASH' }],
        AttributeDefinitions: [{ AttributeName: 'id', AttributeType: 'S' }],
      })
    }
    await client.putItem({ TableName: 'stock', Item: { id: { S: 'mug' }, pieces: { N: '5' } } })
    await runs('dynamodbTransaction', here, '')
    const { Item } = await client.getItem({ TableName: 'stock', Key: { id: { S: 'mug' } }, ConsistentRead: true })
    expect(Item!['pieces']).toEqual({ N: '4' })
    client.destroy()
  })
})

needs(['redis', 'postgres']).describe('Redis over PostgreSQL', () => {
  test('runs as written', async () => {
    await using redis = await startRedis()
    await using postgres = await startPostgres()
    environment = { REDIS_URL: redis.url, DATABASE_URL: await postgres.createDatabase() }
    await runs('redisPostgres', {}, 'await redis.close()\nawait pool.end()')
  })
})

needs('postgres').describe('PostgreSQL in periods', () => {
  test('runs as written', async () => {
    await using postgres = await startPostgres()
    environment = { DATABASE_URL: await postgres.createDatabase() }
    await runs('periods', {}, 'await pool.end()')
  })
})

// An answer that is lost: the write was carried out, the caller does not know, and asking again tells the truth and changes
// nothing more.
import { MongoClient } from 'mongodb'
import { expect, test } from 'vitest'
import { dynamodbWrites, mongodbWrites, mysqlWrites, postgresWrites, type Writes } from '../../src/writes/index.ts'
import { createClient as createDynamodbClient } from '../subjects/dynamodb.ts'
import { isReplyToStore } from '../subjects/mongodb.ts'
import { createPool as createMysqlPool } from '../subjects/mysql.ts'
import { createPool as createPostgresPool } from '../subjects/postgres.ts'
import { startDynamodb } from '../servers/dynamodb.ts'
import { startFaultProxy } from '../servers/fault-proxy.ts'
import { startMongodb } from '../servers/mongodb.ts'
import { needs } from '../servers/needs.ts'
import { startMysqlWritesGround } from './mysql-ground.ts'
import { startPostgresWritesGround } from './postgres-ground.ts'

const key = { id: 'a' }
const count = { key, add: { visits: 1 }, once: { table: 'marks', key: { event_id: 'e' } } }
const event = { key: { event_id: 'e' }, stream: { stream: 's' }, after: 0 }

// One transaction's worth.
async function everything(writes: Writes): Promise<string[]> {
  return [
    await writes.insertOnce('things', { key, set: { visits: 0 } }),
    await writes.upsertIfNewer('things', { key, newer: { version: 1 } }),
    await writes.upsertIf('things', { key, expect: { name: null }, set: { name: 'paid' } }),
    await writes.addOnce('things', count),
    await writes.appendOnce('events', event),
  ]
}

const applied = ['applied', 'applied', 'applied', 'applied', 'appended']
const already = ['already', 'already', 'already', 'already', 'already']

needs('postgres').describe('PostgreSQL', () => {
  test('the answer to COMMIT is lost; the whole transaction again finds everything there', async () => {
    await using ground = await startPostgresWritesGround()
    await using proxy = await startFaultProxy({ target: { url: ground.url } })
    const pool = createPostgresPool(proxy.url, { max: 1 })
    const client = await pool.connect()
    client.on('error', () => {})
    await client.query('begin')
    expect(await everything(postgresWrites(client))).toEqual(applied)
    proxy.cutAt({ direction: 'reply', side: 'before' })
    await expect(client.query('commit')).rejects.toThrow()
    client.release(true)
    expect(await ground.run(everything)).toEqual(already)
    expect(await ground.row('things', key)).toMatchObject({ visits: '1', version: '1' })
    await pool.end()
  })

  test('the answer to a single write is lost', async () => {
    await using ground = await startPostgresWritesGround()
    await using proxy = await startFaultProxy({ target: { url: ground.url } })
    await ground.run((writes) => writes.insertOnce('things', { key, set: { visits: 0 } }))
    const pool = createPostgresPool(proxy.url, { max: 1 })
    const client = await pool.connect()
    client.on('error', () => {})
    proxy.cutAt({ direction: 'reply', side: 'before' })
    await expect(postgresWrites(client).addOnce('things', count)).rejects.toThrow()
    client.release(true)
    expect(await ground.run((writes) => writes.addOnce('things', count))).toBe('already')
    expect(await ground.row('things', key)).toMatchObject({ visits: '1' })
    await pool.end()
  })
})

needs('mariadb').describe('MariaDB', () => {
  test('the answer to COMMIT is lost; the whole transaction again finds everything there', async () => {
    await using ground = await startMysqlWritesGround()
    await using proxy = await startFaultProxy({ target: { url: ground.url } })
    const pool = createMysqlPool(proxy.url, { connectionLimit: 1 })
    const client = await pool.getConnection()
    await client.beginTransaction()
    expect(await everything(mysqlWrites(client))).toEqual(applied)
    proxy.cutAt({ direction: 'reply', side: 'before' })
    await expect(client.commit()).rejects.toThrow()
    client.destroy()
    expect(await ground.run(everything)).toEqual(already)
    expect(await ground.row('things', key)).toMatchObject({ visits: '1', version: '1' })
    await pool.end()
  })
})

needs('dynamodb').describe('DynamoDB', () => {
  test('the SDK asks again by itself: a single write is already there, a transaction knows its own token', async () => {
    await using server = await startDynamodb()
    await using proxy = await startFaultProxy({ target: server })
    const client = createDynamodbClient(proxy.url)
    for (const [table, name] of [
      ['things', 'id'],
      ['marks', 'event_id'],
    ] as const) {
      await client.createTable({
        TableName: table,
        BillingMode: 'PAY_PER_REQUEST',
        KeySchema: [{ AttributeName: name, KeyType: 'HASH' }],
        AttributeDefinitions: [{ AttributeName: name, AttributeType: 'S' }],
      })
    }
    const writes = dynamodbWrites(client)
    const insert = proxy.cutAt({ direction: 'reply', side: 'before' })
    expect(await writes.insertOnce('things', { key, set: { visits: 0 } })).toBe('already')
    await insert.happened
    const add = proxy.cutAt({ direction: 'reply', side: 'before' })
    expect(await writes.addOnce('things', count)).toBe('applied')
    await add.happened
    expect(await writes.addOnce('things', count)).toBe('already')
    const { Item } = await client.getItem({ TableName: 'things', Key: { id: { S: 'a' } }, ConsistentRead: true })
    expect(Item).toEqual({ id: { S: 'a' }, visits: { N: '1' } })
    client.destroy()
  })
})

needs('mongodb').describe('MongoDB', () => {
  test('an answer is lost; asked again, it counted once', async () => {
    await using server = await startMongodb()
    await using proxy = await startFaultProxy({ target: server })
    const client = new MongoClient(proxy.url, { retryWrites: false })
    const things = client.db('writes').collection('things')
    await things.createIndex({ id: 1 }, { unique: true })
    const writes = mongodbWrites(client.db('writes'))
    await writes.insertOnce('things', { key, set: { visits: 0 } })
    proxy.cutAt({ direction: 'reply', side: 'before', match: isReplyToStore })
    const visit = { ...count, once: { key: { counted: 'e' } } }
    await expect(writes.addOnce('things', visit)).rejects.toThrow()
    expect(await writes.addOnce('things', visit)).toBe('already')
    expect(await things.findOne({ id: 'a' })).toMatchObject({ visits: 1, counted: ['e'] })
    await client.close()
  })
})

// The writes on a server that speaks MongoDB's protocol keep the contract.
import { type Db, ObjectId } from 'mongodb'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { mongodbWrites } from '../../src/writes/index.ts'
import { createClient } from '../subjects/mongodb.ts'
import { startMongodb } from '../servers/mongodb.ts'
import { needs } from '../servers/needs.ts'
import { writesContract } from './contract.ts'
import { asTexts, tables, type WritesGround } from './ground.ts'

async function startGround(): Promise<WritesGround & { database: Db }> {
  const server = await startMongodb()
  const client = createClient(server.url, { useBigInt64: true })
  const database = client.db('writes')
  const writes = mongodbWrites(database)
  await database.collection('things').createIndex({ id: 1 }, { unique: true })
  await database.collection('things').createIndex({ email: 1 }, { unique: true, sparse: true })
  await database.collection('marks').createIndex({ event_id: 1 }, { unique: true })
  await database.collection('events').createIndex({ event_id: 1 }, { unique: true })
  await database.collection('events').createIndex({ stream: 1, version: 1 }, { unique: true })
  return {
    database,
    run: (work) => work(writes),
    async row(table, key) {
      const found = await database.collection(table).findOne(key)
      return found ? { version: null, ...asTexts(found) } : undefined
    },
    async reset() {
      for (const table of tables) await database.collection(table).deleteMany({})
    },
    async [Symbol.asyncDispose]() {
      await client.close()
      await server.stop()
    },
  }
}

needs('mongodb').describe('the writes on MongoDB', () => {
  let ground: Awaited<ReturnType<typeof startGround>>
  beforeAll(async () => void (ground = await startGround()))
  afterAll(() => ground[Symbol.asyncDispose]())

  const none = 'no server with transactions can be had here, so none are claimed'
  writesContract({
    ground: () => ground,
    cannot: {
      'what is rolled back was not written, and can be written again': none,
      'a write that fails in the middle leaves neither mark nor count': 'every field is there once it is counted',
    },
    once: (event) => ({ key: { counted: event } }),
  })

  describe('what is MongoDB alone', () => {
    test('an ObjectId of the driver is a value, and one that JSON made is not', async () => {
      const writes = mongodbWrites(ground.database)
      const key = { _id: new ObjectId() as never }
      expect(await writes.insertOnce('marks', { key, set: { event_id: 'x' } })).toBe('applied')
      expect(await writes.insertOnce('marks', { key, set: { event_id: 'x' } })).toBe('already')
      const forged = { _id: { _bsontype: 'ObjectId', id: 'x' } as never }
      await expect(writes.insertOnce('marks', { key: forged })).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' })
    })

    test('addOnce takes no table for the marks: they are in the document of the counter', async () => {
      const once = { table: 'marks', key: { event_id: 'e' } }
      const count = mongodbWrites(ground.database).addOnce('things', { key: { id: 'a' }, add: { visits: 1 }, once })
      await expect(count).rejects.toThrow(/left out, as the ids are kept in the document of the counter/)
    })
  })
})

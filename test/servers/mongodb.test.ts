// The MongoDB server as the tests get it: what it keeps over a crash, and that its clock can be stopped.
import { MongoClient } from 'mongodb'
import { expect, test } from 'vitest'
import { startMongodb } from './mongodb.ts'
import { needs } from './needs.ts'

needs('mongodb', { ours: true }).describe('a MongoDB of our own', () => {
  test('keeps what it has acknowledged over a crash and an orderly restart, and the time of its clock', async () => {
    await using server = await startMongodb()
    await using client = new MongoClient(server.url)
    const kept = client.db('test').collection<{ _id: string; at?: Date; now?: Date }>('kept')
    const write = (): Promise<unknown> =>
      kept.updateOne({ _id: 'a' }, { $set: { is: 'kept' }, $currentDate: { at: true } }, { upsert: true })
    const read = (): Promise<object[]> => kept.aggregate([{ $addFields: { now: '$$NOW' } }]).toArray()
    await write()
    const [running] = await kept.find().toArray()
    expect(Math.abs(running!.at!.getTime() - Date.now())).toBeLessThan(600_000)
    const stopped = new Date('2030-01-02T03:04:05.678Z')
    await client.db('test').command({ onceonlyTest: 1, nowMs: stopped.getTime() })
    await write()
    await server.crash()
    await server.restart()
    expect(await read()).toEqual([{ _id: 'a', is: 'kept', at: stopped, now: stopped }])
    await server.restart()
    expect(await read()).toEqual([{ _id: 'a', is: 'kept', at: stopped, now: stopped }])
  })

  test('given by URL is used as it is', async () => {
    await using server = await startMongodb()
    process.env['ONCEONLY_MONGODB_URL'] = server.url
    try {
      const given = await startMongodb()
      await using client = new MongoClient(given.url)
      expect(await client.db('test').command({ ping: 1 })).toMatchObject({ ok: 1 })
      await expect(given.crash()).rejects.toThrow(/cannot be crashed/)
    } finally {
      delete process.env['ONCEONLY_MONGODB_URL']
    }
  })
})

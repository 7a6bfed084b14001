// On the server's own clock, so that it runs on a real mongod, too, when ONCEONLY_MONGODB_URL names one: each kind of statement
// once, several processes, large outcomes, and how the collection is made.

import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { createInterface } from 'node:readline'
import { runInNewContext } from 'node:vm'
import type { Collection, Db, MongoClient } from 'mongodb'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { createClient, database, patientMs } from '../../../test/subjects/mongodb.ts'
import { startMongodb } from '../../../test/servers/mongodb.ts'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import type { Running } from '../../../test/servers/server.ts'
import {
  aKey,
  ask,
  assertBusy,
  assertGranted,
  assertIs,
  assertSettled,
  bytesOf,
  failureOf,
  finish,
  leaseMs,
  otherFingerprint,
  request,
  retention,
  take,
} from '../../testing/store-contract.ts'
import { mongodbStore, type MongodbStore } from '../mongodb.ts'

/** Another process that claims one key 500 times at once when it is told to, settles what it is granted, and tells. */
function startClaimer(url: string, name: string): { line(): Promise<string>; say(line: string): void } {
  const of = (path: string): string => JSON.stringify(new URL(path, import.meta.url).href)
  const code = `
    import { createInterface } from 'node:readline'
    import { createClient, database, patientMs } from ${of('../../../test/subjects/mongodb.ts')}
    import { mongodbStore } from ${of('../mongodb.ts')}
    import { aKey, bytesOf, request, retention } from ${of('../../testing/store-contract.ts')}
    const [url, name] = process.argv.slice(1)
    const store = mongodbStore({ collection: createClient(url).db(database).collection(name), timeoutMs: patientMs })
    const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
    await store.show(aKey)
    process.stdout.write('ready\\n')
    await lines.next()
    const verdicts = await Promise.all(Array.from({ length: 500 }, async () => {
      const verdict = await store.claim(aKey, request())
      if (verdict.is === 'granted') await store.settle(verdict.claim, bytesOf(verdict.claim.token), retention)
      return verdict.is
    }))
    process.stdout.write(JSON.stringify(verdicts) + '\\n')
    process.exit()
  `
  const child = spawn(process.execPath, ['--input-type=module', '-e', code, url, name], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  return {
    line: async () => String((await lines.next()).value),
    say: (line) => void child.stdin.write(`${line}\n`),
  }
}

needs('mongodb').describe('MongoDB on its own clock', () => {
  let server: Running
  let client: MongoClient
  let db: Db
  let collection: Collection<{ _id: string; removeAt: Date }>
  let store: MongodbStore
  beforeAll(async () => {
    server = await startMongodb()
    client = createClient(server.url)
    db = client.db(database)
  })
  afterAll(async () => {
    await client.close()
    await server.stop()
  })
  beforeEach(async () => {
    collection = db.collection(`entries-${randomBytes(6).toString('hex')}`)
    store = mongodbStore({ collection, timeoutMs: patientMs })
    await store.migrate()
  })
  afterEach(async () => {
    await collection.drop()
  })

  /** The real one, but for how it is made. */
  const collectionMadeBy = (name: string, createCollection: () => Promise<unknown>): Collection => {
    const made = Object.create(db, { createCollection: { value: createCollection } }) as Db
    return Object.create(db.collection(name), { db: { value: made } }) as Collection
  }

  test('a key is claimed, busy, extended, settled and replayed', async () => {
    const asked = request()
    const claim = assertGranted(await store.claim(aKey, asked), 'fresh', 1)
    expect(assertGranted(await store.claim(aKey, asked), 'fresh', 1)).toEqual(claim)
    assertBusy(await ask(store, aKey), leaseMs)
    assertIs(await ask(store, aKey, { fingerprint: otherFingerprint }), 'mismatch')
    expect(await store.extend(claim, leaseMs)).toBe('done')
    expect(await store.settle(claim, bytesOf('once'), retention)).toBe('done')
    expect(await store.settle(claim, bytesOf('once'), retention)).toBe('done')
    assertSettled(await ask(store, aKey), bytesOf('once'))
    expect(await store.extend(claim, leaseMs)).toBe('lost')
    const reading = mongodbStore({ collection, expects: 'replays', timeoutMs: patientMs })
    assertSettled(await ask(reading, aKey), bytesOf('once'))
  })

  test('a key is given back and claimed again, and an abandoned one is taken over from a holder that then is lost', async () => {
    const first = await take(store, aKey)
    expect(await store.release(first, 'open')).toBe('done')
    const second = assertGranted(await ask(store, aKey, { leaseMs: 1 }), 'reopened', 2)
    const verdict = await pollUntil('the lease to be over', async () => {
      const found = await ask(store, aKey)
      return found.is === 'granted' && found
    })
    const third = assertGranted(verdict, 'taken-over', 3)
    expect(second.fence).toBeGreaterThan(first.fence)
    expect(third.fence).toBeGreaterThan(second.fence)
    for (const zombie of [second, { ...third, fence: third.fence - 1 }]) {
      expect(await store.extend(zombie, leaseMs)).toBe('lost')
      expect(await store.settle(zombie, bytesOf('zombie'), retention)).toBe('lost')
      expect(await store.release(zombie, 'forget')).toBe('lost')
    }
    expect(await store.extend(third, leaseMs)).toBe('done')
    expect(await store.release(third, 'open')).toBe('done')
  })

  test('what is over is forgotten by a sweep, and a holder whose entry is over has lost it', async () => {
    const short = { keepMs: 1, tombstoneMs: 1 }
    const claim = await take(store, aKey, { leaseMs: 1, retention: short })
    await finish(store, { scope: 'contract', id: 'kept' }, bytesOf('kept'))
    let forgotten = 0
    await pollUntil('the sweep to forget it', async () => {
      forgotten += (await store.sweep({ limit: 10 })).forgotten
      return forgotten === 1
    })
    expect(await store.settle(claim, bytesOf('late'), retention)).toBe('lost')
    expect(await store.list({ limit: 10 })).toMatchObject([{ key: { id: 'kept' }, state: 'settled' }])
  })

  test('an entry is mended by hand, and that is on record', async () => {
    const claim = await take(store, aKey)
    expect(await store.mend(aKey, 'release', 'stuck')).toMatchObject({ state: 'running' })
    expect(await store.extend(claim, leaseMs)).toBe('lost')
    expect(await store.mend(aKey, 'forget', 'a test')).toMatchObject({ state: 'open' })
    expect(await store.show(aKey)).toBeUndefined()
    expect(await store.audit(aKey)).toMatchObject([
      { action: 'release', reason: 'stuck', before: 'running' },
      { action: 'forget', reason: 'a test', before: 'open' },
    ])
    expect(await store.list({ limit: 10 })).toEqual([])
  })

  test('of 1,000 claims of one key by two processes at once, one is granted', async () => {
    const children = [1, 2].map(() => startClaimer(server.url, collection.collectionName))
    for (const child of children) expect(await child.line()).toBe('ready')
    for (const child of children) child.say('go')
    const answers = await Promise.all(children.map(async (child) => JSON.parse(await child.line()) as string[]))
    const counts = Object.groupBy(answers.flat(), (is) => is)
    expect(counts['granted']).toHaveLength(1)
    expect(Object.keys(counts).filter((is) => !['granted', 'busy', 'settled'].includes(is))).toEqual([])
    expect((await ask(store, aKey)).is).toBe('settled')
  })

  test('the largest input and outcome fit into one document; beyond them is an error that says so', async () => {
    const input = randomBytes(4 * 1_024 * 1_024)
    const outcome = randomBytes(11 * 1_024 * 1_024)
    const claim = await take(store, aKey, { input })
    const error = await failureOf(store.settle(claim, new Uint8Array(outcome.length + 1), retention))
    expect([error.code, error.executed, error.retryable]).toEqual(['OUTCOME_NOT_STORED', 'yes', false])
    expect(error.message).toContain('11534337 bytes, and at most 11534336 can be stored')
    const resolve = new Uint8Array(outcome.length + 1)
    const byHand = await failureOf(store.mend(aKey, { resolve, retention }, 'a test'))
    expect(byHand.message).toContain(`The outcome of ${aKey.scope}/${aKey.id} has 11534337 bytes`)
    expect(await store.settle(claim, outcome, retention)).toBe('done')
    assertSettled(await ask(store, aKey), outcome)
    const refused = await failureOf(ask(store, aKey, { input: new Uint8Array(input.length + 1) }))
    expect(refused.code).toBe('INVALID_ARGUMENT')
    expect(refused.message).toContain('at most 4194304 bytes, got 4194305')
  })

  test('migrate can be run by several processes at once, and again, and makes the indexes', async () => {
    const name = `${collection.collectionName}-new`
    // One at a time, as mongod makes them: mongo-java-server makes a collection twice when two ask at once, and damages it.
    const create = (): Promise<unknown> => db.createCollection(name)
    let last: Promise<unknown> = Promise.resolve()
    const fresh = collectionMadeBy(name, () => (last = last.then(create, create)))
    const stores = Array.from({ length: 5 }, () => mongodbStore({ collection: fresh, timeoutMs: patientMs }))
    await Promise.all(stores.map((each) => each.migrate()))
    await finish(stores[0]!, aKey, bytesOf('kept'))
    await stores[1]!.migrate()
    assertSettled(await ask(stores[2]!, aKey), bytesOf('kept'))
    expect(await fresh.indexes()).toEqual(
      expect.arrayContaining([
        expect.objectContaining({ key: { removeAt: 1 }, expireAfterSeconds: 0 }),
        expect.objectContaining({ key: { sweepAt: 1 } }),
      ]),
    )
    await fresh.drop()
  })

  test('a collection that somebody else makes meanwhile is taken, whatever the server says; one that is not there is an error', async () => {
    const name = `${collection.collectionName}-meanwhile`
    const migrating = (create: () => Promise<unknown>): Promise<void> =>
      mongodbStore({ collection: collectionMadeBy(name, create), timeoutMs: patientMs }).migrate()
    const refused = await failureOf(migrating(() => Promise.reject(new Error('the disk is full'))))
    expect([refused.code, refused.message]).toEqual(['STORE_UNAVAILABLE', expect.stringContaining('the disk is full')])
    await migrating(async () => {
      await db.createCollection(name)
      throw new Error('there is one already')
    })
    await finish(mongodbStore({ collection: db.collection(name), timeoutMs: patientMs }), aKey, bytesOf('kept'))
    await db.dropCollection(name)
  })

  test('schema() is what makes the collection, for those who do it themselves', async () => {
    const name = `${collection.collectionName}-own`
    const own = mongodbStore({ collection: db.collection(name), timeoutMs: patientMs })
    // As mongosh has it, where every call is waited for.
    const shell = {
      createCollection: (made: string, options: object) => db.createCollection(made, options),
      getCollection: (of: string) => db.collection(of),
    }
    const lines = own.schema().split('\n')
    expect(lines[0]).toBe(`db.createCollection(${JSON.stringify(name)}, {"collation":{"locale":"simple"}})`)
    for (const line of lines) await runInNewContext(line, { db: shell })
    expect(await db.collection(name).indexes()).toHaveLength(3)
    await finish(own, aKey, bytesOf('kept'))
    await own.migrate()
    assertSettled(await ask(own, aKey), bytesOf('kept'))
    await db.dropCollection(name)
  })
})

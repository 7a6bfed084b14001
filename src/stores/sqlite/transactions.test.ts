// Transactions on SQLite, which has one writer: who shares a commit, who waits for whom, what is told meanwhile, and what the
// user's own handle is used for.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import Database from 'better-sqlite3'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { FinalError } from '../../core/errors.ts'
import { key } from '../../core/key.ts'
import { createOnce } from '../../core/once.ts'
import { bytesOf, finish, grantedOf, request, retention, take, times } from '../../testing/store-contract.ts'
import { sqliteStore } from '../sqlite.ts'
import type { SqliteDatabase } from '../sqlite.ts'

let folder: string
let file: string

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'onceonly-sqlite-'))
  file = join(folder, 'test.db')
})

afterEach(() => rmSync(folder, { recursive: true }))

function open<Handle extends SqliteDatabase>(Library: new (path: string) => Handle): Handle {
  const database = new Library(file)
  database.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE IF NOT EXISTS effects (name TEXT)')
  return database
}

function effects(database: SqliteDatabase): unknown[] {
  return database.prepare('SELECT name FROM effects').all()
}

const addEffect = `INSERT INTO effects VALUES ('effect')`

describe('calls of one moment', () => {
  let commits = 0
  class Counting extends DatabaseSync {
    override exec(sql: string): void {
      super.exec(sql)
      if (sql === 'COMMIT') commits++
    }
  }

  test('share one transaction and one commit: 64 claims, then 64 settles with 64 claims', async () => {
    const store = sqliteStore({ database: open(Counting) })
    commits = 0
    const claims = await Promise.all(times(64).map((index) => take(store, key('batch', `${index}`))))
    expect(commits).toBe(1)
    await Promise.all([
      ...claims.map((claim) => store.settle(claim, bytesOf('done'), retention)),
      ...times(64).map((index) => take(store, key('another batch', `${index}`))),
    ])
    expect(commits).toBe(2)
    store.close()
  })

  test('that come one by one in one turn of the event loop share two commits, not one each', async () => {
    const store = sqliteStore({ database: open(Counting) })
    commits = 0
    const answers = times(20).map(
      (index) => new Promise((resolve) => setImmediate(() => resolve(take(store, key('turn', `${index}`))))),
    )
    await Promise.all(answers)
    expect(commits).toBeLessThanOrEqual(2)
    store.close()
  })

  test('and cost no commit at all where nothing is written', async () => {
    const store = sqliteStore({ database: open(Counting) })
    await finish(store, key('replayed', 'often'), bytesOf('answer'))
    commits = 0
    const verdicts = await Promise.all(times(100).map(() => store.claim(key('replayed', 'often'), request())))
    expect(verdicts.every((verdict) => verdict.is === 'settled')).toBe(true)
    expect(commits).toBe(0)
    store.close()
  })

  test('do not suffer from one among them that is wrong', async () => {
    const store = sqliteStore({ path: file })
    const [before, wrong, after] = await Promise.allSettled([
      store.claim(key('batch', 'before'), request()),
      store.claim(key('batch', 'wrong'), request({ version: 1.5 })),
      store.claim(key('batch', 'after'), request()),
    ])
    expect(before).toMatchObject({ value: { is: 'granted' } })
    expect(wrong).toMatchObject({ reason: { code: 'INVALID_ARGUMENT', executed: 'no' } })
    expect(after).toMatchObject({ value: { is: 'granted' } })
    expect(await store.list({ limit: 10 })).toHaveLength(2)
    store.close()
  })
})

describe('while a transaction of the store is open', () => {
  test('its key is busy at once, a settled one is replayed, and others are granted after it', async () => {
    const store = sqliteStore({ path: file })
    await finish(store, key('meanwhile', 'settled'), bytesOf('answer'))
    const { granted } = await store.begin(key('meanwhile', 'mine'), request())
    const order: string[] = []
    const other = take(store, key('meanwhile', 'other')).then(() => order.push('claim'))
    expect(await store.claim(key('meanwhile', 'mine'), request())).toEqual({ is: 'busy', retryAfterMs: 100 })
    expect((await store.begin(key('meanwhile', 'mine'), request())).verdict).toMatchObject({ is: 'busy' })
    expect(await store.claim(key('meanwhile', 'settled'), request())).toMatchObject({ is: 'settled' })
    expect(await store.show(key('meanwhile', 'mine'))).toBeUndefined()
    order.push('commit')
    expect(await granted!.commit(bytesOf('committed'), retention)).toBe('done')
    await other
    expect(order).toEqual(['commit', 'claim'])
    store.close()
  })

  test('others that wait longer than lockWaitMs are STORE_UNAVAILABLE, and it commits all the same', async () => {
    const store = sqliteStore({ path: file, lockWaitMs: 20 })
    const { granted } = await store.begin(key('slow', 'mine'), request())
    for (const call of [() => take(store, key('slow', 'other')), () => store.begin(key('slow', 'other'), request())]) {
      await expect(call()).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE', executed: 'no', retryable: true })
    }
    expect(await granted!.commit(bytesOf('committed'), retention)).toBe('done')
    expect(await take(store, key('slow', 'other'))).toMatchObject({ attempt: 1 })
    store.close()
  })

  test('further ones wait for their turn, in the order of arrival', async () => {
    const store = sqliteStore({ path: file })
    const order: number[] = []
    await Promise.all(
      times(10).map(async (index) => {
        const { granted } = await store.begin(key('turns', `${index}`), request())
        order.push(index)
        await new Promise((resolve) => setImmediate(resolve))
        await granted!.commit(bytesOf('done'), retention)
      }),
    )
    expect(order).toEqual(times(10))
    store.close()
  })

  test("the writes of others on the user's handle are not part of it", async () => {
    const user = open(Database)
    const store = sqliteStore({ database: user })
    const { granted } = await store.begin(key('apart', '1'), request())
    expect(granted!.tx).not.toBe(user)
    granted!.tx.exec(addEffect)
    expect(effects(user)).toEqual([])
    expect(() => user.exec('PRAGMA busy_timeout = 0; BEGIN IMMEDIATE')).toThrow('locked')
    await granted!.rollback()
    user.exec(addEffect)
    expect(effects(user)).toEqual([{ name: 'effect' }])
    store.close()
  })
})

describe('a transaction of the store that ends in an odd way', () => {
  test('is over once: what comes after the end touches no other transaction', async () => {
    const user = open(DatabaseSync)
    const store = sqliteStore({ path: file })
    const first = (await store.begin(key('odd', '1'), request())).granted!
    await first.rollback()
    const second = (await store.begin(key('odd', '2'), request())).granted!
    second.tx.exec(addEffect)
    await first.rollback()
    await first.abandon()
    await expect(first.commit(bytesOf('late'), retention)).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    await expect(first.undoEffect()).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(await second.commit(bytesOf('in time'), retention)).toBe('done')
    expect(effects(user)).toHaveLength(1)
    store.close()
  })

  test('when abandoned is closed under its effect, whose later writes reach nobody, and the next one begins', async () => {
    const user = open(DatabaseSync)
    const store = sqliteStore({ path: file })
    const hung = (await store.begin(key('odd', 'hung'), request())).granted!
    const prepared = hung.tx.prepare(addEffect)
    prepared.run()
    await hung.abandon()
    expect(() => hung.tx.exec(addEffect)).toThrow()
    expect(() => prepared.run()).toThrow()
    expect(effects(user)).toEqual([])
    const next = (await store.begin(key('odd', 'hung'), request())).granted!
    next.tx.exec(addEffect)
    expect(await next.commit(bytesOf('done'), retention)).toBe('done')
    expect(effects(user)).toHaveLength(1)
    store.close()
  })

  test('because its effect ran COMMIT or ROLLBACK is OUTCOME_UNKNOWN', async () => {
    const store = sqliteStore({ path: file })
    for (const end of ['COMMIT', 'ROLLBACK', 'COMMIT; BEGIN', 'ROLLBACK; BEGIN; SAVEPOINT effect']) {
      const granted = (await store.begin(key('odd', end), request())).granted!
      granted.tx.exec(end)
      await expect(granted.commit(bytesOf('late'), retention)).rejects.toMatchObject({
        code: 'OUTCOME_UNKNOWN',
        retryable: false,
        message: expect.stringContaining('Leave the end of the transaction to onceonly'),
      })
    }
    expect(await take(store, key('odd', 'next'))).toMatchObject({ attempt: 1 })
    store.close()
  })

  test('because the commit breaks a constraint left nothing, and says so', async () => {
    const user = open(DatabaseSync)
    user.exec('CREATE TABLE parents (id PRIMARY KEY)')
    user.exec('CREATE TABLE children (parent REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)')
    const store = sqliteStore({ path: file })
    const granted = (await store.begin(key('odd', 'constraint'), request())).granted!
    granted.tx.exec('INSERT INTO children VALUES (42)')
    await expect(granted.commit(bytesOf('never'), retention)).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      executed: 'no',
      message: expect.stringContaining('FOREIGN KEY'),
    })
    expect(user.prepare('SELECT * FROM children').all()).toEqual([])
    expect(await take(store, key('odd', 'constraint'))).toMatchObject({ attempt: 1 })
    store.close()
  })

  test('because the disk fails at COMMIT is OUTCOME_UNKNOWN, and the retry tells the truth: one effect in the end', async () => {
    let fail: 'before' | 'after' | undefined
    class Failing extends DatabaseSync {
      override exec(sql: string): void {
        const failing = sql === 'COMMIT' && fail
        if (failing !== 'before') super.exec(sql)
        if (failing) throw Object.assign(new Error('disk I/O error'), { code: 'ERR_SQLITE_ERROR', errcode: 1034 })
      }
    }
    const store = sqliteStore({ database: open(Failing) })
    for (const side of ['before', 'after'] as const) {
      const granted = (await store.begin(key('disk', side), request())).granted!
      granted.tx.exec(addEffect)
      fail = side
      await expect(granted.commit(bytesOf('paid'), retention)).rejects.toMatchObject({
        code: 'OUTCOME_UNKNOWN',
        executed: 'unknown',
        retryable: true,
      })
      fail = undefined
    }
    expect(await store.claim(key('disk', 'before'), request())).toMatchObject({ is: 'granted', how: 'fresh' })
    expect(await store.claim(key('disk', 'after'), request())).toMatchObject({ is: 'settled' })
    expect(effects(open(DatabaseSync))).toHaveLength(1)
    store.close()
  })

  test('because the store was closed is OUTCOME_UNKNOWN, and left nothing', async () => {
    const user = open(DatabaseSync)
    const store = sqliteStore({ path: file })
    const granted = (await store.begin(key('odd', 'closed'), request())).granted!
    granted.tx.exec(addEffect)
    store.close()
    await expect(granted.commit(bytesOf('late'), retention)).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(effects(user)).toEqual([])
  })
})

describe("within the user's transaction", () => {
  test('a handle without one, of another library, or on another file is refused', async () => {
    const store = sqliteStore({ path: file })
    const claim = (tx: SqliteDatabase) => store.within(tx as DatabaseSync).claim(key('a', 'b'), request())
    const user = open(DatabaseSync)
    await expect(claim(user)).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringContaining('Run BEGIN first'),
    })
    const better = new Database(join(folder, 'other.db'))
    const other = new DatabaseSync(join(folder, 'other.db'))
    for (const [tx, words] of [
      [better, 'Two copies of SQLite'],
      [other, 'expected a handle on'],
    ] as const) {
      tx.exec('BEGIN')
      await expect(claim(tx)).rejects.toMatchObject({
        code: 'INVALID_ARGUMENT',
        message: expect.stringContaining(words),
      })
      tx.close()
    }
    await expect(claim(undefined as never)).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' })
    store.close()
  })

  test('a snapshot that another writer has overtaken is a TRANSACTION_CONFLICT, and the retry is told the answer', async () => {
    const user = open(DatabaseSync)
    const store = sqliteStore({ path: file })
    user.exec('BEGIN')
    expect(effects(user)).toEqual([]) // the snapshot is taken here
    await finish(store, key('overtaken', '1'), bytesOf('faster'))
    const error = await store
      .within(user)
      .claim(key('overtaken', '1'), request())
      .catch((thrown: unknown) => thrown)
    expect(error).toMatchObject({ code: 'TRANSACTION_CONFLICT', executed: 'no', retryable: true })
    expect(store.isConflict(error)).toBe(true)
    user.exec('ROLLBACK; BEGIN')
    expect(await store.within(user).claim(key('overtaken', '1'), request())).toMatchObject({ is: 'settled' })
    user.exec('COMMIT')
    store.close()
  })

  test('a key that is uncommitted on one handle is busy on another', async () => {
    const [first, second] = [open(DatabaseSync), open(DatabaseSync)]
    const store = sqliteStore({ database: first })
    first.exec('BEGIN IMMEDIATE')
    second.exec('BEGIN')
    await take(store.within(first), key('two', 'handles'))
    expect(await store.within(second).claim(key('two', 'handles'), request())).toMatchObject({ is: 'busy' })
    first.exec('ROLLBACK')
    expect(await take(store, key('two', 'handles'))).toMatchObject({ attempt: 1 })
    second.exec('ROLLBACK')
    store.close()
  })

  test('runs that are nested are taken back from the outer one; runs that overlap are not taken back by halves', async () => {
    const user = open(DatabaseSync)
    const store = sqliteStore({ database: user })
    const inside = store.withinSync(user)
    const claim = (id: string) => grantedOf(inside.claim(key('nested', id), request()))
    user.exec('BEGIN')
    const outer = claim('outer')
    user.exec(addEffect)
    expect(inside.settle(claim('inner'), bytesOf('inner'), retention)).toBe('done')
    inside.undoClaim(outer)
    expect(effects(user)).toEqual([])
    const [first, second] = [claim('first'), claim('second')]
    expect(inside.settle(first, bytesOf('first'), retention)).toBe('done')
    expect(() => inside.undoEffect(second)).toThrow('runs in one transaction overlapped')
    expect(inside.settle(second, bytesOf('second'), retention)).toBe('done')
    user.exec('COMMIT')
    expect((await store.list({ limit: 10 })).map((entry) => entry.key.id)).toEqual(['first', 'second'])
    store.close()
  })

  test('a connection that gives big integers or rows as arrays is no different', async () => {
    const plain = open(DatabaseSync)
    const store = sqliteStore({ path: file })
    const odd = new DatabaseSync(file, { readBigInts: true, returnArrays: true })
    odd.exec('BEGIN')
    const claim = await take(store.within(odd), key('big', 'integers'))
    expect(claim).toMatchObject({ attempt: 1, fence: expect.any(Number) })
    expect(await store.within(odd).settle(claim, bytesOf('same'), retention)).toBe('done')
    odd.exec('COMMIT')
    expect(await store.claim(key('big', 'integers'), request())).toMatchObject({ is: 'settled', version: 1 })
    plain.close()
    odd.close()
    store.close()

    const better = open(Database).defaultSafeIntegers()
    const other = sqliteStore({ database: better })
    better.exec('BEGIN')
    expect(await take(other.within(better), key('big', 'better'))).toMatchObject({ fence: expect.any(Number) })
    better.exec('ROLLBACK')
    other.close()
  })

  test('a thousand transactions on one handle leave nothing behind that keeps a key busy', async () => {
    const user = open(DatabaseSync)
    const store = sqliteStore({ database: user })
    for (const index of times(1_200)) {
      user.exec('BEGIN')
      store.withinSync(user).claim(key('many', `${index}`), request())
      user.exec('ROLLBACK')
    }
    const verdicts = await Promise.all(times(1_200).map((index) => store.claim(key('many', `${index}`), request())))
    expect(verdicts.filter((verdict) => verdict.is !== 'granted')).toEqual([])
    store.close()
  })
})

describe('synchronous transactions of better-sqlite3', () => {
  test('effect and outcome commit together, the retry is a replay, and a throw takes both back', () => {
    const user = open(Database)
    const store = sqliteStore({ database: user })
    const once = createOnce({ store, scope: 'sync' })
    const pay = user.transaction((id: string, fail?: Error) =>
      once.within(user).runSync(id, () => {
        user.exec(addEffect)
        if (fail) throw fail
        return 'paid'
      }),
    )
    expect(() => pay.immediate('1', new Error('no'))).toThrow('no')
    expect(effects(user)).toEqual([])
    expect(pay.immediate('1')).toEqual({ value: 'paid', replayed: false, attempt: 1 })
    expect(pay.immediate('1')).toEqual({ value: 'paid', replayed: true, attempt: 1 })
    expect(effects(user)).toHaveLength(1)
    store.close()
  })

  test('a final failure is committed as the answer, without the effect', () => {
    const user = open(Database)
    const store = sqliteStore({ database: user })
    const once = createOnce({ store, scope: 'sync' })
    const decline = (): unknown => {
      let thrown: unknown
      user.transaction(() => {
        try {
          once.within(user).runSync('declined', () => {
            user.exec(addEffect)
            throw new FinalError('card declined')
          })
        } catch (error) {
          thrown = error
        }
      })()
      return thrown
    }
    expect(decline()).toMatchObject({ message: 'card declined' })
    expect(decline()).toMatchObject({ message: 'card declined' })
    expect(effects(user)).toEqual([])
    store.close()
  })
})

test('fences grow across rolled back transactions, two stores and a clock that stands still', async () => {
  const user = open(DatabaseSync)
  const clock = { now: () => 1_700_000_000_000, elapsed: () => 0, schedule: () => () => undefined }
  const [first, second] = [sqliteStore({ path: file, clock }), sqliteStore({ path: file, clock })]
  const fences: number[] = []
  for (const store of [first, second, first, second]) {
    const began = await store.begin(key('fence', '1'), request())
    if (began.verdict.is === 'granted') fences.push(began.verdict.claim.fence)
    await began.granted!.rollback()
    user.exec('BEGIN')
    fences.push((await take(store.within(user), key('fence', '1'))).fence)
    user.exec('ROLLBACK')
  }
  expect(fences).toHaveLength(8)
  expect(fences).toEqual([...new Set(fences)].sort((a, b) => a - b))
  for (const store of [first, second]) store.close()
})

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import Database from 'better-sqlite3'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { soon } from '../../../test/soon.ts'
import { sqliteStore } from '../../stores/sqlite.ts'
import type { SqliteStore } from '../../stores/sqlite.ts'
import { FinalError, OnceError } from '../errors.ts'
import { createOnce } from '../once.ts'
import type { Once } from '../once.ts'
import type { Began } from '../store.ts'

let folder: string
let path: string
let store: SqliteStore
let once: Once<SqliteStore>

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'onceonly-test-'))
  path = join(folder, 'test.db')
  const setUp = new DatabaseSync(path)
  setUp.exec('pragma journal_mode = wal; create table charges (name text not null)')
  setUp.close()
  store = sqliteStore({ path })
  once = createOnce({ store, scope: 'payments' })
})

afterEach(async () => {
  await once.close()
  store.close()
  rmSync(folder, { recursive: true })
})

function charge(tx: { prepare(sql: string): { run(...values: string[]): unknown } }, name = '42'): string {
  tx.prepare('insert into charges values (?)').run(name)
  return 'charged'
}

/** Read by a connection of its own: what others see. */
function charges(): number {
  const reader = new DatabaseSync(path)
  const row = reader.prepare('select count(*) as count from charges').get()!
  reader.close()
  return Number(row['count'])
}

async function failure(work: Promise<unknown>): Promise<OnceError> {
  return (await work.catch((error: unknown) => error)) as OnceError
}

describe('once.transaction', () => {
  test('effect and record commit together, and a retry is told the outcome', async () => {
    expect(await once.transaction('42', (tx) => charge(tx))).toEqual({ value: 'charged', replayed: false, attempt: 1 })
    expect(await once.transaction('42', (tx) => charge(tx))).toEqual({ value: 'charged', replayed: true, attempt: 1 })
    expect(charges()).toBe(1)
  })

  test('a throw takes effect and claim back', async () => {
    const failing = once.transaction('42', (tx) => {
      charge(tx)
      throw new Error('down')
    })
    await expect(failing).rejects.toThrow('down')
    expect(charges()).toBe(0)
    expect(await once.get('42')).toBeUndefined()
    expect(await once.transaction('42', (tx) => charge(tx))).toMatchObject({ attempt: 1, replayed: false })
  })

  test('a FinalError that cannot be stored takes effect and claim back, and says so', async () => {
    const declined = once.transaction('42', (tx) => {
      charge(tx)
      throw new FinalError('card declined', { data: { code: 51n } })
    })
    await expect(declined).rejects.toMatchObject({ code: 'OUTCOME_NOT_STORED', executed: 'no' })
    expect(charges()).toBe(0)
    expect(await once.get('42')).toBeUndefined()
  })

  test('a FinalError takes the effect back, and is itself committed as the answer', async () => {
    const again = vi.fn()
    const declined = once.transaction('42', (tx) => {
      charge(tx)
      throw new FinalError('card declined', { data: { code: 51 } })
    })
    await expect(declined).rejects.toThrow('card declined')
    await expect(once.transaction('42', again)).rejects.toMatchObject({ name: 'FinalError', data: { code: 51 } })
    expect(again).not.toHaveBeenCalled()
    expect(charges()).toBe(0)
  })

  test('a hundred concurrent duplicates are one effect', async () => {
    const patient = createOnce({ store, scope: 'payments', waitMs: 60_000 })
    const effect = async (tx: DatabaseSync): Promise<string> => charge(tx)
    const results = await Promise.all(Array.from({ length: 100 }, () => patient.transaction('42', effect)))
    expect(results.filter(({ replayed }) => !replayed)).toHaveLength(1)
    expect(charges()).toBe(1)
  })

  test('the same key with another request is a mismatch', async () => {
    await once.transaction('42', (tx) => charge(tx), { fingerprint: 1 })
    expect(await failure(once.transaction('42', (tx) => charge(tx), { fingerprint: 2 }))).toMatchObject({
      code: 'MISMATCH',
    })
    expect(charges()).toBe(1)
  })

  test('run and transaction share one memory', async () => {
    await once.run('42', () => 'ran')
    expect(await once.transaction('42', (tx) => charge(tx))).toMatchObject({ value: 'ran', replayed: true })
    expect(charges()).toBe(0)
  })

  test('a value that cannot be stored: the effect is committed, and says so for ever', async () => {
    const unstorable = once.transaction('42', (tx) => {
      charge(tx)
      return (() => {}) as unknown
    })
    expect(await failure(unstorable)).toMatchObject({ code: 'OUTCOME_NOT_STORED', executed: 'yes' })
    expect(await failure(once.transaction('42', (tx) => charge(tx)))).toMatchObject({ code: 'OUTCOME_NOT_STORED' })
    expect(charges()).toBe(1)
  })

  test('a conflict with others is tried again, as the rollback took the effect along', async () => {
    let commits = 0
    const conflicting = withGranted((granted) => ({
      ...granted,
      commit: async (...args) => {
        if (commits++ < 2) {
          await granted.rollback()
          throw new OnceError('TRANSACTION_CONFLICT', { message: 'deadlock' })
        }
        return granted.commit(...args)
      },
    }))
    const result = await createOnce({ store: conflicting, scope: 'payments' }).transaction('42', (tx) => charge(tx))
    expect(result).toMatchObject({ value: 'charged', replayed: false })
    expect(commits).toBe(3)
    expect(charges()).toBe(1)
  })

  test('a conflict that the effect lets out is tried again, and never stored as its answer', async () => {
    let runs = 0
    const storing = createOnce({ store, scope: 'payments', onThrow: 'store' })
    const result = await storing.transaction('42', (tx) => {
      charge(tx)
      if (++runs < 3) throw new OnceError('TRANSACTION_CONFLICT', { message: 'could not serialize access' })
      return 'charged'
    })
    expect(result).toMatchObject({ value: 'charged', replayed: false })
    expect([runs, charges()]).toEqual([3, 1])
  })

  test('a conflict that never ends is told, and nothing was executed', async () => {
    const hopeless = withGranted((granted) => ({
      ...granted,
      commit: async () => {
        await granted.rollback()
        throw new OnceError('TRANSACTION_CONFLICT', { message: 'deadlock' })
      },
    }))
    const error = await failure(
      createOnce({ store: hopeless, scope: 'payments' }).transaction('42', (tx) => charge(tx)),
    )
    expect(error).toMatchObject({ code: 'TRANSACTION_CONFLICT', executed: 'no', retryable: true })
    expect(charges()).toBe(0)
  })

  test('a commit that is not confirmed is told as unknown, and the retry tells the truth', async () => {
    const deaf = withGranted((granted) => ({
      ...granted,
      commit: async (...args) => {
        await granted.commit(...args)
        throw new Error('ECONNRESET')
      },
    }))
    const error = await failure(createOnce({ store: deaf, scope: 'payments' }).transaction('42', (tx) => charge(tx)))
    expect(error).toMatchObject({ code: 'OUTCOME_UNKNOWN', executed: 'unknown', retryable: true })
    expect(await once.transaction('42', (tx) => charge(tx))).toMatchObject({ value: 'charged', replayed: true })
    expect(charges()).toBe(1)
  })

  test('an effect that hangs past its deadline is rolled back, and what it writes later reaches nobody', async () => {
    const impatient = createOnce({ store, scope: 'payments', attemptMs: 50, leaseMs: 50 })
    const late = Promise.withResolvers<void>()
    let writing: Promise<unknown> | undefined
    const hung = impatient.transaction('42', (tx) => {
      charge(tx)
      writing = late.promise.then(() => charge(tx))
      return writing
    })
    expect(await failure(hung)).toMatchObject({ code: 'DEADLINE_PASSED', executed: 'no' })
    expect(await once.transaction('42', (tx) => charge(tx))).toMatchObject({ replayed: false })
    late.resolve()
    await writing!.catch(() => {})
    expect(charges()).toBe(1)
  })

  test('a rollback that is never answered hangs nobody, and the connection is cut off', async () => {
    const abandoned = vi.fn()
    const mute = withGranted((granted) => ({
      ...granted,
      rollback: () => new Promise(() => {}),
      abandon: async () => (abandoned(), granted.abandon()),
    }))
    const impatient = createOnce({ store: mute, scope: 'payments', storeTimeoutMs: 50 })
    const failing = impatient.transaction('42', () => Promise.reject(new Error('down')))
    await expect(soon('the call', failing)).rejects.toThrow('down')
    expect(abandoned).toHaveBeenCalledTimes(1)
    await impatient.close()
  })

  test('a failure whose writes cannot be taken back is rolled back as a whole, and not executed', async () => {
    const mute = withGranted((granted) => ({ ...granted, undoEffect: () => new Promise(() => {}) }))
    const impatient = createOnce({ store: mute, scope: 'payments', storeTimeoutMs: 50 })
    const declined = impatient.transaction('42', (tx) => {
      charge(tx)
      throw new FinalError('declined')
    })
    expect(await failure(declined)).toMatchObject({ code: 'STORE_UNAVAILABLE', executed: 'no' })
    expect(charges()).toBe(0)
    expect(await once.transaction('42', (tx) => charge(tx))).toMatchObject({ replayed: false })
  })

  function withGranted(
    change: (granted: NonNullable<Began<DatabaseSync>['granted']>) => NonNullable<Began<DatabaseSync>['granted']>,
  ): SqliteStore {
    return {
      ...store,
      async begin(key, request) {
        const began = await store.begin(key, request)
        return began.granted ? { ...began, granted: change(began.granted) } : began
      },
    }
  }
})

describe('once.within', () => {
  test.each([
    ['node:sqlite', () => new DatabaseSync(path)],
    ['better-sqlite3', () => new Database(path)],
  ])("%s: the record is as final as the caller's commit", async (_, open) => {
    const database = open()
    database.exec('pragma synchronous = full')
    const own = sqliteStore({ database: database as DatabaseSync })
    const inside = createOnce({ store: own, scope: 'payments' })
    database.exec('begin immediate')
    expect(
      await inside.within(database as DatabaseSync).run('42', () => charge(database as DatabaseSync)),
    ).toMatchObject({ replayed: false })
    expect(charges()).toBe(0)
    database.exec('rollback')
    expect(await inside.get('42')).toBeUndefined()
    database.exec('begin immediate')
    await inside.within(database as DatabaseSync).run('42', () => charge(database as DatabaseSync))
    database.exec('commit')
    expect(await inside.run('42', () => 'never')).toMatchObject({ value: 'charged', replayed: true })
    expect(charges()).toBe(1)
    own.close()
    database.close()
  })

  test('a throw leaves the transaction as it was before; the caller may go on and commit', async () => {
    const database = new DatabaseSync(path)
    database.exec('begin immediate')
    charge(database, 'before')
    const failing = once.within(database).run('42', () => {
      charge(database)
      throw new Error('down')
    })
    await expect(failing).rejects.toThrow('down')
    database.exec('commit')
    expect(charges()).toBe(1)
    expect(await once.get('42')).toBeUndefined()
    database.close()
  })

  test('a FinalError is recorded without the writes that led to it', async () => {
    const database = new DatabaseSync(path)
    database.exec('begin immediate')
    const declined = once.within(database).run('42', () => {
      charge(database)
      throw new FinalError('declined')
    })
    await expect(declined).rejects.toThrow('declined')
    database.exec('commit')
    expect(charges()).toBe(0)
    await expect(once.run('42', () => 'never')).rejects.toThrow('declined')
    database.close()
  })

  test('runSync runs in a synchronous transaction', async () => {
    const database = new Database(path)
    database.pragma('synchronous = full')
    const own = sqliteStore({ database })
    const inside = createOnce({ store: own, scope: 'payments' })
    const pay = database.transaction(() => inside.within(database).runSync('42', () => charge(database)))
    expect(pay()).toEqual({ value: 'charged', replayed: false, attempt: 1 })
    expect(pay()).toEqual({ value: 'charged', replayed: true, attempt: 1 })
    expect(charges()).toBe(1)
    own.close()
    database.close()
  })

  test('runSync refuses an effect that returns a promise, and takes it back', () => {
    const database = new Database(path)
    database.pragma('synchronous = full')
    const own = sqliteStore({ database })
    const inside = createOnce({ store: own, scope: 'payments' })
    const effect = (async () => charge(database)) as unknown as () => string
    const pay = database.transaction(() => inside.within(database).runSync('42', effect))
    expect(pay).toThrow(/returned a promise/)
    expect(charges()).toBe(0)
    own.close()
    database.close()
  })

  test('runSync takes back what threw, stores what is final without its writes, and refuses what cannot be stored', async () => {
    const database = new DatabaseSync(path)
    database.exec('begin immediate')
    const inside = once.within(database)
    const after = (what: () => unknown) => (): string => {
      charge(database)
      return what() as string
    }
    const throwing = (error: Error) => (): never => {
      throw error
    }
    expect(() => inside.runSync('threw', after(throwing(new Error('down'))))).toThrow('down')
    expect(() => inside.runSync('final', after(throwing(new FinalError('declined'))))).toThrow('declined')
    expect(() =>
      inside.runSync(
        'unstorable',
        after(() => Number.NaN),
      ),
    ).toThrow(expect.objectContaining({ code: 'OUTCOME_NOT_STORED', executed: 'no' }))
    expect(inside.runSync('asked', (op) => [op.attempt, op.key.id, op.signal.aborted])).toMatchObject({
      value: [1, 'asked', false],
    })
    expect(() => inside.runSync('asked', () => 1, { fingerprint: 1 })).toThrow(
      expect.objectContaining({ code: 'MISMATCH' }),
    )
    database.exec('commit')
    expect(charges()).toBe(0)
    expect([await once.get('threw'), await once.get('unstorable')]).toEqual([undefined, undefined])
    await expect(once.run('final', () => 'never')).rejects.toThrow('declined')
    database.close()
  })

  test('runSync says that a claim is lost, and never lets a promise that it refuses be an unhandled rejection', async () => {
    const lost: SqliteStore = {
      ...store,
      withinSync: (tx) => ({ ...store.withinSync(tx), settle: () => 'lost' }),
    }
    const database = new DatabaseSync(path)
    database.exec('begin immediate')
    const inside = createOnce({ store: lost, scope: 'payments', sweepEveryMs: false }).within(database)
    expect(() => inside.runSync('1', () => 1)).toThrow(expect.objectContaining({ code: 'CLAIM_LOST', executed: 'no' }))
    const unhandled = vi.fn()
    process.on('unhandledRejection', unhandled)
    const rejecting = (() => Promise.reject(new Error('too late'))) as unknown as () => string
    expect(() => once.within(database).runSync('2', rejecting)).toThrow('returned a promise')
    await new Promise(setImmediate)
    process.off('unhandledRejection', unhandled)
    expect(unhandled).not.toHaveBeenCalled()
    database.exec('rollback')
    database.close()
  })

  test('runSync refuses a query builder, which begins only when somebody awaits it', () => {
    const database = new Database(path)
    database.pragma('synchronous = full')
    const own = sqliteStore({ database })
    const inside = createOnce({ store: own, scope: 'payments' })
    // oxlint-disable-next-line unicorn/no-thenable
    const builder = { then: () => expect.fail('it was awaited') } as unknown as string
    const pay = database.transaction(() => inside.within(database).runSync('42', () => builder))
    expect(pay).toThrow(/returned a promise/)
    own.close()
    database.close()
  })

  test('a value that cannot be stored undoes effect and claim: not executed, and the caller may go on', async () => {
    const database = new DatabaseSync(path)
    database.exec('begin immediate')
    const unstorable = once.within(database).run('42', () => {
      charge(database)
      return Number.NaN
    })
    expect(await failure(unstorable)).toMatchObject({ code: 'OUTCOME_NOT_STORED', executed: 'no' })
    database.exec('commit')
    expect(charges()).toBe(0)
    expect(await once.get('42')).toBeUndefined()
    database.close()
  })

  test('two runs that overlap on one transaction: the second is refused when it begins', async () => {
    const database = new DatabaseSync(path)
    database.exec('begin immediate')
    const slow = Promise.withResolvers<string>()
    const first = once.within(database).run('1', () => slow.promise)
    const second = once.within(database).run('2', () => charge(database))
    expect(await failure(second)).toMatchObject({ code: 'INVALID_ARGUMENT', executed: 'no' })
    slow.resolve('first')
    expect((await first).value).toBe('first')
    expect((await once.within(database).run('2', () => charge(database))).replayed).toBe(false)
    database.exec('commit')
    expect(charges()).toBe(1)
    database.close()
  })

  test('runSync is refused while another effect runs in its transaction, nested or beside it', async () => {
    const database = new DatabaseSync(path)
    database.exec('begin immediate')
    const slow = Promise.withResolvers<string>()
    const first = once.within(database).run('1', () => slow.promise)
    const overlapping = (): unknown => once.within(database).runSync('2', () => charge(database))
    expect(overlapping).toThrow(/another effect still runs in this transaction/)
    slow.resolve('first')
    await first
    const nested = (): unknown => once.within(database).runSync('3', () => overlapping() as string)
    expect(nested).toThrow(/another effect still runs in this transaction/)
    expect(once.within(database).runSync('2', () => charge(database)).replayed).toBe(false)
    database.exec('commit')
    expect(charges()).toBe(1)
    database.close()
  })

  test('a transaction that asks for its own key once more with runSync is told that the key is in flight', async () => {
    const nested = once.transaction('j', (tx) => once.within(tx).runSync('j', () => 'inner'))
    expect(await failure(nested)).toMatchObject({ code: 'IN_FLIGHT', retryAfterMs: 0 })
  })

  test('a transaction that asks for its own key once more is told that the key is in flight', async () => {
    const nested = once.transaction('j', (tx) => once.within(tx).run('j', () => 'inner'))
    expect(await failure(nested)).toMatchObject({ code: 'IN_FLIGHT' })
  })
})

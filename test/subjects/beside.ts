// The database that a store on a server offers for tables beside its own (src/clients/sql-database.ts). A pool of one connection: one
// that is not given back is missed at once, and one that is given back in the middle of a transaction is met by the next.

import { expect, test } from 'vitest'
import type { SqlDatabase } from '../../src/clients/sql-database.ts'
import { piece, sql } from '../../src/clients/sql-statement.ts'
import type { SqlStatement } from '../../src/clients/sql-statement.ts'
import { OnceError } from '../../src/core/errors.ts'
import { key } from '../../src/core/key.ts'

export interface BesideGround {
  readonly database: SqlDatabase
  /** Cuts the connection before the server is sent a COMMIT, or after it has committed. */
  cutAtCommit(side: 'before' | 'after'): void
  /** Sends one statement with what a handler writes with. */
  write(tx: unknown, statement: string): Promise<unknown>
  /** What other transactions do not see until it is committed, read by another connection. */
  rows(): Promise<readonly string[]>
  /** Milliseconds since 1970. */
  serverTime(): Promise<number>
}

const asked = key('payments', '42')

const insert = (database: SqlDatabase, n: number): SqlStatement =>
  sql`insert into ${database.table('beside')} values (${n})`

const failure = (call: Promise<unknown>): Promise<unknown> =>
  call.then(
    () => undefined,
    (error: unknown) => error,
  )

/** The ground is that of the running test: its table is `onceonly_beside`, with one column `n`, and is empty. */
export function besideTests(ground: () => BesideGround): void {
  statementTests(ground)
  transactionTests(ground)
  endTests(ground)
}

function statementTests(ground: () => BesideGround): void {
  test('a statement is a transaction by itself, with its values bound', async () => {
    const { database, ...at } = ground()
    expect(database.tableName('beside')).toContain('onceonly_beside')
    await database.query(insert(database, 1))
    expect(await at.rows()).toEqual(['1'])
    const [answer] = await database.query(
      sql`select cast(n as char(9)) as answer from ${database.table('beside')} order by n`,
    )
    expect(answer!.trim()).toBe('1')
  })

  test('its time is that of the server, in milliseconds', async () => {
    const { database, ...at } = ground()
    const before = await at.serverTime()
    const [now] = await database.query(sql`select ${database.nowMs()} as answer`)
    const after = await at.serverTime()
    expect(Math.floor(before)).toBeLessThanOrEqual(Number(now))
    expect(Number(now)).toBeLessThanOrEqual(Math.ceil(after))
  })

  test('a statement that fails is told with its cure, and its connection serves the next', async () => {
    const { database, ...at } = ground()
    for (let round = 0; round < 3; round++) {
      const error = await failure(database.query(piece('select n as answer from onceonly_nowhere')))
      expect(error).toBeInstanceOf(OnceError)
      expect(error).toMatchObject({ code: 'SCHEMA_MISSING' })
    }
    await database.query(insert(database, 1))
    expect(await at.rows()).toEqual(['1'])
  })

  test('tables are made, and what fails in that is told', async () => {
    const { database, ...at } = ground()
    await database.migrate([`create table if not exists ${database.tableName('beside')} (n int)`])
    expect(await failure(database.migrate(['nonsense']))).toMatchObject({
      executed: 'no',
      message: expect.stringMatching(/^(PostgreSQL|MySQL) could not migrate: /) as string,
    })
    expect(await at.rows()).toEqual([])
  })
}

function transactionTests(ground: () => BesideGround): void {
  test('a transaction is committed as a whole, with what its handler wrote', async () => {
    const { database, ...at } = ground()
    const open = await database.begin(asked)
    await open.query(insert(database, 1))
    await at.write(open.tx, 'insert into onceonly_beside values (2)')
    expect(await at.rows()).toEqual([])
    await open.commit()
    expect(await at.rows()).toEqual(['1', '2'])
    // The connection is as it was: a statement is committed at once.
    await database.query(insert(database, 3))
    expect(await at.rows()).toEqual(['1', '2', '3'])
  })

  test('a transaction is rolled back as a whole, and its connection serves the next', async () => {
    const { database, ...at } = ground()
    const open = await database.begin(asked)
    await open.query(insert(database, 1))
    await open.rollback()
    await database.query(insert(database, 2))
    expect(await at.rows()).toEqual(['2'])
  })

  test('what a handler writes after it was abandoned is never committed, and others are served', async () => {
    const { database, ...at } = ground()
    const open = await database.begin(asked)
    await open.query(insert(database, 1))
    const ended = open.abandon()
    await failure(at.write(open.tx, 'insert into onceonly_beside values (2)'))
    await ended
    await failure(at.write(open.tx, 'insert into onceonly_beside values (3)'))
    await failure(at.write(open.tx, 'commit'))
    expect(await at.rows()).toEqual([])
    await database.query(insert(database, 4))
    expect(await at.rows()).toEqual(['4'])
  })
}

function endTests(ground: () => BesideGround): void {
  test('a statement that fails in a transaction leaves nothing of it, and the next is served', async () => {
    const { database, ...at } = ground()
    const open = await database.begin(asked)
    await open.query(insert(database, 1))
    await failure(open.query(piece('select n as answer from onceonly_nowhere')))
    await open.rollback()
    await database.query(insert(database, 2))
    expect(await at.rows()).toEqual(['2'])
  })

  test('a handler that ends the transaction itself is not told as committed', async () => {
    const { database, ...at } = ground()
    const open = await database.begin(asked)
    await open.query(insert(database, 1))
    await at.write(open.tx, 'commit')
    await open.query(insert(database, 2)).catch(() => undefined)
    expect(await failure(open.commit())).toMatchObject({
      code: 'OUTCOME_UNKNOWN',
      executed: 'unknown',
      message: expect.stringContaining('payments/42') as string,
    })
    await database.query(insert(database, 3))
    expect(await at.rows()).toContain('3')
  })

  test('a connection that is cut at COMMIT: nobody knows, and the next is served', async () => {
    const { database, ...at } = ground()
    for (const [n, side] of (['before', 'after'] as const).entries()) {
      const open = await database.begin(asked)
      await open.query(insert(database, n))
      at.cutAtCommit(side)
      expect(await failure(open.commit())).toMatchObject({
        code: 'OUTCOME_UNKNOWN',
        executed: 'unknown',
        retryable: true,
        message: expect.stringMatching(/while the transaction for payments\/42 was being committed/) as string,
      })
    }
    await database.query(insert(database, 2))
    expect(await at.rows()).toEqual(['1', '2'])
  })
}

// Keys in a table beside those of a SQL store (SQLite, PostgreSQL, MySQL, MariaDB), so that a record can commit with the caller's own
// transaction. Opening is one insert that leaves a row which is there alone. What changes a record locks its row first.

import { hash } from 'node:crypto'
import { missingTableIn } from '../../clients/missing-tables.ts'
import { databaseOf } from '../../clients/sql-database.ts'
import type { SqlDatabase, SqlSession } from '../../clients/sql-database.ts'
import { sql } from '../../clients/sql-statement.ts'
import type { SqlStatement } from '../../clients/sql-statement.ts'
import { backoffMs, countedBackoffs } from '../../core/backoff.ts'
import { sleep, systemClock, systemRandom } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { aString, checkOptions, optional, withMethods } from '../../core/options.ts'
import type { Store } from '../../core/store.ts'
import { advance, parseRecord } from '../pending.ts'
import type { PendingRecord, TransactionalKeys } from '../pending.ts'
import { keysSchema } from './schema.sql.ts'

export interface SqlKeysOptions<Tx> {
  /** A store on PostgreSQL, MySQL, MariaDB or SQLite. The table of the keys lies beside its own. */
  readonly store: Store & { within(tx: Tx): unknown }
  /** Keys of another name are other keys: clients on one database that must not see each other's have a name each. */
  readonly name?: string
}

export interface SqlKeys<Tx> extends TransactionalKeys<Tx> {
  /** Creates the table. Safe to run from several processes. */
  migrate(): Promise<void>
  /** The same as SQL, for migrations of your own. */
  schema(): string
}

/**
 * Keys in the database of a SQL store. `keys.within(tx)` keeps a key in the caller's transaction: the operation is pending if it commits.
 *
 * @example
 * ```ts
 * import { createClient } from 'onceonly/client'
 * import { sqlKeys } from 'onceonly/client/node'
 * import { sqliteStore } from 'onceonly/sqlite'
 *
 * const keys = sqlKeys({ store: sqliteStore({ path: 'shop.db' }) })
 * await keys.migrate()
 * const client = createClient({ keys })
 * ```
 */
export function sqlKeys<Tx>(options: SqlKeysOptions<Tx>): SqlKeys<Tx> {
  checkOptions('sqlKeys', options, { store: withMethods('claim'), name: optional(aString) })
  const database = databaseOf(options.store)
  if (!database) {
    throw new OnceError('UNSUPPORTED', {
      message:
        'sqlKeys: expected a store on PostgreSQL, MySQL, MariaDB or SQLite, as postgresStore, mysqlStore or sqliteStore returns it.',
    })
  }
  const place: KeyPlace = { database, name: options.name }
  const table = database.table('client_keys')
  const statements = keysSchema(database)
  const get = async (operation: string): Promise<PendingRecord | undefined> => {
    const [kept] = await database.query(sql`select kept as answer from ${table} where id = ${idOf(place, operation)}`)
    return kept === undefined ? undefined : read(kept).record
  }
  return {
    get: (operation) => cured(() => get(operation)),
    open: (record) => cured(() => openIn(place, database, record)),
    save: (record) => cured(() => change(place, record.operation, (standing) => advance(standing, record))),
    remove: (operation, key) =>
      cured(() => change(place, operation, (standing) => (standing?.key === key ? null : undefined))),
    list: () =>
      cured(async () => {
        const rows = await database.query(sql`select kept as answer from ${table}`)
        const own = rows.map(read).filter(({ name }) => name === place.name)
        return own.map(({ record }) => record).toSorted((one, other) => one.createdAtMs - other.createdAtMs)
      }),
    within: (tx) => {
      const session = database.join(tx, 'keys.within')
      return { open: (record) => cured(() => openIn(place, session, record)) }
    },
    migrate: () => database.migrate(statements),
    schema: () => `${statements.join(';\n\n')};\n`,
  }
}

/** A row: the record, and who has opened it, so that the caller knows whether it was the first. */
interface Kept {
  readonly record: PendingRecord
  readonly openedBy: string
  /** Of the keys that it belongs to. */
  readonly name?: string | undefined
}

interface KeyPlace {
  readonly database: SqlDatabase
  readonly name: string | undefined
}

/** No operation has a line break, so a name in front of it is never a part of another operation. */
function idOf({ name }: KeyPlace, operation: string): string {
  return hash('sha256', name === undefined ? operation : `${name}\n${operation}`, 'hex')
}

function read(text: string): Kept {
  const kept = JSON.parse(text) as Kept
  return { ...kept, record: parseRecord(JSON.stringify(kept.record), 'the table of keys') }
}

async function openIn(place: KeyPlace, session: SqlSession, record: PendingRecord): Promise<PendingRecord> {
  const { database, name } = place
  const table = database.table('client_keys')
  const isMysql = database.dialect === 'mysql'
  const id = idOf(place, record.operation)
  const openedBy = systemRandom.uuid()
  const insert = isMysql ? sql`insert ignore into` : sql`insert into`
  const orNothing = isMysql ? sql`` : sql`on conflict (id) do nothing`
  const kept = JSON.stringify({ openedBy, name, record } satisfies Kept)
  for (;;) {
    await session.query(sql`${insert} ${table} (id, kept) values (${id}, ${kept}) ${orNothing}`)
    // Locked, so that a transaction with an older view sees the row that stands, too.
    const [row] = await session.query(
      sql`select kept as answer from ${table} where id = ${id} ${session === database ? sql`` : forUpdate(database)}`,
    )
    // Unless it was removed in this moment: then the name is free.
    if (row === undefined) continue
    const standing = read(row)
    return standing.openedBy === openedBy ? record : standing.record
  }
}

/** Reads what stands, and writes what `next` returns: undefined leaves it, null removes it. In one transaction, on a locked row. */
async function change(
  place: KeyPlace,
  operation: string,
  next: (standing: PendingRecord | undefined) => PendingRecord | null | undefined,
): Promise<void> {
  const { database } = place
  const table = database.table('client_keys')
  const id = idOf(place, operation)
  const { triesMax } = countedBackoffs.transaction
  for (let tries = 1; ; tries++) {
    const transaction = await database.begin({ scope: 'client keys', id })
    try {
      const [row] = await transaction.query(
        sql`select kept as answer from ${table} where id = ${id} ${forUpdate(database)}`,
      )
      const standing = row === undefined ? undefined : read(row)
      const record = next(standing?.record)
      if (record && standing) {
        const kept = JSON.stringify({ ...standing, record } satisfies Kept)
        await transaction.query(sql`update ${table} set kept = ${kept} where id = ${id}`)
      }
      if (record === null) await transaction.query(sql`delete from ${table} where id = ${id}`)
      return await transaction.commit()
    } catch (error) {
      await transaction.rollback()
      if (!database.isConflict(error) || tries >= triesMax) throw error
      await sleep(systemClock, backoffMs(countedBackoffs.transaction, tries - 1, systemRandom))
    }
  }
}

function forUpdate({ dialect }: SqlDatabase): SqlStatement {
  return dialect === 'sqlite' ? sql`` : sql`for update`
}

/** A table that is missing is an error that says which call creates it. */
async function cured<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (missingTableIn(error, 'client_keys') === undefined) throw error
    throw new OnceError('SCHEMA_MISSING', {
      message:
        'The table of the client keys is missing. Nothing was sent. Run "await keys.migrate()" once, or give the SQL of keys.schema() to your own migrations.',
      cause: error,
    })
  }
}

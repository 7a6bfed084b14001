// Messages that are not run and not lost: parked with the reason, whole, until a person redrives them. A message is parked before it
// is acknowledged to its broker.

import type { SqlDatabase, SqlSession } from '../../clients/sql-database.ts'
import { integer, join, sql } from '../../clients/sql-statement.ts'
import type { SqlStatement } from '../../clients/sql-statement.ts'
import type { Codec } from '../../core/outcome.ts'
import { columnsOf, read } from '../../clients/sql-columns.ts'
import type { Columns } from '../../clients/sql-columns.ts'
import { decodeText, encodeText } from '../stored-text.ts'

/** Why a message is parked. */
export type ParkedCode =
  /** It was tried as often as `attempts` says. */
  | 'ATTEMPTS'
  /** It is older than the window: nobody knows any more whether it was handled. */
  | 'TOO_OLD'
  /** Its id was used for a message with another body. */
  | 'MISMATCH'
  /** It has no id, so that it cannot be told from others. */
  | 'NO_ID'

export interface ParkedMessage {
  /** The scope of the consumer: 'shop/inbox/mailer'. */
  readonly scope: string
  readonly id: string
  readonly fingerprint: string
  readonly code: ParkedCode
  /** What went wrong, in words: the handler's last error. */
  readonly detail: string
  readonly attempts: number
  readonly parkedAtMs: number
  /** Somebody asked for it to be run again. */
  readonly isRedriven: boolean
  /** The message as JSON. Bytes are `{ "$bytes": base64 }`. */
  readonly message: string
}

export interface ParkedFilter {
  readonly scope?: string
  readonly id?: string
  /** Several messages can be parked under one id, with a body each. */
  readonly fingerprint?: string
  readonly code?: ParkedCode
  /** Parked messages come in the order of scope, id and fingerprint. This one and all before it are passed over. */
  readonly after?: { readonly scope: string; readonly id: string; readonly fingerprint?: string }
  readonly limit?: number
}

export type ParkedEntry = Omit<ParkedMessage, 'parkedAtMs' | 'isRedriven'>

export interface Parking {
  /** The same message parked twice is parked once. */
  park(session: SqlSession, entry: ParkedEntry): Promise<void>
  list(filter: ParkedFilter): Promise<readonly ParkedMessage[]>
  /** Asks for it to be run again. False when it is not parked any more, or redriven already. */
  redrive(parked: ParkedRowName): Promise<boolean>
  /** Removes it. Its mark stays, so that it is refused when it comes again. False when it is not parked any more. */
  discard(parked: ParkedRowName): Promise<boolean>
  /** One that is to be run again, with its attempt counted. It is not asked for any more: a crash leaves it parked. */
  takeRedriven(scope: string): Promise<ParkedMessage | undefined>
  /** It has run. False when another has it. */
  remove(session: SqlSession, parked: ParkedMessage): Promise<boolean>
  note(parked: ParkedMessage, detail: string): Promise<void>
}

/** As much of an error as an index or a page can show. */
const detailCharactersMax = 2_000

interface Table extends Columns {
  readonly database: SqlDatabase
  readonly codec: Codec | undefined
  readonly table: SqlStatement
}

/** Without its codec, what was encoded is listed as it is stored. */
export function parkingOn(database: SqlDatabase, codec?: Codec): Parking {
  const on: Table = { ...columnsOf(database.dialect), database, codec, table: database.table('inbox_parked') }
  const { table, bound, insert, orNothing, row, forUpdate } = on
  const shortened = (detail: string): string => encodeText(codec, detail.slice(0, detailCharactersMax))
  return {
    async park(session, { scope, id, fingerprint, code, detail, attempts, message }) {
      await session.query(sql`
        ${insert} ${table} (scope, id, fingerprint, code, detail, attempts, message, parked_at_ms)
        values (${bound(scope)}, ${bound(id)}, ${fingerprint}, ${code}, ${shortened(detail)}, ${attempts},
          ${encodeText(codec, message)}, ${database.nowMs()}) ${orNothing}`)
    },
    list: (filter) => list(on, filter),
    redrive: (parked) =>
      whereThere(on, parked, sql`redrive_at_ms is null`, (where) => {
        return sql`update ${table} set redrive_at_ms = ${database.nowMs()} where ${where}`
      }),
    discard: (parked) => whereThere(on, parked, sql`1 = 1`, (where) => sql`delete from ${table} where ${where}`),
    takeRedriven: (scope) => takeRedriven(on, scope),
    async remove(session, parked) {
      const where = same(on, parked)
      const [found] = await session.query(sql`select ${row(sql`attempts`)} from ${table} where ${where} ${forUpdate}`)
      if (found === undefined) return false
      await session.query(sql`delete from ${table} where ${where}`)
      return true
    },
    async note(parked, detail) {
      await database.query(sql`update ${table} set detail = ${shortened(detail)} where ${same(on, parked)}`)
    },
  }
}

type ParkedName = Pick<ParkedMessage, 'scope' | 'id' | 'fingerprint'>
type ParkedRowName = Pick<ParkedMessage, 'scope' | 'id' | 'fingerprint' | 'code'>

/** Changes a row that is there and is so. A consumer that runs it meanwhile has it locked, and removes it. */
async function whereThere(
  on: Table,
  parked: ParkedRowName,
  isSo: SqlStatement,
  change: (where: SqlStatement) => SqlStatement,
): Promise<boolean> {
  const { database, table, row, forUpdate } = on
  // With its code: it may have been run and parked again since, for a reason that was not asked for.
  const where = sql`${same(on, parked)} and code = ${parked.code} and ${isSo}`
  const open = await database.begin({ scope: parked.scope, id: parked.id })
  try {
    const [found] = await open.query(sql`select ${row(sql`attempts`)} from ${table} where ${where} ${forUpdate}`)
    if (found === undefined) {
      await open.rollback()
      return false
    }
    await open.query(change(where))
    await open.commit()
    return true
  } catch (error) {
    await open.rollback()
    throw error
  }
}

function same({ bound }: Table, { scope, id, fingerprint }: ParkedName): SqlStatement {
  return sql`scope = ${bound(scope)} and id = ${bound(id)} and fingerprint = ${fingerprint}`
}

async function list(on: Table, filter: ParkedFilter): Promise<readonly ParkedMessage[]> {
  const { scope, id, fingerprint, code, after, limit } = filter
  const { database, table, bound } = on
  const conditions = [
    sql`1 = 1`,
    ...(scope === undefined ? [] : [sql`scope = ${bound(scope)}`]),
    ...(id === undefined ? [] : [sql`id = ${bound(id)}`]),
    ...(fingerprint === undefined ? [] : [sql`fingerprint = ${fingerprint}`]),
    ...(code === undefined ? [] : [sql`code = ${code}`]),
    ...(after ? [behind(on, after)] : []),
  ]
  const answers = await database.query(sql`
    select ${columns(on)} from ${table} where ${join(conditions, ' and ')} order by scope, id, fingerprint
    limit ${integer(limit ?? 100)}`)
  return answers.map((answer) => readRow(on, answer))
}

function behind({ bound }: Table, { scope, id, fingerprint }: NonNullable<ParkedFilter['after']>): SqlStatement {
  if (fingerprint === undefined) return sql`(scope, id) > (${bound(scope)}, ${bound(id)})`
  return sql`(scope, id, fingerprint) > (${bound(scope)}, ${bound(id)}, ${fingerprint})`
}

async function takeRedriven(on: Table, scope: string): Promise<ParkedMessage | undefined> {
  const { database, table, bound, skipLocked } = on
  const open = await database.begin({ scope, id: 'a parked message' })
  try {
    const [found] = await open.query(sql`
      select ${columns(on)} from ${table} where scope = ${bound(scope)} and redrive_at_ms is not null
      order by redrive_at_ms limit 1 ${skipLocked}`)
    const parked = found === undefined ? undefined : readRow(on, found)
    if (parked) {
      const where = same(on, parked)
      await open.query(sql`update ${table} set attempts = attempts + 1, redrive_at_ms = null where ${where}`)
    }
    await open.commit()
    return parked && { ...parked, attempts: parked.attempts + 1 }
  } catch (error) {
    await open.rollback()
    throw error
  }
}

function columns({ row, name }: Table): SqlStatement {
  const named = [name(sql`scope`), name(sql`id`)]
  const others = ['fingerprint', 'code', 'detail', 'attempts', 'parked_at_ms', 'redrive_at_ms', 'message']
  return row(...named, ...others.map((column) => ({ texts: [column], values: [] })))
}

function readRow({ readName, codec }: Table, answer: string): ParkedMessage {
  const [scope, id, fingerprint, code, detail, attempts, parkedAtMs, redriveAtMs, message] = read(answer)
  return {
    scope: readName(scope),
    id: readName(id),
    fingerprint: fingerprint as string,
    code: code as ParkedCode,
    detail: decodeText(codec, detail as string),
    attempts: Number(attempts),
    parkedAtMs: Number(parkedAtMs),
    isRedriven: redriveAtMs !== null,
    message: decodeText(codec, message as string),
  }
}

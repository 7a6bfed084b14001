// Before the first promise: is this a database on which it can be kept? Asked once a store, with one query, and again only
// while the answer is no.

import { OnceError } from '../../core/errors.ts'
import type { PostgresSession } from '../../clients/postgres.ts'
import { checkedOnce, schemaMissing } from '../sql-answers.ts'
import { storeError } from './errors.ts'
import { qualified } from './names.ts'
import type { SchemaNames } from './names.ts'
import { checkStatement } from './statements.ts'

interface Found {
  readonly fsync: string
  readonly full_page_writes: string
  readonly synchronous_commit: string
  readonly server_encoding: string
  readonly default_transaction_isolation: string
  /** 'p' for a permanent table, 'u' for an unlogged one, null when there is none. */
  readonly persistence: string | null
  readonly migrated: boolean
}

/** What a store must know of its server once it has been found fit. */
export interface PostgresFacts {
  /** The default of the sessions: 'read committed', or stricter. */
  readonly isolation: string
}

export type Readiness = (session: PostgresSession) => Promise<PostgresFacts>

export function readiness(names: SchemaNames, durability: 'full' | 'relaxed'): Readiness {
  return checkedOnce((session) => check(names, durability, session))
}

async function check(
  names: SchemaNames,
  durability: 'full' | 'relaxed',
  session: PostgresSession,
): Promise<PostgresFacts> {
  const found = await look(names, session)
  if (found.persistence === null) throw schemaMissing(`There is no table ${qualified(names)}.`)
  if (!found.migrated) throw schemaMissing(`The table ${qualified(names)} is of another version than this code.`)
  if (found.server_encoding !== 'UTF8') {
    const message = `The database is encoded in ${found.server_encoding}, which cannot hold every key. Use a database in UTF8.`
    throw new OnceError('STORE_UNSAFE', { message })
  }
  const dangers = dangersOf(names, found)
  if (dangers.length > 0) {
    const message = `A crash of the database would lose acknowledged outcomes, and effects would run twice: ${dangers.join(', ')}.`
    if (durability === 'full') {
      throw new OnceError('STORE_UNSAFE', {
        message: `${message} Change that, or say durability: 'relaxed' to accept it.`,
      })
    }
    process.emitWarning(message, { type: 'OnceonlyWarning', code: 'STORE_UNSAFE' })
  }
  return { isolation: found.default_transaction_isolation }
}

async function look(names: SchemaNames, session: PostgresSession): Promise<Found> {
  try {
    const [result] = await session.run([checkStatement(names)])
    return JSON.parse(result!.answers[0]!) as Found
  } catch (error) {
    throw storeError(error, 'read its settings', 'no')
  }
}

function dangersOf(names: SchemaNames, found: Found): string[] {
  return [
    ...(found.fsync === 'off' ? ['fsync is off'] : []),
    ...(found.full_page_writes === 'off' ? ['full_page_writes is off'] : []),
    ...(found.synchronous_commit === 'off' ? ['synchronous_commit is off'] : []),
    ...(found.persistence === 'p' ? [] : [`the table ${qualified(names)} is unlogged`]),
  ]
}

// Before the first promise: is this a database on which it can be kept? Asked once a store, with one query, and again only
// while the answer is no.

import { OnceError } from '../../core/errors.ts'
import type { Session } from '../../clients/postgres.ts'
import { schemaMissing, storeError } from './errors.ts'
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

/** Resolves to the statements that must come before ours in their own transaction: mostly none. */
export type Readiness = (session: Session) => Promise<readonly string[]>

export function readiness(names: SchemaNames, durability: 'full' | 'relaxed'): Readiness {
  let known: Promise<readonly string[]> | undefined
  return (session) => {
    known ??= check(names, durability, session).catch((error: unknown) => {
      known = undefined
      throw error
    })
    return known
  }
}

async function check(names: SchemaNames, durability: 'full' | 'relaxed', session: Session): Promise<readonly string[]> {
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
  // Above READ COMMITTED our statements would fail on each other by the dozen, for a strictness that they do not need: they
  // lock what they write, and read it after the lock.
  const strict = found.default_transaction_isolation !== 'read committed'
  return strict ? ['SET TRANSACTION ISOLATION LEVEL READ COMMITTED'] : []
}

async function look(names: SchemaNames, session: Session): Promise<Found> {
  try {
    const [result] = await session.run([checkStatement(names)])
    return JSON.parse(result!.answers[0]!) as Found
  } catch (error) {
    throw storeError(error, 'check of its settings', 'no')
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

// Before the first promise: is this a server on which it can be kept? Asked once a store, with two queries, and again only
// while the answer is no.

import { OnceError } from '../../core/errors.ts'
import type { Session } from '../../clients/mysql.ts'
import { schemaMissing, storeError } from './errors.ts'
import { procedureNames } from './schema.ts'
import { foundStatement } from './statements.ts'

/** What is known of the server once it has been looked at. */
export interface ServerLimits {
  /** max_allowed_packet: a longer statement is not taken. */
  readonly packetBytesMax: number
}

export type Readiness = (session: Session) => Promise<ServerLimits>

export function readiness(table: string, durability: 'full' | 'relaxed'): Readiness {
  let known: Promise<ServerLimits> | undefined
  return (session) => {
    known ??= check(table, durability, session).catch((error: unknown) => {
      known = undefined
      throw error
    })
    return known
  }
}

const settingNames = [
  'innodb_flush_log_at_trx_commit',
  'innodb_doublewrite',
  'innodb_rollback_on_timeout',
  'log_bin',
  'sync_binlog',
  'binlog_format',
  'max_allowed_packet',
]

type Settings = Readonly<Record<string, string | undefined>>

async function check(table: string, durability: 'full' | 'relaxed', session: Session): Promise<ServerLimits> {
  const { engine, migrated, settings } = await look(table, session)
  if (engine === null) throw schemaMissing(`There is no table ${table}.`)
  if (!migrated) throw schemaMissing(`The procedures of the table ${table} are missing, or of another version.`)
  const unfit = unfitnessOf(table, engine, settings)
  if (unfit !== undefined) throw new OnceError('STORE_UNSAFE', { message: unfit })
  const dangers = dangersOf(settings)
  if (dangers.length > 0) {
    const message = `A crash of the server would lose acknowledged outcomes, and effects would run twice: ${dangers.join(', ')}.`
    if (durability === 'full') {
      throw new OnceError('STORE_UNSAFE', {
        message: `${message} Change that, or say durability: 'relaxed' to accept it.`,
      })
    }
    warn(message)
  }
  if (settings['log_bin'] === 'ON' && settings['sync_binlog'] !== '1') {
    warn(
      `sync_binlog is ${settings['sync_binlog']}: a power cut can lose acknowledged outcomes with the binary log. Set it to 1.`,
    )
  }
  return { packetBytesMax: Number(settings['max_allowed_packet']) }
}

function warn(message: string): void {
  process.emitWarning(message, { type: 'OnceonlyWarning', code: 'STORE_UNSAFE' })
}

interface Found {
  readonly engine: string | null
  readonly migrated: boolean
  readonly settings: Settings
}

async function look(table: string, session: Session): Promise<Found> {
  const names = settingNames.map((name) => `'${name}'`).join(', ')
  try {
    const [found] = await session.run(foundStatement(table))
    const rows = await session.run(`show global variables where variable_name in (${names})`)
    return {
      engine: found![0]!,
      migrated: Number(found![1]) === procedureNames.length,
      settings: Object.fromEntries(rows.map(([name, value]) => [name!, value ?? undefined])),
    }
  } catch (error) {
    throw storeError(error, 'check of its settings', 'no')
  }
}

/** What no option makes good: without it the promise is void even while nothing crashes. */
function unfitnessOf(table: string, engine: string, settings: Settings): string | undefined {
  if (engine !== 'InnoDB') {
    return `The table ${table} is of the engine ${engine}, which has no transactions. alter table ${table} engine = InnoDB.`
  }
  if (settings['innodb_rollback_on_timeout'] === 'ON') {
    return (
      `innodb_rollback_on_timeout is on: a claim of a key that is busy would take the caller's whole transaction back, ` +
      `without anybody being told. Turn it off.`
    )
  }
  if (settings['log_bin'] === 'ON' && settings['binlog_format'] === 'STATEMENT') {
    return `binlog_format is STATEMENT, with which the server refuses what this store writes. Set it to ROW or MIXED.`
  }
  return undefined
}

function dangersOf(settings: Settings): string[] {
  const flush = settings['innodb_flush_log_at_trx_commit'] ?? ''
  const doublewrite = settings['innodb_doublewrite'] ?? ''
  return [
    // 3 is MariaDB's, and syncs more often than 1.
    ...(['1', '3'].includes(flush) ? [] : [`innodb_flush_log_at_trx_commit is ${flush}`]),
    ...(['OFF', 'DETECT_ONLY'].includes(doublewrite) ? [`innodb_doublewrite is ${doublewrite}`] : []),
  ]
}

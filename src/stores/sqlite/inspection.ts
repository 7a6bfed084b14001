// Inspecting the entries of a SQLite table and mending them manually. Synchronous, like sqlite/entries.ts. A change and its audit
// record are one transaction.

import { mendingName } from '../../core/entry.ts'
import type { Key } from '../../core/key.ts'
import type { AuditRecord, Entry, EntryFilter, Mending } from '../../core/store.ts'
import { prepare } from '../../clients/sqlite.ts'
import type { SqliteDatabase, SqliteValue } from '../../clients/sqlite.ts'
import { shownRow } from './entries.ts'
import type { SqliteEntries, SqliteEntryRow } from './entries.ts'

export interface SqliteInspection {
  show(key: Key): Entry | undefined
  list(filter: EntryFilter): readonly Entry[]
  mend(key: Key, action: Mending, reason: string): Entry | undefined
  audit(key: Key): readonly AuditRecord[]
}

// Prepared anew for each call: people look, and they do so seldom.
export function inspectionOn(
  database: SqliteDatabase,
  table: string,
  entries: Pick<SqliteEntries, 'change'>,
  now: () => number,
): SqliteInspection {
  const show = (key: Key): Entry | undefined => {
    const row = prepare(database, `SELECT * FROM ${table} WHERE scope = ? AND id = ?`).get(key.scope, key.id)
    return row ? shownRow(row as SqliteEntryRow, now()) : undefined
  }
  return {
    show,
    list: (filter) => list(database, table, filter, now()),
    mend(key, action, reason) {
      const before = show(key)
      const mended = before && entries.change(key, action)
      if (!mended) return before
      prepare(
        database,
        `INSERT INTO ${table}_audit (scope, id, at, action, reason, before) VALUES (?, ?, ?, ?, ?, ?)`,
      ).run(key.scope, key.id, now(), mendingName(action), reason, before.state)
      if (mendingName(action) === 'resolve') {
        // A worker has nothing left to do for an operation whose result a person found out.
        const end = `UPDATE ${table}_operations SET due_at = NULL, settled = 1 WHERE scope = ? AND id = ?`
        prepare(database, end).run(key.scope, key.id)
      }
      return before
    },
    audit(key) {
      const sql = `SELECT at AS atMs, action, reason, before FROM ${table}_audit WHERE scope = ? AND id = ? ORDER BY number`
      const records = prepare(database, sql).all(key.scope, key.id) as Omit<AuditRecord, 'key'>[]
      return records.map((record) => ({ key, ...record }))
    },
  }
}

function list(database: SqliteDatabase, table: string, filter: EntryFilter, now: number): Entry[] {
  const conditions = ['? < lease_until + keep_ms + tombstone_ms']
  const values: SqliteValue[] = [now]
  if (filter.scope !== undefined) {
    conditions.push('scope = ?')
    values.push(filter.scope)
  }
  if (filter.after) {
    conditions.push('(scope, id) > (?, ?)')
    values.push(filter.after.scope, filter.after.id)
  }
  if (filter.state !== undefined) {
    // The same decision as stateOf, so that a page is full of what was asked for.
    conditions.push(`CASE WHEN ? >= lease_until + keep_ms THEN 'tombstone' WHEN state <> 'running' THEN state
      WHEN ? >= lease_until THEN 'abandoned' ELSE 'running' END = ?`)
    values.push(now, now, filter.state)
  }
  const sql = `SELECT * FROM ${table} WHERE ${conditions.join(' AND ')} ORDER BY scope, id LIMIT ?`
  const rows = prepare(database, sql).all(...values, filter.limit) as SqliteEntryRow[]
  return rows.map((row) => shownRow(row, now)).filter((entry) => entry !== undefined)
}

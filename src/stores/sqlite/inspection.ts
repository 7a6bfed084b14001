// Looking at the entries of a SQLite table and mending them by hand. Synchronous, like sqlite/entries.ts; the audit record
// and the change it tells of are written in one transaction.

import type { Key } from '../../core/key.ts'
import type { AuditRecord, Entry, EntryFilter } from '../../core/store.ts'
import { prepare } from './connection.ts'
import type { SqliteDatabase, SqliteValue } from './connection.ts'
import { plain, stateOf } from './entries.ts'
import type { EntryRow } from './entries.ts'

export interface Inspection {
  show(key: Key): Entry | undefined
  list(filter: EntryFilter): readonly Entry[]
  mend(key: Key, action: 'release' | 'forget', reason: string): Entry | undefined
  audit(key: Key): readonly AuditRecord[]
}

// Prepared anew for each call: people look, and they do so seldom.
export function inspectionOn(database: SqliteDatabase, table: string, now: () => number): Inspection {
  const show = (key: Key): Entry | undefined => {
    const row = prepare(database, `SELECT * FROM ${table} WHERE scope = ? AND id = ?`).get(key.scope, key.id)
    return row ? shown(row as EntryRow, now()) : undefined
  }
  return {
    show,
    list: (filter) => list(database, table, filter, now()),
    mend(key, action, reason) {
      const before = show(key)
      const mendable = action === 'forget' || before?.state === 'running' || before?.state === 'abandoned'
      if (!before || !mendable) return before
      prepare(
        database,
        `INSERT INTO ${table}_audit (scope, id, at, action, reason, before) VALUES (?, ?, ?, ?, ?, ?)`,
      ).run(key.scope, key.id, now(), action, reason, before.state)
      // An open entry keeps its last token: a delayed claim of the holder that was pushed out still finds that it is over.
      if (action === 'release') {
        const open = `UPDATE ${table} SET state = 'open', lease_until = ? WHERE scope = ? AND id = ?`
        prepare(database, open).run(now(), key.scope, key.id)
      } else {
        for (const suffix of ['', '_operations', '_steps'])
          prepare(database, `DELETE FROM ${table}${suffix} WHERE scope = ? AND id = ?`).run(key.scope, key.id)
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
  const rows = prepare(database, sql).all(...values, filter.limit) as EntryRow[]
  return rows.map((row) => shown(row, now)).filter((entry) => entry !== undefined)
}

function shown(row: EntryRow, now: number): Entry | undefined {
  const state = stateOf(row, now)
  if (!state) return undefined
  const expiresAtMs = row.lease_until + row.keep_ms
  const kept = state !== 'tombstone'
  return {
    key: { scope: row.scope, id: row.id },
    state,
    attempt: row.attempt,
    fence: row.fence,
    fingerprint: row.fingerprint,
    version: row.version,
    firstClaimedAtMs: row.first_claimed_at,
    leaseUntilMs: row.lease_until,
    expiresAtMs,
    forgottenAtMs: expiresAtMs + row.tombstone_ms,
    ...(kept && row.outcome && { outcome: plain(row.outcome) }),
    ...(kept && row.input && { input: plain(row.input) }),
  }
}

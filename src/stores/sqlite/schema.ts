// The tables of the SQLite store. The version is in a separate table: PRAGMA user_version belongs to the user.

import { OnceError } from '../../core/errors.ts'
import { inTransaction, prepare } from '../../clients/sqlite.ts'
import type { SqliteDatabase } from '../../clients/sqlite.ts'

const schemaVersion = 2

// A table with a rowid: measured against WITHOUT ROWID, claim and settle are 1.06 to 2.2 times as fast (random keys, 64 per
// commit) and the file is smaller, as an update rewrites the row where it is. sweep_at is a time before which an entry need not
// be looked at. Settling and extending leave it, so that they write no index.
export function schemaSql(table: string): string {
  return `CREATE TABLE IF NOT EXISTS ${table} (
  scope TEXT NOT NULL,
  id TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('running', 'open', 'settled')),
  token TEXT NOT NULL,
  how TEXT NOT NULL CHECK (how IN ('fresh', 'reopened', 'taken-over')),
  attempt INTEGER NOT NULL,
  fence INTEGER NOT NULL,
  fingerprint TEXT NOT NULL,
  version INTEGER NOT NULL,
  lease_until INTEGER NOT NULL,
  keep_ms INTEGER NOT NULL,
  tombstone_ms INTEGER NOT NULL,
  first_claimed_at INTEGER NOT NULL,
  sweep_at INTEGER NOT NULL,
  outcome BLOB,
  input BLOB,
  PRIMARY KEY (scope, id)
) STRICT;
CREATE INDEX IF NOT EXISTS ${table}_sweep ON ${table} (sweep_at);
CREATE TABLE IF NOT EXISTS ${table}_audit (
  number INTEGER PRIMARY KEY,
  scope TEXT NOT NULL,
  id TEXT NOT NULL,
  at INTEGER NOT NULL,
  action TEXT NOT NULL,
  reason TEXT NOT NULL,
  before TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS ${table}_audit_key ON ${table}_audit (scope, id);
CREATE TABLE IF NOT EXISTS ${table}_operations (
  scope TEXT NOT NULL,
  id TEXT NOT NULL,
  life_fence INTEGER NOT NULL,
  due_at INTEGER,
  settled INTEGER NOT NULL,
  cancel_reason TEXT,
  PRIMARY KEY (scope, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS ${table}_operations_due ON ${table}_operations (scope, due_at) WHERE due_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS ${table}_steps (
  scope TEXT NOT NULL,
  id TEXT NOT NULL,
  name TEXT NOT NULL,
  revision INTEGER NOT NULL,
  at INTEGER NOT NULL,
  content BLOB NOT NULL,
  PRIMARY KEY (scope, id, name)
) STRICT;
CREATE TABLE IF NOT EXISTS ${table}_clock (at INTEGER NOT NULL) STRICT;
INSERT INTO ${table}_clock (at) SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM ${table}_clock);
CREATE TABLE IF NOT EXISTS ${table}_schema (version INTEGER PRIMARY KEY) STRICT;
INSERT OR IGNORE INTO ${table}_schema (version) VALUES (${schemaVersion});
`
}

/** Throws SQLite's BUSY while another process migrates. At the next try that process will have done it. */
export function migrateSchema(database: SqliteDatabase, table: string): void {
  if (readVersion(database, table) === schemaVersion) return
  database.exec('BEGIN IMMEDIATE')
  try {
    // Looked at again under the lock: another process may have been faster.
    if (readVersion(database, table) !== schemaVersion) database.exec(schemaSql(table))
    database.exec('COMMIT')
  } catch (error) {
    if (inTransaction(database)) database.exec('ROLLBACK')
    throw error
  }
}

function readVersion(database: SqliteDatabase, table: string): number | undefined {
  const known = prepare(database, `SELECT name FROM sqlite_schema WHERE type = 'table' AND name = ?`).get(
    `${table}_schema`,
  )
  if (!known) return undefined
  const { version } = prepare(database, `SELECT max(version) AS version FROM ${table}_schema`).get() as {
    version: number | null
  }
  if (version !== null && version > schemaVersion) {
    throw new OnceError('UNSUPPORTED', {
      message:
        `The table ${table} has schema version ${version}, written by a newer onceonly; this one knows ${schemaVersion}. ` +
        'Install the newer package here too.',
    })
  }
  return version ?? undefined
}

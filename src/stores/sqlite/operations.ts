// Operations in SQLite: their records in a table beside the entries. Synchronous, like sqlite/entries.ts, and inside the same
// transaction: a record is there just when the decision about its entry was.

import type { Key } from '../../core/key.ts'
import type {
  Advanced,
  Change,
  Claim,
  ClaimRequest,
  DueOperation,
  Fenced,
  Ledger,
  Verdict,
  WrittenRecord,
} from '../../core/store.ts'
import { prepare } from '../../clients/sqlite.ts'
import type { SqliteDatabase, SqliteStatement } from '../../clients/sqlite.ts'
import { bytes, plain } from './entries.ts'
import type { SqliteEntries } from './entries.ts'

export interface SqliteOperations {
  enlist(key: Key, request: ClaimRequest): Verdict
  ledger(key: Key): Ledger | undefined
  advance(claim: Claim, change: Change): Advanced
  isAnyDue(scope: string): boolean
  due(scope: string, limit: number, holdMs: number): readonly DueOperation[]
  dismiss(operation: DueOperation): void
  requestCancel(key: Key, reason: string): boolean
  unfinished(scope: string, after: string, limit: number): readonly Key[]
}

interface OperationRow {
  readonly life_fence: number
  readonly due_at: number | null
  readonly settled: number
  readonly cancel_reason: string | null
}

export function operationsOn(
  database: SqliteDatabase,
  table: string,
  entries: SqliteEntries,
  now: () => number,
): SqliteOperations {
  const statements = prepareStatements(database, table)
  const find = ({ scope, id }: Key): OperationRow | undefined =>
    statements.find.get(scope, id) as OperationRow | undefined
  return {
    enlist(key, request) {
      const verdict = entries.claim(key, request)
      if (verdict.is === 'granted') enlisted(statements, find(key), verdict, now() + request.leaseMs)
      return verdict
    },
    ledger(key) {
      const row = entries.isThere(key) ? find(key) : undefined
      if (!row) return undefined
      const records = statements.records.all(key.scope, key.id) as WrittenRecord[]
      return {
        records: records.map((record) => ({ ...record, content: plain(record.content) })),
        dueAtMs: row.due_at ?? undefined,
        cancelReason: row.cancel_reason ?? undefined,
      }
    },
    advance: (claim, change) => advance(statements, entries, find(claim.key), claim, change, now()),
    isAnyDue: (scope) => statements.due.all(scope, now(), 1).length > 0,
    due(scope, limit, holdMs) {
      const heldUntilMs = now() + holdMs
      const found = statements.due.all(scope, now(), limit) as { id: string }[]
      for (const { id } of found) statements.moveDue.run(heldUntilMs, scope, id)
      return found.map(({ id }) => ({ key: { scope, id }, heldUntilMs }))
    },
    dismiss({ key, heldUntilMs }) {
      if (find(key)?.due_at !== heldUntilMs) return
      if (entries.isThere(key)) statements.move.run(null, 1, key.scope, key.id)
      else entries.forgetOperation(key)
    },
    requestCancel(key, reason) {
      const row = find(key)
      if (!row || row.settled) return false
      statements.cancel.run(reason, now(), key.scope, key.id)
      return true
    },
    unfinished: (scope, after, limit) =>
      (statements.unfinished.all(scope, after, limit) as { id: string }[]).map(({ id }) => ({ scope, id })),
  }
}

function enlisted(
  statements: Statements,
  known: OperationRow | undefined,
  { claim: { key, fence }, how }: Verdict & { is: 'granted' },
  dueAt: number,
): void {
  // A claim that is only repeated has the fence of its life, and must not clear what was recorded since.
  const before = how !== 'fresh' || known?.life_fence === fence ? known : undefined
  if (!before) statements.clear.run(key.scope, key.id)
  const isParked = before && !before.settled && before.due_at === null
  const row = [before?.life_fence ?? fence, isParked ? null : dueAt, before?.cancel_reason ?? null]
  statements.enlist.run(key.scope, key.id, ...row)
}

function advance(
  statements: Statements,
  entries: SqliteEntries,
  row: OperationRow | undefined,
  claim: Claim,
  { records, becomes }: Change,
  now: number,
): Advanced {
  if (!row || moved(entries, claim, becomes) === 'lost') return 'lost'
  const { scope, id } = claim.key
  for (const { name, revision, content } of records)
    statements.record.run(scope, id, name, revision, now, bytes(content))
  if (becomes.to === 'settled') statements.move.run(null, 1, scope, id)
  else if (becomes.to === 'open')
    statements.move.run(becomes.afterMs === undefined ? null : now + becomes.afterMs, 0, scope, id)
  return row.cancel_reason === null ? 'done' : 'cancelled'
}

function moved(entries: SqliteEntries, claim: Claim, becomes: Change['becomes']): Fenced {
  if (becomes.to === 'running') return entries.extend(claim, becomes.leaseMs)
  if (becomes.to === 'settled') return entries.settle(claim, becomes.outcome, becomes.retention)
  return entries.release(claim, 'open')
}

type Statements = ReturnType<typeof prepareStatements>

function prepareStatements(database: SqliteDatabase, table: string) {
  const on = (sql: string): SqliteStatement => prepare(database, sql)
  const operation = 'WHERE scope = ? AND id = ?'
  return {
    find: on(`SELECT life_fence, due_at, settled, cancel_reason FROM ${table}_operations ${operation}`),
    enlist: on(
      `INSERT INTO ${table}_operations (scope, id, life_fence, due_at, settled, cancel_reason) VALUES (?, ?, ?, ?, 0, ?)
       ON CONFLICT (scope, id) DO UPDATE SET life_fence = excluded.life_fence, due_at = excluded.due_at, settled = 0,
         cancel_reason = excluded.cancel_reason`,
    ),
    move: on(`UPDATE ${table}_operations SET due_at = ?, settled = ? ${operation}`),
    moveDue: on(`UPDATE ${table}_operations SET due_at = ? ${operation}`),
    cancel: on(`UPDATE ${table}_operations SET cancel_reason = ?, due_at = ? ${operation}`),
    due: on(`SELECT id FROM ${table}_operations WHERE scope = ? AND due_at <= ? ORDER BY due_at LIMIT ?`),
    unfinished: on(`SELECT id FROM ${table}_operations WHERE scope = ? AND id > ? AND settled = 0 ORDER BY id LIMIT ?`),
    records: on(`SELECT name, revision, at AS atMs, content FROM ${table}_steps ${operation}`),
    record: on(
      `INSERT INTO ${table}_steps (scope, id, name, revision, at, content) VALUES (?, ?, ?, ?, ?, ?)
       ON CONFLICT (scope, id, name) DO UPDATE SET revision = excluded.revision, at = excluded.at, content = excluded.content
       WHERE excluded.revision > revision`,
    ),
    clear: on(`DELETE FROM ${table}_steps ${operation}`),
  }
}

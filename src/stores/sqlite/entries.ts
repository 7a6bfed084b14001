// Entries in a SQLite table, read and written through one connection. Every function here is synchronous and runs inside a
// transaction that holds the write lock, or will fail for want of it, so nothing can come between reading a row and writing it.

import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Claim, ClaimRequest, EntryState, Fenced, Retention, Swept, Verdict } from '../../core/store.ts'
import { prepare } from './connection.ts'
import type { SqliteDatabase, SqliteStatement } from './connection.ts'
import { timeMarkOn } from './time.ts'
import type { Moments, TimeMark } from './time.ts'

export interface Entries {
  /** The verdict, when it can be told without writing. */
  look(key: Key, request: ClaimRequest): Verdict | undefined
  claim(key: Key, request: ClaimRequest): Verdict
  extend(claim: Claim, leaseMs: number): Fenced
  settle(claim: Claim, outcome: Uint8Array, retention: Retention): Fenced
  release(claim: Claim, how: 'open' | 'forget'): Fenced
  /** The claim holds its key now. */
  holds(claim: Claim): boolean
  /** There is an entry that has not expired. */
  isThere(key: Key): boolean
  /** What is recorded of an operation whose entry is over. */
  forgetOperation(key: Key): void
  sweep(limit: number): Swept
  readonly timeMark: TimeMark
}

export interface EntryTimes {
  readonly state: 'running' | 'open' | 'settled'
  readonly lease_until: number
  readonly keep_ms: number
  readonly tombstone_ms: number
}

export interface EntryRow extends EntryTimes {
  readonly scope: string
  readonly id: string
  readonly token: string
  readonly how: 'fresh' | 'reopened' | 'taken-over'
  readonly attempt: number
  readonly fence: number
  readonly fingerprint: string
  readonly version: number
  readonly first_claimed_at: number
  readonly sweep_at: number
  readonly outcome: Uint8Array | null
  readonly input: Uint8Array | null
}

export function entriesOn(database: SqliteDatabase, table: string, time: Moments): Entries {
  const statements = prepareStatements(database, table)
  const find = (key: Key): EntryRow | undefined => statements.find.get(key.scope, key.id) as EntryRow | undefined
  return {
    look: (key, request) => answer(key, find(key), request, time.now()),
    claim(key, request) {
      const [row, now] = [find(key), time.now()]
      const known = answer(key, row, request, now)
      if (known) return known
      const granted = row && isHeldBy(row, request.token, now) ? row : nextAttempt(key, row, request, now, time)
      if (granted === row) statements.extend.get(now + request.leaseMs, key.scope, key.id, row.token, row.fence, now)
      else write(statements.write, granted)
      const { token, attempt, fence, how } = granted
      return { is: 'granted', claim: { key, token, attempt, fence }, how }
    },
    extend({ key, token, fence }, leaseMs) {
      const now = time.now()
      return statements.extend.get(now + leaseMs, key.scope, key.id, token, fence, now) ? 'done' : 'lost'
    },
    settle(held, outcome, { keepMs, tombstoneMs }) {
      const [now, { key, token, fence }] = [time.now(), held]
      const holder = [key.scope, key.id, token, fence, now] as const
      const settled = statements.settle.get(bytes(outcome), now, keepMs, tombstoneMs, ...holder) as
        | Pick<EntryRow, 'sweep_at'>
        | undefined
      if (settled && settled.sweep_at > now + keepMs) statements.sweepAt.run(now + keepMs, key.scope, key.id)
      if (settled) return 'done'
      const row = find(key)
      return row && isOf(row, held) && stateOf(row, now) === 'settled' ? 'done' : 'lost'
    },
    release: (held, how) => release(statements, find(held.key), held, how, time.now()),
    holds(held) {
      const row = find(held.key)
      return row !== undefined && isOf(row, held) && isHeldBy(row, held.token, time.now())
    },
    isThere(key) {
      const row = find(key)
      const state = row && stateOf(row, time.now())
      return state !== undefined && state !== 'tombstone'
    },
    forgetOperation: (key) => forgetOperation(statements, key),
    sweep: (limit) => sweep(statements, limit, time.now()),
    timeMark: timeMarkOn(database, table, time),
  }
}

/** What an entry is follows from its times; undefined when it is over, as if it had never been. */
export function stateOf(row: EntryTimes, now: number): EntryState | undefined {
  const expiresAt = row.lease_until + row.keep_ms
  if (now >= expiresAt + row.tombstone_ms) return undefined
  if (now >= expiresAt) return 'tombstone'
  if (row.state !== 'running') return row.state
  return now < row.lease_until ? 'running' : 'abandoned'
}

// The lease decides when others may try; token and fence decide who may write. Hence abandoned is held, too.
function isHeldBy(row: EntryRow, token: string, now: number): boolean {
  const state = stateOf(row, now)
  return row.token === token && (state === 'running' || state === 'abandoned')
}

function isOf(row: EntryRow, { token, fence }: Claim): boolean {
  return row.token === token && row.fence === fence
}

function answer(key: Key, row: EntryRow | undefined, request: ClaimRequest, now: number): Verdict | undefined {
  const state = row && stateOf(row, now)
  if (!row || !state) return undefined
  if (state === 'tombstone') return request.onExpired === 'refuse' ? { is: 'expired' } : undefined
  if (row.fingerprint !== request.fingerprint) return { is: 'mismatch' }
  if (state === 'settled')
    return { is: 'settled', outcome: outcomeOf(key, row), version: row.version, attempt: row.attempt }
  if (row.token === request.token) return state === 'open' ? { is: 'busy', retryAfterMs: 0 } : undefined
  if (state === 'running') return { is: 'busy', retryAfterMs: row.lease_until - now }
  if (state === 'abandoned' && request.onTakeover === 'refuse') return { is: 'doubt', attempt: row.attempt }
  return undefined
}

function outcomeOf(key: Key, row: EntryRow): Uint8Array {
  if (row.outcome instanceof Uint8Array) return plain(row.outcome)
  throw new OnceError('OUTCOME_UNREADABLE', {
    message: `The entry of ${describeKey(key)} is settled and has no outcome. Somebody changed the table by hand; nothing was run.`,
  })
}

function nextAttempt(key: Key, row: EntryRow | undefined, request: ClaimRequest, now: number, time: Moments): EntryRow {
  const state = row && stateOf(row, now)
  const before = state === 'tombstone' ? undefined : state && row
  const { keepMs, tombstoneMs } = request.retention
  return {
    scope: key.scope,
    id: key.id,
    state: 'running',
    token: request.token,
    how: !before ? 'fresh' : before.state === 'open' ? 'reopened' : 'taken-over',
    attempt: (before?.attempt ?? 0) + 1,
    // Above that of a life that is over, too: a zombie of it may still be about.
    fence: time.fence(row?.fence ?? 0),
    fingerprint: request.fingerprint,
    version: request.version,
    lease_until: now + request.leaseMs,
    keep_ms: keepMs,
    tombstone_ms: tombstoneMs,
    first_claimed_at: before?.first_claimed_at ?? now,
    // Without the lease: an entry that is settled at once expires then.
    sweep_at: now + keepMs,
    outcome: null,
    input: request.input ?? before?.input ?? null,
  }
}

function release(
  statements: Statements,
  row: EntryRow | undefined,
  held: Claim,
  how: 'open' | 'forget',
  now: number,
): Fenced {
  const state = row && stateOf(row, now)
  // The trace is gone already: this is the same release once more, or of a claim that never arrived.
  if (!row || !state) return how === 'forget' ? 'done' : 'lost'
  const { key, token, fence } = held
  if (row.token !== token || (fence !== 0 && row.fence !== fence)) return 'lost'
  if (state === 'open') return 'done'
  if (!isHeldBy(row, token, now)) return 'lost'
  if (how === 'open' || row.attempt > 1) statements.open.run(now, key.scope, key.id)
  else {
    statements.forget.run(key.scope, key.id)
    forgetOperation(statements, key)
  }
  return 'done'
}

function forgetOperation(statements: Statements, { scope, id }: Key): void {
  statements.forgetOperation.run(scope, id)
  statements.forgetSteps.run(scope, id)
}

function sweep(statements: Statements, limit: number, now: number): Swept {
  const due = statements.due.all(now, limit) as (EntryTimes & { scope: string; id: string; holds: number })[]
  let [tombstoned, forgotten] = [0, 0]
  for (const row of due) {
    const state = stateOf(row, now)
    const expiresAt = row.lease_until + row.keep_ms
    if (!state) {
      forgotten++
      statements.forget.run(row.scope, row.id)
      forgetOperation(statements, row)
    } else if (state === 'tombstone') {
      if (row.holds) tombstoned++
      forgetOperation(statements, row)
      statements.strip.run(expiresAt + row.tombstone_ms, row.scope, row.id)
    } else {
      // Not over yet: it was extended, or settled later than it was claimed.
      statements.sweepAt.run(expiresAt, row.scope, row.id)
    }
  }
  // Each of them was deleted or put off beyond now, so a sweep that goes on comes to an end.
  return { tombstoned, forgotten, more: due.length === limit }
}

type Statements = ReturnType<typeof prepareStatements>

function prepareStatements(database: SqliteDatabase, table: string) {
  const on = (sql: string): SqliteStatement => prepare(database, sql)
  const columns =
    'scope, id, state, token, how, attempt, fence, fingerprint, version, lease_until, keep_ms, tombstone_ms, first_claimed_at, sweep_at, outcome, input'
  const overwrite = columns.split(', ').slice(2)
  // The last ? is now: a holder whose entry has expired holds nothing.
  const held = `WHERE scope = ? AND id = ? AND token = ? AND fence = ? AND state = 'running' AND lease_until + keep_ms > ?`
  return {
    find: on(`SELECT ${columns} FROM ${table} WHERE scope = ? AND id = ?`),
    write: on(
      `INSERT INTO ${table} (${columns}) VALUES (${columns.replaceAll(/\w+/g, '?')})
       ON CONFLICT (scope, id) DO UPDATE SET ${overwrite.map((each) => `${each} = excluded.${each}`).join(', ')}`,
    ),
    extend: on(`UPDATE ${table} SET lease_until = ? ${held} RETURNING 1 AS done`),
    settle: on(
      `UPDATE ${table} SET state = 'settled', outcome = ?, lease_until = ?, keep_ms = ?, tombstone_ms = ? ${held} RETURNING sweep_at`,
    ),
    open: on(`UPDATE ${table} SET state = 'open', lease_until = ? WHERE scope = ? AND id = ?`),
    forget: on(`DELETE FROM ${table} WHERE scope = ? AND id = ?`),
    forgetOperation: on(`DELETE FROM ${table}_operations WHERE scope = ? AND id = ?`),
    forgetSteps: on(`DELETE FROM ${table}_steps WHERE scope = ? AND id = ?`),
    sweepAt: on(`UPDATE ${table} SET sweep_at = ? WHERE scope = ? AND id = ?`),
    strip: on(`UPDATE ${table} SET outcome = NULL, input = NULL, sweep_at = ? WHERE scope = ? AND id = ?`),
    due: on(
      `SELECT scope, id, state, lease_until, keep_ms, tombstone_ms, (outcome IS NOT NULL OR input IS NOT NULL) AS holds
       FROM ${table} WHERE sweep_at <= ? ORDER BY sweep_at LIMIT ?`,
    ),
  }
}

function write(statement: SqliteStatement, row: EntryRow): void {
  const { scope, id, state, token, how, attempt, fence, fingerprint, version } = row
  const times = [row.lease_until, row.keep_ms, row.tombstone_ms, row.first_claimed_at, row.sweep_at]
  const input = row.input && bytes(row.input)
  statement.run(scope, id, state, token, how, attempt, fence, fingerprint, version, ...times, row.outcome, input)
}

// better-sqlite3 takes only Buffers; this is a view, not a copy.
export function bytes(from: Uint8Array): Uint8Array {
  return Buffer.from(from.buffer, from.byteOffset, from.byteLength)
}

/** A plain Uint8Array, also from better-sqlite3, which gives Buffers. */
export function plain(from: Uint8Array): Uint8Array {
  return new Uint8Array(from.buffer, from.byteOffset, from.byteLength)
}

// Entries in a SQLite table, read and written through one connection. Every function here is synchronous and runs inside a
// transaction that holds the write lock, or will fail for want of it, so nothing can come between reading a row and writing it.

import assert from 'node:assert/strict'
import {
  attemptOf,
  decide,
  expiresAtMs,
  forgottenAtMs,
  grantOf,
  isHeldBy,
  isOf,
  mended,
  released,
  shownEntry,
  stateOf,
} from '../../core/entry.ts'
import type { ClaimDecision, EntryRecord, EntryTimes } from '../../core/entry.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Claim, ClaimRequest, Entry, Fenced, Mending, Retention, Swept, Verdict } from '../../core/store.ts'
import { prepare } from '../../clients/sqlite.ts'
import type { SqliteDatabase, SqliteStatement } from '../../clients/sqlite.ts'
import { timeMarkOn } from './time.ts'
import type { Moments, TimeMark } from './time.ts'

export interface SqliteEntries {
  /** The verdict, when it can be decided without writing. */
  look(key: Key, request: ClaimRequest): Verdict | undefined
  claim(key: Key, request: ClaimRequest): Verdict
  extend(claim: Claim, leaseMs: number): Fenced
  settle(claim: Claim, outcome: Uint8Array, retention: Retention): Fenced
  release(claim: Claim, how: 'open' | 'forget'): Fenced
  /** What a manual change made of the entry. Undefined when it changed nothing. */
  change(key: Key, action: Mending): 'changed' | 'settled' | undefined
  /** The claim holds its key now. */
  holds(claim: Claim): boolean
  /** There is an entry that has not expired. */
  isThere(key: Key): boolean
  /** Deletes what is recorded of an operation whose entry has expired. */
  forgetOperation(key: Key): void
  sweep(limit: number): Swept
  readonly timeMark: TimeMark
}

/** An entry as its row holds it. */
export interface SqliteEntryRow {
  readonly scope: string
  readonly id: string
  readonly state: 'running' | 'open' | 'settled'
  readonly token: string
  readonly how: 'fresh' | 'reopened' | 'taken-over'
  readonly attempt: number
  readonly fence: number
  readonly fingerprint: string
  readonly version: number
  readonly lease_until: number
  readonly keep_ms: number
  readonly tombstone_ms: number
  readonly first_claimed_at: number
  readonly sweep_at: number
  readonly outcome: Uint8Array | null
  readonly input: Uint8Array | null
}

const wroteIn = { running: 'claim', open: 'release', settled: 'settle' } as const
const stateAfter = { claim: 'running', release: 'open', settle: 'settled' } as const

function timesOf(row: Pick<SqliteEntryRow, 'state' | 'lease_until' | 'keep_ms' | 'tombstone_ms'>): EntryTimes {
  return {
    wrote: wroteIn[row.state],
    leaseUntilMs: row.lease_until,
    keepMs: row.keep_ms,
    tombstoneMs: row.tombstone_ms,
  }
}

function entryOf(row: SqliteEntryRow): EntryRecord {
  return {
    ...timesOf(row),
    key: { scope: row.scope, id: row.id },
    how: row.how,
    token: row.token,
    attempt: row.attempt,
    fence: row.fence,
    fingerprint: row.fingerprint,
    version: row.version,
    firstClaimedAtMs: row.first_claimed_at,
    ...(row.outcome && { outcome: plain(row.outcome) }),
    ...(row.input && { input: plain(row.input) }),
  }
}

export function shownRow(row: SqliteEntryRow, nowMs: number): Entry | undefined {
  return shownEntry(entryOf(row), nowMs)
}

export function entriesOn(database: SqliteDatabase, table: string, time: Moments): SqliteEntries {
  const statements = prepareStatements(database, table)
  const find = ({ scope, id }: Key): EntryRecord | undefined => {
    const row = statements.find.get(scope, id) as SqliteEntryRow | undefined
    return row && entryOf(row)
  }
  return {
    look: (key, request) => answered(decide(find(key), request, time.now())),
    claim: (key, request) => claim(statements, time, { key, entry: find(key), request }),
    extend({ key, token, fence }, leaseMs) {
      const nowMs = time.now()
      return statements.extend.get(nowMs + leaseMs, key.scope, key.id, token, fence, nowMs) ? 'done' : 'lost'
    },
    settle(held, outcome, { keepMs, tombstoneMs }) {
      const [nowMs, { key, token, fence }] = [time.now(), held]
      const holder = [key.scope, key.id, token, fence, nowMs] as const
      const settled = statements.settle.get(bytes(outcome), nowMs, keepMs, tombstoneMs, ...holder) as
        | Pick<SqliteEntryRow, 'sweep_at'>
        | undefined
      if (settled && settled.sweep_at > nowMs + keepMs) statements.sweepAt.run(nowMs + keepMs, key.scope, key.id)
      if (settled) return 'done'
      const entry = find(key)
      return isOf(entry, held) && stateOf(entry, nowMs) === 'settled' ? 'done' : 'lost'
    },
    release(held, how) {
      const { key } = held
      const after = released(find(key), held, how, time.now())
      if (after === 'done' || after === 'lost') return after
      if (after === 'forget') forget(statements, key)
      else statements.open.run(after.leaseUntilMs, key.scope, key.id)
      return 'done'
    },
    change(key, action) {
      const [entry, nowMs] = [find(key), time.now()]
      const at = { state: stateOf(entry, nowMs), nowMs, fence: time.fence(entry?.fence ?? 0) }
      const after = mended(entry, action, at)
      if (after === 'forget') forget(statements, key)
      else if (after) write(statements.write, after, nowMs)
      return after && (after !== 'forget' && after.wrote === 'settle' ? 'settled' : 'changed')
    },
    holds: (held) => isHeldBy(find(held.key), held, time.now()),
    isThere(key) {
      const state = stateOf(find(key), time.now())
      return state !== undefined && state !== 'tombstone'
    },
    forgetOperation: (key) => forgetOperation(statements, key),
    sweep: (limit) => sweep(statements, limit, time.now()),
    timeMark: timeMarkOn(database, table, time),
  }
}

function claim(
  statements: Statements,
  time: Moments,
  { key, entry, request }: { key: Key; entry: EntryRecord | undefined; request: ClaimRequest },
): Verdict {
  const nowMs = time.now()
  const decision = decide(entry, request, nowMs)
  const known = answered(decision)
  if (known) return known
  if (decision.is === 'granted') {
    const after = attemptOf(key, decision, request, { nowMs, fence: time.fence(entry?.fence ?? 0) })
    write(statements.write, after, nowMs)
    return grantOf(after)
  }
  const { token, fence } = entry!
  statements.extend.get(nowMs + request.leaseMs, key.scope, key.id, token, fence, nowMs)
  return grantOf(entry!)
}

/** The verdict that needs no write. */
function answered(decision: ClaimDecision): Verdict | undefined {
  if (decision.is === 'refused') return decision.verdict
  if (decision.is !== 'replayed') return undefined
  const { key, outcome, version, attempt } = decision.entry
  if (outcome) return { is: 'settled', outcome, version, attempt }
  throw new OnceError('OUTCOME_UNREADABLE', {
    message:
      `The row of ${describeKey(key)} is settled and has no outcome, so the table was changed by another program. ` +
      'Nothing was run. Restore the row from a backup, or give the key its result with onceonly keys resolve.',
  })
}

function forget(statements: Statements, key: Key): void {
  statements.forget.run(key.scope, key.id)
  forgetOperation(statements, key)
}

function forgetOperation(statements: Statements, { scope, id }: Key): void {
  statements.forgetOperation.run(scope, id)
  statements.forgetSteps.run(scope, id)
}

type DueRow = Pick<SqliteEntryRow, 'scope' | 'id' | 'state' | 'lease_until' | 'keep_ms' | 'tombstone_ms'> & {
  readonly holds: number
}

// A sweep keeps the event loop, and with it every other call. So many take it about a millisecond. A thousand made the calls of that time
// sixteen times as slow.
const sweptAtOnceMax = 64

function sweep(statements: Statements, limit: number, nowMs: number): Swept {
  const atMost = Math.min(limit, sweptAtOnceMax)
  const due = statements.due.all(nowMs, atMost) as DueRow[]
  let [tombstoned, forgotten] = [0, 0]
  for (const row of due) {
    const times = timesOf(row)
    const state = stateOf(times, nowMs)
    if (!state) {
      forgotten++
      forget(statements, row)
    } else if (state === 'tombstone') {
      if (row.holds) tombstoned++
      forgetOperation(statements, row)
      statements.strip.run(forgottenAtMs(times), row.scope, row.id)
    } else {
      // Not expired yet: it was extended, kept for longer, or settled later than it was claimed.
      statements.sweepAt.run(expiresAtMs(times), row.scope, row.id)
    }
  }
  // Each of them was deleted or put off beyond now, so a sweep that goes on will end.
  return { tombstoned, forgotten, more: due.length === atMost }
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

function write(statement: SqliteStatement, entry: EntryRecord, nowMs: number): void {
  const { key, wrote, token, how, attempt, fence, fingerprint, version, outcome, input } = entry
  assert(wrote !== 'forget', 'Bug! A row is deleted when its entry is forgotten.')
  const times = [entry.leaseUntilMs, entry.keepMs, entry.tombstoneMs, entry.firstClaimedAtMs]
  // Without the lease: an entry that is settled at once expires then.
  const sweepAt = Math.min(entry.leaseUntilMs, nowMs) + entry.keepMs
  statement.run(
    key.scope,
    key.id,
    stateAfter[wrote],
    token,
    how,
    attempt,
    fence,
    fingerprint,
    version,
    ...times,
    sweepAt,
    outcome ? bytes(outcome) : null,
    input ? bytes(input) : null,
  )
}

// better-sqlite3 takes only Buffers. This is a view, not a copy.
export function bytes(from: Uint8Array): Uint8Array {
  return Buffer.from(from.buffer, from.byteOffset, from.byteLength)
}

/** A plain Uint8Array, also from better-sqlite3, which gives Buffers. */
export function plain(from: Uint8Array): Uint8Array {
  return new Uint8Array(from.buffer, from.byteOffset, from.byteLength)
}

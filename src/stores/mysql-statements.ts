// The text of each statement. Invariant: every value that comes from outside passes through `hex`, `integer`, `token` or
// `word` here, so that what is sent consists of our own words, digits and hexadecimal: nothing in it depends on the SQL mode
// or the character set of the session, and no client finds a parameter in it.

import { invalidArgument, OnceError } from '../core/errors.ts'
import { describeKey, keyPartBytesMax } from '../core/key.ts'
import type { Key } from '../core/key.ts'
import type { Claim, ClaimRequest, EntryFilter, Fenced, Retention, Verdict } from '../core/store.ts'
import {
  entryState,
  entryWords,
  insertedColumns,
  insertWaitS,
  procedureName,
  procedureNames,
  verdictSql,
} from './mysql-schema.ts'
import type { ProcedureName } from './mysql-schema.ts'

/** What is asked of one key, as literals. */
export interface Call {
  readonly key: Key
  readonly values: readonly string[]
  /** How much text it is, about. */
  readonly length: number
}

export type WriteVerb = 'extend' | 'settle' | 'open' | 'forget'

/** In the order of the procedures' parameters. */
export function claimCall(key: Key, request: ClaimRequest): Call {
  const values = [
    ...keyLiterals(key),
    token(request.token),
    fingerprint(request.fingerprint),
    integer('leaseMs', request.leaseMs),
    integer('keepMs', request.retention.keepMs),
    integer('tombstoneMs', request.retention.tombstoneMs),
    integer('version', request.version),
    word(request.onTakeover),
    word(request.onExpired),
    request.input === undefined ? 'null' : hex(request.input),
  ]
  return callOf(key, values)
}

const claimColumns = [
  'scope',
  'id',
  'token',
  'fingerprint',
  'lease_ms',
  'keep_ms',
  'tombstone_ms',
  'version',
  'on_takeover',
  'on_expired',
  'input',
]

export function settleCall(claim: Claim, outcome: Uint8Array, retention: Retention): Call {
  const times = [integer('keepMs', retention.keepMs), integer('tombstoneMs', retention.tombstoneMs)]
  return callOf(claim.key, [...keyLiterals(claim.key), token(claim.token), ...times, hex(outcome)])
}

const settleColumns = ['scope', 'id', 'token', 'keep_ms', 'tombstone_ms', 'outcome']

export function writeCall(claim: Claim, durationMs: number): Call {
  const literals = [token(claim.token), integer('a duration', durationMs), '0', 'null']
  return callOf(claim.key, [...keyLiterals(claim.key), ...literals])
}

function callOf(key: Key, values: readonly string[]): Call {
  return { key, values, length: values.reduce((sum, value) => sum + value.length + 20, 0) }
}

export function callStatement(table: string, procedure: ProcedureName, values: readonly string[]): string {
  return `call \`${procedureName(table, procedure)}\`(${values.join(', ')})`
}

export function putStatement(table: string, verb: WriteVerb, call: Call): string {
  return callStatement(table, 'put', [word(verb), ...call.values])
}

/** The order in which a batch takes its locks: were it any other, two batches could wait for each other. */
export function byKey(one: Call, other: Call): number {
  return compare(one.values[0]!, other.values[0]!) || compare(one.values[1]!, other.values[1]!)
}

function compare(one: string, other: string): number {
  return one < other ? -1 : one > other ? 1 : 0
}

/** For all of them together, sorted by key; answers are read with `batchAnswers`. */
export function claimsStatement(table: string, calls: readonly Call[]): string {
  // The same key twice would fail the whole INSERT. Who is left out finds out what became of the first.
  const firsts = calls.filter((call, index) => index === 0 || byKey(call, calls[index - 1]!) !== 0)
  const now = '@onceonly_now_us'
  const insert = `insert into \`${table}\` (
        ${insertedColumns}
      ) select a.scope, a.id, 'r', 'f', a.token, a.fingerprint, 1, a.version, ${now}, ${now} div 1000 + a.lease_ms, a.keep_ms,
        a.tombstone_ms, ${now} div 1000, ${now} div 1000 + a.keep_ms, a.input
      from (${rows(firsts, claimColumns)}) a
      left join \`${table}\` e force index (primary) on e.scope = a.scope and e.id = a.id where e.id is null`
  const verdict = verdictSql((column) => `a.${column}`, `(${now} div 1000)`, '@onceonly_fence')
  return batchStatement(
    table,
    calls.length,
    insertWaitS,
    insert,
    lookups(table, calls, claimColumns.slice(0, 10), verdict),
  )
}

/** The same for settles. */
export function settlesStatement(table: string, calls: readonly Call[]): string {
  const now = '(@onceonly_now_us div 1000)'
  // The limit keeps the inner select a step of its own: it locks what it can get, and only that is written.
  const free = `select a.* from (${rows(calls, settleColumns)}) a
      straight_join \`${table}\` h force index (primary) on h.scope = a.scope and h.id = a.id
      limit ${calls.length} for update skip locked`
  const update = `update (${free}) a
      straight_join \`${table}\` e force index (primary) on e.scope = a.scope and e.id = a.id
      set e.state = 's', e.outcome = a.outcome, e.lease_until_ms = ${now}, e.keep_ms = a.keep_ms,
        e.tombstone_ms = a.tombstone_ms, e.sweep_at_ms = least(e.sweep_at_ms, ${now} + a.keep_ms)
      where e.token = a.token and e.state = 'r' and ${now} < e.lease_until_ms + e.keep_ms`
  const done = `if(e.token = a.token and e.state = 's' and ${now} < e.lease_until_ms + e.keep_ms, 'done', null)`
  return batchStatement(table, calls.length, '1', update, lookups(table, calls, settleColumns.slice(0, 3), done))
}

function lookups(table: string, calls: readonly Call[], columns: readonly string[], answer: string): string {
  return `select concat_ws(' ', a.number, ${answer}) as answer from (${rows(calls, columns, 'number')}) a
      left join \`${table}\` e force index (primary) on e.scope = a.scope and e.id = a.id`
}

function batchStatement(table: string, count: number, waitS: string, writes: string, reads: string): string {
  return callStatement(table, 'batch', [String(count), waitS, quoted(writes), quoted(reads)])
}

// The one way to write a table of constants that MySQL and MariaDB both take.
function rows(calls: readonly Call[], columns: readonly string[], numbered?: 'number'): string {
  return calls
    .map((call, index) => {
      const values = [...(numbered ? [String(index)] : []), ...call.values.slice(0, columns.length)]
      const names = numbered ? [numbered, ...columns] : columns
      return `select ${values.map((value, at) => (index === 0 ? `${value} as ${names[at]}` : value)).join(',')}`
    })
    .join(' union all ')
}

/** An answer for each call; undefined for those that must be asked one by one. `all` is the answer when all was written. */
export function batchAnswers(
  found: readonly (readonly (string | null)[])[],
  count: number,
  all: (fence: string) => string,
): (string | undefined)[] {
  const [written, fence] = found.at(-1)![0]!.split(' ')
  const answer = Number(written) === count ? all(fence!) : undefined
  const answers = Array.from({ length: count }, () => answer)
  for (const [text] of found.slice(0, -1)) {
    const space = text!.indexOf(' ')
    if (space !== -1) answers[Number(text!.slice(0, space))] = text!.slice(space + 1)
  }
  return answers
}

const hows = { f: 'fresh', r: 'reopened', t: 'taken-over' } as const

/**
 * The key is locked by somebody's transaction or statement, and nobody can tell for how long. A statement is over within
 * milliseconds; a transaction that takes longer is asked after ten times a second.
 */
const heldRetryAfterMs = 100

export function verdictOf(key: Key, request: ClaimRequest, answer: string): Verdict {
  const [is, one, two, three] = answer.split(' ')
  switch (is) {
    case 'granted': {
      const claim = { key, token: request.token, attempt: Number(two), fence: Number(three) }
      return { is, claim, how: hows[one as keyof typeof hows] }
    }
    case 'settled':
      if (three === undefined) throw unreadable(key)
      return { is, attempt: Number(one), version: Number(two), outcome: bytesOf(three) }
    case 'busy':
      return { is, retryAfterMs: Number(one) }
    case 'held':
    case 'locked':
      return { is: 'busy', retryAfterMs: Math.min(heldRetryAfterMs, request.leaseMs) }
    case 'doubt':
      return { is, attempt: Number(one) }
    case 'mismatch':
    case 'expired':
      return { is }
    default:
      throw new Error(`Bug! The claim procedure answered ${JSON.stringify(answer)}.`)
  }
}

function unreadable(key: Key): OnceError {
  return new OnceError('OUTCOME_UNREADABLE', {
    message:
      `The entry of ${describeKey(key)} is settled, and the server gave no outcome: it was removed by hand, or max_allowed_packet ` +
      `is now smaller than when it was written. Nothing was run.`,
  })
}

/** 'locked': somebody has the entry's row, and what will become of it is not known yet. */
export function fencedOf(answer: string): Fenced | 'locked' {
  if (answer === 'done' || answer === 'lost' || answer === 'locked') return answer
  throw new Error(`Bug! The write procedure answered ${JSON.stringify(answer)}.`)
}

export function sweepStatement(table: string, limit: number): string {
  return callStatement(table, 'sweep', [integer('limit', limit)])
}

export function mendStatement(table: string, key: Key, action: 'release' | 'forget', reason: string): string {
  return callStatement(table, 'mend', [...keyLiterals(key), word(action), hex(Buffer.from(reason))])
}

export function showStatement(table: string, key: Key, nowMs: string): string {
  return entries(table, nowMs, [keyCondition(key)])
}

export function listStatement(table: string, filter: EntryFilter, nowMs: string): string {
  const { scope, state, after, limit } = filter
  const conditions = [
    ...(scope === undefined ? [] : [`e.scope = ${keyPart(scope)}`]),
    ...(state === undefined ? [] : [`${entryState(nowMs)} = ${word(state)}`]),
    ...(after === undefined ? [] : [afterCondition(after)]),
  ]
  return `${entries(table, nowMs, conditions)} order by e.scope, e.id limit ${integer('limit', limit)}`
}

// Not (scope, id) > (…, …): MySQL would read the whole table for that.
function afterCondition(after: Key): string {
  const [scope, id] = keyLiterals(after)
  return `(e.scope > ${scope} or e.scope = ${scope} and e.id > ${id})`
}

function entries(table: string, nowMs: string, conditions: readonly string[]): string {
  const alive = `${nowMs} < e.lease_until_ms + e.keep_ms + e.tombstone_ms`
  return `select ${entryWords(nowMs)} as answer from \`${table}\` e where ${[alive, ...conditions].join(' and ')}`
}

export function auditStatement(table: string, key: Key): string {
  return `select concat_ws(' ', e.at_ms, e.action, e.state_before, hex(e.reason)) as answer
    from \`${table}_audit\` e where ${keyCondition(key)} order by e.number`
}

function keyCondition(key: Key): string {
  const [scope, id] = keyLiterals(key)
  return `e.scope = ${scope} and e.id = ${id}`
}

/** The engine of the table and how many of our procedures there are. */
export function foundStatement(table: string): string {
  const names = procedureNames.map((name) => word(procedureName(table, name)))
  return `select
    (select t.engine from information_schema.tables t where t.table_schema = database() and t.table_name = ${word(table)}),
    (select count(*) from information_schema.routines r
      where r.routine_schema = database() and r.routine_name in (${names.join(', ')}))`
}

export function savepoint(token: string, before: 'claim' | 'effect'): string {
  return `\`onceonly_${before}_${token}\``
}

function keyLiterals({ scope, id }: Key): [string, string] {
  return [keyPart(scope), keyPart(id)]
}

// Without the strict mode the server would cut off what is too long, and two keys would be one.
function keyPart(text: string): string {
  const bytes = Buffer.from(text)
  if (bytes.length > keyPartBytesMax) {
    throw invalidArgument(`expected scope and id of at most ${keyPartBytesMax} bytes of UTF-8, got ${bytes.length}`)
  }
  return hex(bytes)
}

/** Longer than core makes them, shorter than the column. */
const fingerprintBytesMax = 64

function fingerprint(text: string): string {
  const bytes = Buffer.from(text)
  if (bytes.length <= fingerprintBytesMax) return hex(bytes)
  throw invalidArgument(
    `expected a fingerprint of at most ${fingerprintBytesMax} bytes of UTF-8, got ${bytes.length} bytes`,
  )
}

function hex(bytes: Uint8Array): string {
  return `x'${Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('hex')}'`
}

function integer(what: string, value: number): string {
  if (!Number.isSafeInteger(value)) throw invalidArgument(`expected ${what} to be an integer, got ${String(value)}`)
  return String(value)
}

function token(text: string): string {
  if (!/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(text)) {
    throw invalidArgument(`expected a token to be a UUID in lower case, got ${JSON.stringify(text)}`)
  }
  return `'${text}'`
}

function word(text: string): string {
  if (!/^[a-z0-9_]+$/.test(text)) throw invalidArgument(`expected a word of our own, got ${JSON.stringify(text)}`)
  return `'${text}'`
}

// A statement of ours as a text constant: it has quotes, and no backslash.
function quoted(statement: string): string {
  return `'${statement.replaceAll("'", "''")}'`
}

export function bytesOf(base64: string): Uint8Array {
  return new Uint8Array(Buffer.from(base64, 'base64'))
}

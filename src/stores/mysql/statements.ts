// The text of each statement. Invariant: every value that comes from outside passes through `hex`, `integer`, `token` or
// `word` here, so that what is sent consists of our own words, digits and hexadecimal: nothing in it depends on the SQL mode
// or the character set of the session, and no client finds a parameter in it.

import { invalidArgument } from '../../core/errors.ts'
import { keyPartBytesMax } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Change, Claim, ClaimRequest, EntryFilter, Retention } from '../../core/store.ts'
import { insertWaitS, procedureName } from './names.ts'
import type { ProcedureName } from './names.ts'
import { entryState, entryWords, insertedColumns, procedureNames, verdictSql } from './schema.ts'

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
  return callOf(claim.key, [...claimLiterals(claim), ...times, hex(outcome)])
}

const settleColumns = ['scope', 'id', 'token', 'fence', 'keep_ms', 'tombstone_ms', 'outcome']

export function writeCall(claim: Claim, durationMs: number): Call {
  return callOf(claim.key, [...claimLiterals(claim), integer('a duration', durationMs), '0', 'null'])
}

/** A write of an operation: what the entry becomes, and the records as literals: name, revision and content of each. */
export interface AdvanceCall extends Call {
  readonly records: readonly (readonly string[])[]
}

/** The values are in the order of the procedures' parameters, without the records. */
export function advanceCall(claim: Claim, { records, becomes }: Change): AdvanceCall {
  const verb = ({ running: 'extend', settled: 'settle', open: 'open' } as const)[becomes.to]
  const { values } =
    becomes.to === 'running'
      ? writeCall(claim, becomes.leaseMs)
      : becomes.to === 'settled'
        ? settleCall(claim, becomes.outcome, becomes.retention)
        : writeCall(claim, 0)
  const after = becomes.to === 'open' && becomes.afterMs !== undefined ? integer('afterMs', becomes.afterMs) : 'null'
  const literals = records.map(({ name, revision, content }) => [
    recordName(name),
    integer('revision', revision),
    hex(content),
  ])
  const call = callOf(claim.key, [...values, word(verb), after])
  const withKeys = literals.flatMap((record) => [...keyLiterals(claim.key), ...record])
  return { ...call, records: literals, length: call.length + callOf(claim.key, withKeys).length }
}

export function advanceStatement(table: string, procedure: 'advance' | 'commit_step', call: AdvanceCall): string {
  return callStatement(table, procedure, [...call.values, recordsStatement(table, [call])])
}

// A record that comes late overwrites nothing. From left to right: the revision is the last to change.
function recordsStatement(table: string, calls: readonly AdvanceCall[], condition = 'true'): string {
  const records = calls.flatMap((call, number) =>
    call.records.map((record) => callOf(call.key, [String(number), ...keyLiterals(call.key), ...record])),
  )
  if (records.length === 0) return 'null'
  const steps = `\`${table}_steps\``
  const unlessLate = (column: string, value: string): string =>
    `${steps}.${column} = if(r.revision > ${steps}.revision, ${value}, ${steps}.${column})`
  return quoted(`insert into ${steps} (scope, id, name, revision, at_ms, content)
      select r.scope, r.id, r.name, r.revision, @onceonly_now_ms, r.content
      from (${rows(records, ['number', 'scope', 'id', 'name', 'revision', 'content'])}) r where ${condition}
      on duplicate key update ${unlessLate('content', 'r.content')}, ${unlessLate('at_ms', '@onceonly_now_ms')},
        ${unlessLate('revision', 'r.revision')}`)
}

/** For advances that go on, sorted by key; answers are read with `numberedAnswers`. Those that are not held are left out. */
export function advancesStatement(table: string, calls: readonly AdvanceCall[]): string {
  const now = '@onceonly_now_ms'
  const entry = `straight_join \`${table}\` e force index (primary) on e.scope = a.scope and e.id = a.id`
  const free = `select a.number from (${rows(calls, ['scope', 'id', 'token', 'fence'], 'number')}) a ${entry}
      where e.token = a.token and e.fence = a.fence and e.state = 'r' and ${now} < e.lease_until_ms + e.keep_ms
      limit ${calls.length} for update skip locked`
  const isHeld = (row: string): string => `find_in_set(${row}.number, @onceonly_held)`
  const leases = `update (${rows(calls, ['scope', 'id', 'token', 'fence', 'lease_ms'], 'number')}) a ${entry}
      set e.lease_until_ms = ${now} + a.lease_ms where ${isHeld('a')}`
  const answers = `select concat(a.number, ' ', if(o.cancel_reason is null, 'done', 'cancelled')) as answer
      from (${rows(calls, ['scope', 'id'], 'number')}) a
      left join \`${table}_operations\` o force index (primary) on o.scope = a.scope and o.id = a.id where ${isHeld('a')}`
  return callStatement(table, 'advances', [
    quoted(`select group_concat(h.number) into @onceonly_held from (${free}) h`),
    quoted(leases),
    recordsStatement(table, calls, isHeld('r')),
    quoted(answers),
  ])
}

export function beginStepStatement(table: string, claim: Claim): string {
  return callStatement(table, 'begin_step', claimLiterals(claim))
}

export function ledgerStatement(table: string, key: Key): string {
  return callStatement(table, 'ledger', keyLiterals(key))
}

export function dueStatement(table: string, scope: string, limit: number, holdMs: number): string {
  return callStatement(table, 'due', [keyPart(scope), integer('limit', limit), integer('holdMs', holdMs)])
}

export function dismissStatement(table: string, key: Key, heldUntilMs: number): string {
  return callStatement(table, 'dismiss', [...keyLiterals(key), integer('heldUntilMs', heldUntilMs)])
}

export function cancelStatement(table: string, key: Key, reason: string): string {
  return callStatement(table, 'cancel', [...keyLiterals(key), hex(Buffer.from(reason))])
}

export function unfinishedStatement(table: string, scope: string, after: string, limit: number): string {
  return callStatement(table, 'unfinished', [keyPart(scope), keyPart(after), integer('limit', limit)])
}

export function sweepStepsStatement(table: string, limit: number): string {
  return callStatement(table, 'sweep_steps', [integer('limit', limit)])
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
      where e.token = a.token and e.fence = a.fence and e.state = 'r' and ${now} < e.lease_until_ms + e.keep_ms`
  const done = `if(e.token = a.token and e.fence = a.fence and e.state = 's' and ${now} < e.lease_until_ms + e.keep_ms, 'done', null)`
  return batchStatement(table, calls.length, '1', update, lookups(table, calls, settleColumns.slice(0, 4), done))
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
  return numberedAnswers(found.slice(0, -1), count, Number(written) === count ? all(fence!) : undefined)
}

/** The same from rows of a number and an answer; `otherwise` is that of a call without one. */
export function numberedAnswers(
  found: readonly (readonly (string | null)[])[],
  count: number,
  otherwise?: string,
): (string | undefined)[] {
  const answers = Array.from({ length: count }, () => otherwise)
  for (const [text] of found) {
    const space = text!.indexOf(' ')
    if (space !== -1) answers[Number(text!.slice(0, space))] = text!.slice(space + 1)
  }
  return answers
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

function claimLiterals({ key, token: held, fence }: Claim): string[] {
  return [...keyLiterals(key), token(held), integer('fence', fence)]
}

function keyPart(text: string): string {
  return name('scope and id', text)
}

function recordName(text: string): string {
  return name('the name of a record', text)
}

// Without the strict mode the server would cut off what is too long, and two keys would be one.
function name(what: string, text: string): string {
  const bytes = Buffer.from(text)
  if (bytes.length > keyPartBytesMax) {
    throw invalidArgument(`expected ${what} of at most ${keyPartBytesMax} bytes of UTF-8, got ${bytes.length}`)
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

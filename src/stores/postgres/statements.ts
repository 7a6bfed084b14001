// The text of each statement. Invariant: every value that comes from outside passes through `literal` or `integer` here, and
// neither lets a quote, a backslash or a question mark (Knex takes it for a parameter) through as it is.

import { mendingName } from '../../core/entry.ts'
import { invalidArgument } from '../../core/errors.ts'
import type { Key } from '../../core/key.ts'
import type { Change, Claim, ClaimRequest, EntryFilter, Mending, Retention } from '../../core/store.ts'
import { writtenBy } from '../sql-answers.ts'
import { functionName, qualified, schemaVersion } from './names.ts'
import { periodsComment } from './periods.sql.ts'
import { entryJson, entryState } from './schema.sql.ts'
import type { SchemaNames } from './names.ts'

/** One call of a function, with its arguments. */
export interface FunctionCall {
  readonly to: 'claim' | 'enlist' | 'write' | 'advance' | 'begin' | 'join'
  readonly values: readonly (string | null)[]
  /** How much text it is, about. */
  readonly length: number
}

export type WriteVerb = 'extend' | 'settle' | 'open' | 'forget' | 'settle-within' | 'settle-or-fail'

export function claimCall(
  key: Key,
  request: ClaimRequest,
  to: 'claim' | 'enlist' | 'begin' | 'join' = 'claim',
): FunctionCall {
  const input = request.input === undefined ? null : base64(request.input)
  return {
    to,
    values: [
      key.scope,
      key.id,
      token(request.token),
      request.fingerprint,
      integer('leaseMs', request.leaseMs),
      integer('keepMs', request.retention.keepMs),
      integer('tombstoneMs', request.retention.tombstoneMs),
      integer('version', request.version),
      request.onTakeover,
      request.onExpired,
      input,
    ],
    length: 300 + (input?.length ?? 0),
  }
}

export function writeCall(
  verb: WriteVerb,
  claim: Claim,
  durationMs: number,
  retention?: Retention,
  outcome?: Uint8Array,
): FunctionCall {
  const bytes = outcome === undefined ? null : base64(outcome)
  return {
    to: 'write',
    values: [
      verb,
      claim.key.scope,
      claim.key.id,
      token(claim.token),
      integer('fence', claim.fence),
      integer('a duration', durationMs),
      integer('tombstoneMs', retention?.tombstoneMs ?? 0),
      bytes,
    ],
    length: 200 + (bytes?.length ?? 0),
  }
}

/** A write of an operation: what the entry becomes, and the records. 'or-fail' raises when the claim is lost. */
export function advanceCall(claim: Claim, { records, becomes }: Change, or?: 'or-fail'): FunctionCall {
  for (const { revision } of records) integer('revision', revision)
  const written = JSON.stringify(records.map(({ name, revision, content }) => [name, revision, base64(content)]))
  const { values, length } =
    becomes.to === 'running'
      ? writeCall('extend', claim, becomes.leaseMs)
      : becomes.to === 'settled'
        ? writeCall('settle', claim, becomes.retention.keepMs, becomes.retention, becomes.outcome)
        : writeCall('open', claim, 0)
  const [verb, ...rest] = values
  const afterMs = becomes.to === 'open' && becomes.afterMs !== undefined ? integer('afterMs', becomes.afterMs) : null
  return {
    to: 'advance',
    values: [or ? `${verb}-${or}` : verb!, ...rest, written, afterMs],
    length: length + written.length,
  }
}

/** What `record` is given: it writes the settled entry of a claim for which nothing was written yet, or raises. */
export function recordValues(
  claim: Claim,
  request: ClaimRequest,
  outcome: Uint8Array,
  retention: Retention,
): readonly (string | null)[] {
  return [
    claim.key.scope,
    claim.key.id,
    token(claim.token),
    request.fingerprint,
    integer('fence', claim.fence),
    integer('keepMs', retention.keepMs),
    integer('tombstoneMs', retention.tombstoneMs),
    integer('version', request.version),
    request.input === undefined ? null : base64(request.input),
    base64(outcome),
  ]
}

export function recordStatement(names: SchemaNames, values: readonly (string | null)[]): string {
  return `call ${functionName(names, 'record')}(${values.map(constant).join(',')})`
}

export function callStatement(names: SchemaNames, { to, values }: FunctionCall): string {
  return `select ${functionName(names, to)}(${values.map(constant).join(',')}) as answer`
}

const arrayTypes = {
  claim: ['text', 'text', 'uuid', 'text', 'bigint', 'bigint', 'bigint', 'integer', 'text', 'text', 'text'],
  enlist: ['text', 'text', 'uuid', 'text', 'bigint', 'bigint', 'bigint', 'integer', 'text', 'text', 'text'],
  write: ['text', 'text', 'text', 'uuid', 'bigint', 'bigint', 'bigint', 'text'],
  advance: ['text', 'text', 'text', 'uuid', 'bigint', 'bigint', 'bigint', 'text', 'text', 'bigint'],
} as const

/** One statement for all of these calls, which go to one function. Its rows come in the same order. */
export function batchStatement(
  names: SchemaNames,
  to: keyof typeof arrayTypes,
  calls: readonly FunctionCall[],
): string {
  // A lone call without arrays: they would cost it 20 µs.
  if (calls.length === 1) return callStatement(names, calls[0]!)
  const arrays = arrayTypes[to].map((type, column) =>
    literal(`{${calls.map((call) => element(call.values[column]!, type)).join(',')}}`),
  )
  return `select answer from ${functionName(names, `${to}s`)}(${arrays.join(',')}) as answer`
}

/** The claim is granted, and nothing was written for it. */
export function isUnwritten(answer: string): boolean {
  return answer.startsWith('granted n ')
}

export function sweepStatement(names: SchemaNames, limit: number): string {
  return `select answer from ${functionName(names, 'sweep')}(${integer('limit', limit)}) as answer`
}

export function mendStatement(names: SchemaNames, key: Key, action: Mending, reason: string): string {
  const { outcome, keepMs, tombstoneMs } = writtenBy(action)
  const values = [
    key.scope,
    key.id,
    mendingName(action),
    reason,
    outcome ? base64(outcome) : null,
    integer('keepMs', keepMs),
    integer('tombstoneMs', tombstoneMs),
  ]
  return `select answer from ${functionName(names, 'mend')}(${values.map(constant).join(', ')}) as answer`
}

export function showStatement(names: SchemaNames, key: Key): string {
  return entries(names, [`e.scope = ${literal(key.scope)}`, `e.id = ${literal(key.id)}`])
}

export function listStatement(names: SchemaNames, { scope, state, after, limit }: EntryFilter): string {
  const conditions = [
    ...(scope === undefined ? [] : [`e.scope = ${literal(scope)}`]),
    ...(state === undefined ? [] : [`s.state = ${literal(state)}`]),
    ...(after === undefined ? [] : [`(e.scope, e.id) > (${literal(after.scope)}, ${literal(after.id)})`]),
  ]
  return `${entries(names, conditions)} order by e.scope, e.id limit ${integer('limit', limit)}`
}

function entries(names: SchemaNames, conditions: readonly string[]): string {
  return `select ${entryJson} as answer from ${qualified(names)} e cross join lateral (select ${entryState} as state) s
    where ${['s.state is not null', ...conditions].join(' and ')}`
}

export function auditStatement(names: SchemaNames, key: Key): string {
  return `select json_build_object('atMs', a.at_ms, 'action', a.action, 'reason', a.reason, 'before', a.before)::text as answer
    from ${qualified(names, '_audit')} a where a.scope = ${literal(key.scope)} and a.id = ${literal(key.id)} order by a.number`
}

/** Returns 'yes' when tables and functions are those of this version, or later. */
export function migratedStatement(names: SchemaNames): string {
  const comment = `obj_description(to_regclass(${literal(qualified(names))}), 'pg_class')`
  return `select case when substring(${comment} from 'onceonly schema version ([0-9]+)')::integer
    >= ${schemaVersion} then 'yes' else 'no' end as answer`
}

/** Returns 'yes' when the table is in periods of this length. */
export function inPeriodsStatement(names: SchemaNames, periodMs: number): string {
  const comment = `obj_description(to_regclass(${literal(qualified(names, '_periods'))}), 'pg_class')`
  return `select case when ${comment} = ${literal(periodsComment(periodMs))} then 'yes' else 'no' end as answer`
}

/** Several processes that start at once migrate one after the other. The number was drawn at random for this. */
export const migrationLock = 'select pg_advisory_xact_lock(7201886643071)::text as answer'

/** For the rest of the transaction: a statement that waits for a table for longer is in the way of those that wait behind it. */
export const shortLockTimeout = `select set_config('lock_timeout', '100ms', true) as answer`

/** A text constant that means the same whatever standard_conforming_strings says. */
export function literal(text: string): string {
  if (text.includes('\u0000')) throw invalidArgument('expected text without U+0000, which PostgreSQL cannot store')
  return `E'${text.replace(/['\\?]/g, (character) => escapes[character]!)}'`
}

const escapes: Readonly<Record<string, string>> = { "'": "''", '\\': '\\\\', '?': '\\u003F' }

function constant(value: string | null): string {
  return value === null ? 'NULL' : literal(value)
}

/** An element of an array constant. Only text can hold what has a meaning there. */
function element(value: string | null, type: string | undefined): string {
  if (value === null) return 'NULL'
  return type === 'text' ? `"${value.replace(/["\\]/g, '\\$&')}"` : value
}

export function integer(what: string, value: number): string {
  if (!Number.isSafeInteger(value)) throw invalidArgument(`expected ${what} to be an integer, got ${String(value)}`)
  return String(value)
}

export function token(text: string): string {
  if (!/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(text)) {
    throw invalidArgument(`expected a token to be a UUID in lower case, got ${JSON.stringify(text)}`)
  }
  return text
}

function base64(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('base64')
}

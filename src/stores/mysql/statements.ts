// The text of the statements that concern one key or one table: calls of procedures, and the reads of mysql/inspection.ts. Those
// that carry out many calls at once are in mysql/batches.ts and mysql/advances.ts.

import type { Key } from '../../core/key.ts'
import { mendingName } from '../../core/entry.ts'
import type { Claim, ClaimRequest, EntryFilter, Mending, Retention } from '../../core/store.ts'
import { writtenBy } from '../sql-answers.ts'
import { entryState, entryWords } from './decisions.sql.ts'
import { claimLiterals, fingerprint, hex, integer, keyLiterals, keyPart, token, word } from './literals.ts'
import { procedureName } from './names.ts'
import type { ProcedureName } from './names.ts'

/** What is asked of one key, as literals. */
export interface MysqlCall {
  readonly key: Key
  readonly values: readonly string[]
  /** About how many bytes of text it is. */
  readonly length: number
}

export type MysqlWriteVerb = 'extend' | 'settle' | 'open' | 'forget'

export function callOf(key: Key, values: readonly string[]): MysqlCall {
  return { key, values, length: values.reduce((sum, value) => sum + value.length + 20, 0) }
}

/** In the order of the procedures' parameters. */
export function claimCall(key: Key, request: ClaimRequest): MysqlCall {
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

/** The names of those values, for a table of them. */
export const claimColumns: readonly string[] = [
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

export function settleCall(claim: Claim, outcome: Uint8Array, retention: Retention): MysqlCall {
  const times = [integer('keepMs', retention.keepMs), integer('tombstoneMs', retention.tombstoneMs)]
  return callOf(claim.key, [...claimLiterals(claim), ...times, hex(outcome)])
}

export const settleColumns: readonly string[] = ['scope', 'id', 'token', 'fence', 'keep_ms', 'tombstone_ms', 'outcome']

export function writeCall(claim: Claim, durationMs: number): MysqlCall {
  return callOf(claim.key, [...claimLiterals(claim), integer('a duration', durationMs), '0', 'null'])
}

export function callStatement(table: string, procedure: ProcedureName, values: readonly string[]): string {
  return `call \`${procedureName(table, procedure)}\`(${values.join(', ')})`
}

export function takeStatement(table: string, call: MysqlCall, of: 'entry' | 'operation'): string {
  return callStatement(table, 'take', [...call.values, of === 'operation' ? 'true' : 'false'])
}

export function putStatement(table: string, verb: MysqlWriteVerb, call: MysqlCall): string {
  return callStatement(table, 'put', [word(verb), ...call.values])
}

export function savepoint(token: string, before: 'claim' | 'effect'): string {
  return `\`onceonly_${before}_${token}\``
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

export function sweepStatement(table: string, limit: number): string {
  return callStatement(table, 'sweep', [integer('limit', limit)])
}

export function sweepStepsStatement(table: string, limit: number): string {
  return callStatement(table, 'sweep_steps', [integer('limit', limit)])
}

export function mendCall(key: Key, action: Mending, reason: string): MysqlCall {
  const { outcome, keepMs, tombstoneMs } = writtenBy(action)
  return callOf(key, [
    ...keyLiterals(key),
    word(mendingName(action)),
    hex(Buffer.from(reason)),
    integer('keepMs', keepMs),
    integer('tombstoneMs', tombstoneMs),
    outcome ? hex(outcome) : 'null',
  ])
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

// Advances of operations as statements: one with the whole change, and many that only go on.

import type { Change, Claim } from '../../core/store.ts'
import { tableOf } from './batches.ts'
import { hex, integer, keyLiterals, quoted, recordName, word } from './literals.ts'
import { callOf, callStatement, settleCall, writeCall } from './statements.ts'
import type { MysqlCall } from './statements.ts'

/** A write of an operation: what the entry becomes, and the records as literals: name, revision and content of each. */
export interface AdvanceCall extends MysqlCall {
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

// A record that comes late overwrites nothing. The server assigns from left to right, so the revision is the last to change.
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
      from (${tableOf(records, ['number', 'scope', 'id', 'name', 'revision', 'content'])}) r where ${condition}
      on duplicate key update ${unlessLate('content', 'r.content')}, ${unlessLate('at_ms', '@onceonly_now_ms')},
        ${unlessLate('revision', 'r.revision')}`)
}

/** For advances that go on, sorted by key. `numberedAnswers` reads the rows. Those that do not hold their entry have none. */
export function advancesStatement(table: string, calls: readonly AdvanceCall[]): string {
  const now = '@onceonly_now_ms'
  const entry = `straight_join \`${table}\` e force index (primary) on e.scope = a.scope and e.id = a.id`
  const free = `select a.number from (${tableOf(calls, ['scope', 'id', 'token', 'fence'], 'number')}) a ${entry}
      where e.token = a.token and e.fence = a.fence and e.state = 'r' and ${now} < e.lease_until_ms + e.keep_ms
      limit ${calls.length} for update skip locked`
  const isHeld = (row: string): string => `find_in_set(${row}.number, @onceonly_held)`
  const leases = `update (${tableOf(calls, ['scope', 'id', 'token', 'fence', 'lease_ms'], 'number')}) a ${entry}
      set e.lease_until_ms = ${now} + a.lease_ms where ${isHeld('a')}`
  const answers = `select concat(a.number, ' ', if(o.cancel_reason is null, 'done', 'cancelled')) as answer
      from (${tableOf(calls, ['scope', 'id'], 'number')}) a
      left join \`${table}_operations\` o force index (primary) on o.scope = a.scope and o.id = a.id where ${isHeld('a')}`
  return callStatement(table, 'advances', [
    quoted(`select group_concat(h.number) into @onceonly_held from (${free}) h`),
    quoted(leases),
    recordsStatement(table, calls, isHeld('r')),
    quoted(answers),
  ])
}

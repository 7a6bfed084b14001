// Calls of one moment by one statement, one round trip and one commit. Invariant: a batch decides only what it can decide for all
// calls alike. A call that it leaves open is sent again in a separate statement.

import { lane } from '../../core/lane.ts'
import type { MysqlRow } from '../../clients/mysql.ts'
import { partsOf } from '../sql-answers.ts'
import { retried } from './context.ts'
import type { MysqlContext } from './context.ts'
import { insertedColumns, verdictSql } from './decisions.sql.ts'
import { quoted } from './literals.ts'
import { insertWaitS } from './pieces.sql.ts'
import { callStatement, claimColumns, settleColumns } from './statements.ts'
import type { MysqlCall } from './statements.ts'

// Beyond some dozens a larger batch saves little, and its callers wait for each other. Four at once, as the server syncs the log
// for all that commit meanwhile. With two, 64 callers got through a third less. With more, the batches become small.
const batching = { batchMax: 128, dispatchesMax: 4 }

/** A statement is one message that client and server hold in memory whole: a few outcomes of a mebibyte, not hundreds. */
const statementLengthMax = 4 * 1024 * 1024

interface BatchStatements<Call extends MysqlCall> {
  together(calls: readonly Call[]): string
  /** The answer to each of so many calls. Undefined for those that must be sent alone. */
  answers(found: readonly MysqlRow[], count: number): readonly (string | undefined)[]
  alone(call: Call): string
}

/**
 * Sends calls of one moment in one statement. A lone call, and a call that the statement cannot decide, is sent in a separate
 * one.
 */
export function together<Client, Call extends MysqlCall>(
  { clock, connections, ready }: MysqlContext<Client>,
  statements: BatchStatements<Call>,
): (call: Call) => Promise<string> {
  const askAlone = async (call: Call): Promise<string> =>
    (await retried(clock, () => connections.run(statements.alone(call))))[0]![0]!
  const dispatch = async (batch: readonly Call[]): Promise<readonly (string | undefined)[]> => {
    // A batch of one would cost half as much again.
    if (batch.length === 1) return [await askAlone(batch[0]!)]
    const answers = new Map<Call, string | undefined>()
    // Half of a packet, as there is more to a statement than the values.
    const lengthMax = Math.min(statementLengthMax, (await ready(connections)).packetBytesMax / 2)
    for (const part of partsOf(batch.toSorted(byKey), lengthMax)) {
      const found = await retried(clock, () => connections.run(statements.together(part)))
      statements.answers(found, part.length).forEach((answer, index) => answers.set(part[index]!, answer))
    }
    return batch.map((call) => answers.get(call))
  }
  const ask = lane({ ...batching, dispatch })
  return async (call) => (await ask(call)) ?? askAlone(call)
}

/** The order in which a batch takes its locks: in any other, two batches could wait for each other. */
function byKey(one: MysqlCall, other: MysqlCall): number {
  return compare(one.values[0]!, other.values[0]!) || compare(one.values[1]!, other.values[1]!)
}

function compare(one: string, other: string): number {
  return one < other ? -1 : one > other ? 1 : 0
}

/** All of the claims, sorted by key. `batchAnswers` reads the rows. */
export function claimsStatement(table: string, calls: readonly MysqlCall[]): string {
  // The same key twice would fail the whole INSERT. A claim that is left out returns what became of the first.
  const numbers = calls.flatMap((call, index) => (index === 0 || byKey(call, calls[index - 1]!) !== 0 ? index : []))
  const firsts = numbers.map((number) => calls[number]!)
  const now = '@onceonly_now_us'
  const insert = `insert into \`${table}\` (
        ${insertedColumns}
      ) select a.scope, a.id, 'r', 'f', a.token, a.fingerprint, 1, a.version, ${now}, ${now} div 1000 + a.lease_ms, a.keep_ms,
        a.tombstone_ms, ${now} div 1000, ${now} div 1000 + a.keep_ms, a.input
      from (${tableOf(firsts, claimColumns)}) a
      left join \`${table}\` e force index (primary) on e.scope = a.scope and e.id = a.id where e.id is null`
  const verdict = verdictSql((column) => `a.${column}`, `(${now} div 1000)`, '@onceonly_fence')
  return batchStatement(table, {
    count: calls.length,
    waitS: insertWaitS,
    writes: insert,
    own: `${lookups(table, calls, claimColumns.slice(0, 3), `concat('granted f 1 ', e.fence)`, 'straight_join')}
      where a.number in (${numbers.join(',')}) and e.token = a.token and e.fence = @onceonly_fence`,
    lookups: lookups(table, calls, claimColumns.slice(0, 10), verdict, 'left join'),
  })
}

/** The same for settles. */
export function settlesStatement(table: string, calls: readonly MysqlCall[]): string {
  const now = '(@onceonly_now_us div 1000)'
  // The limit keeps the inner select a separate step: it locks what it can get, and only that is written.
  const free = `select a.* from (${tableOf(calls, settleColumns)}) a
      straight_join \`${table}\` h force index (primary) on h.scope = a.scope and h.id = a.id
      limit ${calls.length} for update skip locked`
  const update = `update (${free}) a
      straight_join \`${table}\` e force index (primary) on e.scope = a.scope and e.id = a.id
      set e.state = 's', e.outcome = a.outcome, e.lease_until_ms = ${now}, e.keep_ms = a.keep_ms,
        e.tombstone_ms = a.tombstone_ms, e.sweep_at_ms = least(e.sweep_at_ms, ${now} + a.keep_ms)
      where e.token = a.token and e.fence = a.fence and e.state = 'r' and ${now} < e.lease_until_ms + e.keep_ms`
  const done = `if(e.token = a.token and e.fence = a.fence and e.state = 's' and ${now} < e.lease_until_ms + e.keep_ms, 'done', null)`
  return batchStatement(table, {
    count: calls.length,
    waitS: '1',
    writes: update,
    // A row that another transaction holds is not told, and its call is sent alone.
    own: `${lookups(table, calls, settleColumns.slice(0, 4), done, 'straight_join')} for update skip locked`,
  })
}

function lookups(
  table: string,
  calls: readonly MysqlCall[],
  columns: readonly string[],
  answer: string,
  join: 'left join' | 'straight_join',
): string {
  return `select concat_ws(' ', a.number, ${answer}) as answer from (${tableOf(calls, columns, 'number')}) a
      ${join} \`${table}\` e force index (primary) on e.scope = a.scope and e.id = a.id`
}

interface Batch {
  readonly count: number
  readonly waitS: string
  readonly writes: string
  readonly own: string
  readonly lookups?: string
}

function batchStatement(table: string, batch: Batch): string {
  const { count, waitS, writes, own, lookups } = batch
  return callStatement(table, 'batch', [
    String(count),
    waitS,
    quoted(writes),
    quoted(own),
    lookups === undefined ? 'null' : quoted(lookups),
  ])
}

/** The values of all calls as a table of constants, in the one form that MySQL and MariaDB both take. */
export function tableOf(calls: readonly MysqlCall[], columns: readonly string[], numbered?: 'number'): string {
  return calls
    .map((call, index) => {
      const values = [...(numbered ? [String(index)] : []), ...call.values.slice(0, columns.length)]
      const names = numbered ? [numbered, ...columns] : columns
      return `select ${values.map((value, at) => (index === 0 ? `${value} as ${names[at]}` : value)).join(',')}`
    })
    .join(' union all ')
}

/** The answer to each call. Undefined for those that must be sent alone. `all` is the answer when all was written. */
export function batchAnswers(
  found: readonly MysqlRow[],
  count: number,
  all: (fence: string) => string,
): (string | undefined)[] {
  const [written, fence] = found.at(-1)![0]!.split(' ')
  return numberedAnswers(found.slice(0, -1), count, Number(written) === count ? all(fence!) : undefined)
}

/** The same from rows of a number and an answer, the first of which counts. `otherwise` is that of a call without one. */
export function numberedAnswers(found: readonly MysqlRow[], count: number, otherwise?: string): (string | undefined)[] {
  const answers = Array.from({ length: count }, () => otherwise)
  for (const [text] of found) {
    const space = text!.indexOf(' ')
    if (space !== -1) answers[Number(text!.slice(0, space))] ??= text!.slice(space + 1)
  }
  return answers
}

// Rows that could not be sent, for people: dead letters, and what sends them again.

import { jsonRow } from '../../clients/sql-columns.ts'
import { integer, join, sql } from '../../clients/sql-statement.ts'
import type { SqlStatement } from '../../clients/sql-statement.ts'
import { checkRecordedReason, onRecord } from '../../core/once.ts'
import type { MessageChange } from '../../core/once.ts'
import { aString, checkGiven, oneOf, optional, positiveInteger } from '../../core/options.ts'
import type { Rule } from '../../core/options.ts'
import type { Store } from '../../core/store.ts'
import type { HeldState } from '../relay.ts'
import type { OutboxTables } from './tables.ts'

/** A row that could not be published. */
export interface DeadLetter {
  readonly id: string
  readonly topic: string
  readonly key: string | undefined
  readonly type: string
  /** `parked`: its key waits behind it. `dead`: it was skipped, and its key went on. `waiting`: it is tried again. */
  readonly state: HeldState
  /** How often publishing it has failed. */
  readonly tries: number
  /** Why, the last time. Undefined for a row that only waits behind another. */
  readonly reason: string | undefined
  readonly addedAtMs: number
  readonly failedAtMs: number | undefined
}

/** Which rows. All that are given must hold. */
export interface DeadLetterFilter {
  /** `parked` and `dead` unless given. */
  readonly state?: HeldState
  readonly id?: string
  readonly topic?: string
  readonly key?: string
  readonly type?: string
  /** Rows come in the order of `addedAtMs` and id. This one and all before it are passed over. */
  readonly after?: Pick<DeadLetter, 'addedAtMs' | 'id'>
  /** 100 at the most unless given, the oldest first. */
  readonly limit?: number
}

export interface HeldCalls {
  deadLetters(filter?: DeadLetterFilter): Promise<readonly DeadLetter[]>
  /** Lets a relay try them again. Returns how many. With a reason it is audited. */
  redrive(filter?: DeadLetterFilter, reason?: string): Promise<number>
  /** Removes rows that are never to be sent, and their keys go on without them. Returns how many. Audited. */
  discard(filter: DeadLetterFilter, reason: string): Promise<number>
}

// A screen or two. A person who wants more says so.
const limitUsual = 100

const placeRule: Rule = (value) => {
  const { addedAtMs, id } = (value ?? {}) as Partial<DeadLetter>
  const isPlace = Number.isSafeInteger(addedAtMs) && typeof id === 'string' && /^[0-9a-f-]{36}$/.test(id)
  return isPlace ? undefined : 'the { addedAtMs, id } of a row'
}

const filterRules = {
  state: optional(oneOf('waiting', 'parked', 'dead')),
  id: optional(aString),
  topic: optional(aString),
  key: optional(aString),
  type: optional(aString),
  after: optional(placeRule),
  limit: optional(positiveInteger),
}

/** `store` is where reasons are audited. */
export function heldCalls(tables: OutboxTables, store: Store): HeldCalls {
  const { database, held } = tables
  const read = async (filter: DeadLetterFilter): Promise<DeadLetter[]> => {
    const columns = 'id, aggregatetype, aggregateid, type, state, tries, reason, added_at_ms, failed_at_ms'
    const answers =
      await database.query(sql`select ${jsonRow(database, columns)} from ${held} where ${wanted(tables, filter)}
order by added_at_ms, id limit ${integer(filter.limit ?? limitUsual)}`)
    return answers.map(letterIn)
  }
  const change = async (
    letters: readonly DeadLetter[],
    statement: SqlStatement,
    { what, reason }: { readonly what: MessageChange; readonly reason: string | undefined },
  ): Promise<number> => {
    if (letters.length === 0) return 0
    const ofRows = (rows: readonly DeadLetter[]): SqlStatement => {
      const ids = rows.map(({ id }) => sql`${id}`)
      return sql`${statement} where id in (${join(ids, ', ')})`
    }
    if (reason === undefined) await database.query(ofRows(letters))
    else {
      for (const letter of letters) {
        await onRecord(store, { scope: letter.topic, id: letter.id }, { what, reason }, async () => {
          await database.query(ofRows([letter]))
          return true
        })
      }
    }
    return letters.length
  }
  return {
    async deadLetters(filter = {}) {
      checkGiven('deadLetters', filter, filterRules)
      return read(filter)
    },
    async redrive(filter = {}, reason) {
      checkGiven('redrive', filter, filterRules)
      if (reason !== undefined) checkRecordedReason('outbox.redrive', reason)
      // The tries begin anew. A relay that has just sent one of them has removed its row.
      const again = sql`update ${held} set state = 'waiting', tries = 0, due_at_ms = ${database.nowMs()}`
      return change(await read(filter), again, { what: 'redrive', reason })
    },
    async discard(filter, reason) {
      checkGiven('discard', filter, filterRules)
      checkRecordedReason('outbox.discard', reason)
      // What waited behind one of them is due already.
      return change(await read(filter), sql`delete from ${held}`, { what: 'discard', reason })
    },
  }
}

function wanted({ database }: OutboxTables, filter: DeadLetterFilter): SqlStatement {
  const { state, id, topic, key, type, after } = filter
  const isId = database.dialect === 'postgres' ? sql`id::text` : sql`id`
  const conditions = [
    state === undefined ? sql`state in ('parked', 'dead')` : sql`state = ${state}`,
    ...(id === undefined ? [] : [sql`${isId} = ${id}`]),
    ...(topic === undefined ? [] : [sql`aggregatetype = ${topic}`]),
    ...(key === undefined ? [] : [sql`aggregateid = ${key}`]),
    ...(type === undefined ? [] : [sql`type = ${type}`]),
    ...(after === undefined ? [] : [sql`(added_at_ms, ${isId}) > (${integer(after.addedAtMs)}, ${after.id})`]),
  ]
  return join(conditions, ' and ')
}

type Columns = [string, string, string | null, string, HeldState, number, string | null, number, number | null]

function letterIn(answer: string): DeadLetter {
  const [id, topic, key, type, state, tries, reason, addedAtMs, failedAtMs] = JSON.parse(answer) as Columns
  return {
    id,
    topic,
    key: key ?? undefined,
    type,
    state,
    tries,
    reason: reason ?? undefined,
    addedAtMs,
    failedAtMs: failedAtMs ?? undefined,
  }
}

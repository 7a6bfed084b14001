// Rows that could not be sent, for people: dead letters, and what sends them again.

import { integer, join, sql } from '../../clients/sql-statement.ts'
import type { SqlStatement } from '../../clients/sql-statement.ts'
import { aString, checkGiven, oneOf, optional, positiveInteger } from '../../core/options.ts'
import type { HeldState } from '../relay.ts'
import { jsonRow } from './tables.ts'
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
  /** 100 at the most unless given, the oldest first. */
  readonly limit?: number
}

export interface HeldCalls {
  deadLetters(filter?: DeadLetterFilter): Promise<readonly DeadLetter[]>
  redrive(filter?: DeadLetterFilter): Promise<number>
}

// A screen or two. A person who wants more says so.
const limitUsual = 100

const filterRules = {
  state: optional(oneOf('waiting', 'parked', 'dead')),
  id: optional(aString),
  topic: optional(aString),
  key: optional(aString),
  type: optional(aString),
  limit: optional(positiveInteger),
}

export function heldCalls(tables: OutboxTables): HeldCalls {
  const { database, held } = tables
  const read = async (filter: DeadLetterFilter): Promise<DeadLetter[]> => {
    const columns = 'id, aggregatetype, aggregateid, type, state, tries, reason, added_at_ms, failed_at_ms'
    const answers =
      await database.query(sql`select ${jsonRow(database, columns)} from ${held} where ${wanted(tables, filter)}
order by added_at_ms, lane, position limit ${integer(filter.limit ?? limitUsual)}`)
    return answers.map(letterIn)
  }
  return {
    async deadLetters(filter = {}) {
      checkGiven('deadLetters', filter, filterRules)
      return read(filter)
    },
    async redrive(filter = {}) {
      checkGiven('redrive', filter, filterRules)
      const letters = await read(filter)
      if (letters.length === 0) return 0
      const ids = join(
        letters.map(({ id }) => sql`${id}`),
        ', ',
      )
      // The tries begin anew. A relay that has just sent one of them has removed its row.
      await database.query(
        sql`update ${held} set state = 'waiting', tries = 0, due_at_ms = ${database.nowMs()} where id in (${ids})`,
      )
      return letters.length
    },
  }
}

function wanted({ database }: OutboxTables, { state, id, topic, key, type }: DeadLetterFilter): SqlStatement {
  const isId = database.dialect === 'postgres' ? sql`id::text` : sql`id`
  const conditions = [
    state === undefined ? sql`state in ('parked', 'dead')` : sql`state = ${state}`,
    ...(id === undefined ? [] : [sql`${isId} = ${id}`]),
    ...(topic === undefined ? [] : [sql`aggregatetype = ${topic}`]),
    ...(key === undefined ? [] : [sql`aggregateid = ${key}`]),
    ...(type === undefined ? [] : [sql`type = ${type}`]),
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

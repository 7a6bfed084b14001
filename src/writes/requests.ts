// Checks every request before anything is sent. Names are written into statements, so they must match a strict pattern and are
// quoted all the same. Values are only ever bound, and only values that every client binds as one value are let through.

import { invalidArgument } from '../core/errors.ts'
import { checkOptions, optional } from '../core/options.ts'
import type { Rule } from '../core/options.ts'
import type { Requests, Row, WriteName } from './writes.ts'

/** What differs between backends. */
export interface WriteRules {
  readonly table: Rule
  /** Returns what was expected, when the value is wrong. */
  readonly value: Rule
  /** Where the events of addOnce are marked. */
  readonly marks: 'table' | 'field'
}

// 63 bytes is what PostgreSQL keeps of a name. The rest would be cut off in silence.
const namePattern = /^[A-Za-z_][A-Za-z0-9_]{0,62}$/

const nameRule = 'a name of 1 to 63 letters, digits and underscores that does not begin with a digit'

const columnName: Rule = (value) => (typeof value === 'string' && namePattern.test(value) ? undefined : nameRule)

export const sqlTable: Rule = (value) => {
  const parts = typeof value === 'string' ? value.split('.') : []
  const fine = parts.length >= 1 && parts.length <= 2 && parts.every((part) => namePattern.test(part))
  return fine ? undefined : `${nameRule}, or schema.table`
}

// A lone surrogate becomes U+FFFD on its way: two different texts would be one, and a second key would get "already".
export const scalar: Rule = (value) => {
  if (typeof value === 'string') return value.isWellFormed() ? undefined : 'well-formed text (it has a lone surrogate)'
  if (value === null || typeof value === 'bigint' || typeof value === 'boolean') return undefined
  if (typeof value === 'number') return Number.isFinite(value) ? undefined : 'a finite number'
  if (value instanceof Uint8Array) return undefined
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? 'a valid Date' : undefined
  return 'a string, number, bigint, boolean, null, Uint8Array or Date'
}

// Beyond this, a number is written with an exponent, or is no longer the intended number.
const amountMax = 1e21

const amount: Rule = (value) =>
  typeof value === 'bigint' || (Number.isFinite(value) && Math.abs(value as number) < amountMax)
    ? undefined
    : 'a number below 1e21 or a bigint'

// A condition on null is never true in SQL: a key with one would be inserted again and again.
const notNull =
  (rule: Rule): Rule =>
  (value) =>
    value === null ? 'a value other than null' : rule(value)

const version: Rule = (value) =>
  Number.isSafeInteger(value) && (value as number) >= 0 ? undefined : 'a whole number from 0 on'

type Amount = 'one' | 'some' | 'any'

/** Every column a good name, every value a good value. */
function rowOf(rule: Rule, count: Amount): Rule {
  return (row) => {
    if (typeof row !== 'object' || row === null || Array.isArray(row)) return 'an object of columns and values'
    const entries = Object.entries(row)
    if (count === 'one' && entries.length !== 1) return 'an object of one column'
    if (count === 'some' && entries.length === 0) return 'an object of at least one column'
    for (const [name, value] of entries) {
      if (columnName(name) !== undefined) return `an object whose columns each are ${nameRule} (it has ${show(name)})`
      const expected = rule(value)
      if (expected !== undefined) return `an object whose "${name}" is ${expected}`
    }
    return undefined
  }
}

function show(name: string): string {
  return JSON.stringify(name.length > 80 ? `${name.slice(0, 80)}…` : name)
}

function optionsOf(name: WriteName, { value, marks, table }: WriteRules): Readonly<Record<string, Rule>> {
  const key = rowOf(notNull(value), 'some')
  const mark = marks === 'table' ? key : rowOf(notNull(value), 'one')
  const added: Rule = (given) => amount(given) ?? value(given)
  const some = rowOf(value, 'some')
  const maybe = optional(rowOf(value, 'any'))
  const once: Rule = (given) => {
    checkOptions('addOnce once', given, { key: mark, table: marks === 'table' ? table : nothing })
    return undefined
  }
  return {
    insertOnce: { key, set: maybe },
    upsert: { key, set: some, setOnInsert: maybe },
    upsertIfNewer: { key, set: maybe, setOnInsert: maybe, newer: rowOf(notNull(value), 'one') },
    upsertIf: { key, expect: some, set: some, setOnInsert: maybe },
    compareAndSet: { key, expect: some, set: some },
    addOnce: { key, add: rowOf(added, 'some'), once },
    appendOnce: { key, stream: key, after: version, set: maybe, version: optional(columnName) },
  }[name]
}

const nothing: Rule = (value) =>
  value === undefined ? undefined : 'left out, as the ids are kept in the document of the counter'

/** The rows of one request that are written side by side: none may name a column of another. */
const sideBySide: Readonly<Record<WriteName, readonly string[]>> = {
  insertOnce: ['key', 'set'],
  upsert: ['key', 'set', 'setOnInsert'],
  upsertIfNewer: ['key', 'set', 'setOnInsert', 'newer'],
  upsertIf: ['key', 'set', 'setOnInsert'],
  compareAndSet: ['key', 'set'],
  addOnce: ['key', 'add'], // and the field of the mark, where it lies in the same document
  appendOnce: ['key', 'stream', 'set'],
}

const writeNames = Object.keys(sideBySide) as WriteName[]

/** All seven, each made from its name. */
export function eachWrite<All>(make: (name: WriteName) => (table: string, request: never) => unknown): All {
  return Object.fromEntries(writeNames.map((name) => [name, make(name)])) as All
}

/** Returns the checks of one backend. They throw INVALID_ARGUMENT, and nothing has been sent then. */
export function requestChecks(
  rules: WriteRules,
): <Name extends WriteName>(name: Name, table: unknown, request: Requests[Name]) => void {
  const known = Object.fromEntries(writeNames.map((name) => [name, optionsOf(name, rules)]))
  return (name, table, request) => {
    checkOptions(name, { table }, { table: rules.table })
    checkOptions(name, request, known[name]!)
    const given = request as unknown as Readonly<Record<string, Row | undefined>>
    const columns = sideBySide[name].flatMap((part) => Object.keys(given[part] ?? {}))
    if (name === 'appendOnce') columns.push(versionColumn(request as Requests['appendOnce']))
    if (name === 'addOnce' && rules.marks === 'field')
      columns.push(...Object.keys((request as Requests['addOnce']).once.key))
    const twice = columns.find((column, index) => columns.indexOf(column) !== index)
    if (twice !== undefined) {
      throw invalidArgument(
        `${name}: expected each column once, got "${twice}" in two of ${sideBySide[name].join(', ')}. Leave it out of one.`,
      )
    }
  }
}

export function versionColumn({ version: column = 'version' }: { readonly version?: string | undefined }): string {
  return column
}

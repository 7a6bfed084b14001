// Conditions and values in the form of DynamoDB. Every name and every value is a placeholder: many good names are reserved words,
// and no value can become part of an expression.

import type { DynamodbCondition, DynamodbItem, DynamodbValue, StoredDynamodbItem } from '../../clients/dynamodb.ts'
import type { Row, Value } from '../writes.ts'

export interface Expression {
  readonly text: string
  readonly names: Readonly<Record<string, string>>
  readonly values: DynamodbItem
}

export interface ExpressionBuilder {
  /** Whether there is an item. Any attribute of its key will do. */
  present(key: Row): string
  absent(key: Row): string
  /** With an attribute that is missing equal to null. */
  holds(row: Row): string
  below(row: Row): string
  assign(row: Row): string
  add(row: Row): string
  not(condition: string): string
  group(condition: string): string
  all(conditions: readonly string[]): string
  /** Binds weaker than `all`: inside of one it goes into a `group`. */
  any(conditions: readonly string[]): string
}

export function expressionOf(write: (build: ExpressionBuilder) => string): Expression {
  const names: Record<string, string> = {}
  const values: Record<string, DynamodbValue> = {}
  const nameOf = (name: string): string => {
    const known = Object.keys(names).find((placeholder) => names[placeholder] === name)
    const placeholder = known ?? `#n${Object.keys(names).length}`
    names[placeholder] = name
    return placeholder
  }
  const valueOf = (value: Value): string => {
    const placeholder = `:v${Object.keys(values).length}`
    values[placeholder] = attributeOf(value)
    return placeholder
  }
  const each = (row: Row, form: (name: string, value: Value) => string): string[] =>
    Object.entries(row).map(([name, value]) => form(nameOf(name), value))
  const text = write({
    present: (key) => `attribute_exists(${nameOf(Object.keys(key)[0]!)})`,
    absent: (key) => `attribute_not_exists(${nameOf(Object.keys(key)[0]!)})`,
    // Never with parentheses around the whole: DynamoDB refuses those that are doubled.
    holds: (row) =>
      each(row, (name, value) =>
        value === null
          ? `NOT (attribute_exists(${name}) AND ${name} <> ${valueOf(value)})`
          : `${name} = ${valueOf(value)}`,
      ).join(' AND '),
    below: (row) => each(row, (name, value) => `${name} < ${valueOf(value)}`).join(' AND '),
    assign: (row) => each(row, (name, value) => `${name} = ${valueOf(value)}`).join(', '),
    add: (row) => each(row, (name, value) => `${name} ${valueOf(value)}`).join(', '),
    group: (condition) => `(${condition})`,
    not: (condition) => `NOT (${condition})`,
    all: (conditions) => conditions.join(' AND '),
    any: (conditions) => conditions.join(' OR '),
  })
  return { text, names, values }
}

/** The part of a request that says when it is executed, and that a refusal returns the existing item. */
export function conditional({ text, names, values }: Expression): DynamodbCondition {
  return {
    ConditionExpression: text,
    ExpressionAttributeNames: names,
    // An empty one is refused.
    ...(Object.keys(values).length > 0 && { ExpressionAttributeValues: values }),
    ReturnValuesOnConditionCheckFailure: 'ALL_OLD',
  }
}

export function itemOf(row: Row): DynamodbItem {
  return Object.fromEntries(Object.entries(row).map(([name, value]) => [name, attributeOf(value)]))
}

function attributeOf(value: Value): DynamodbValue {
  if (value === null) return { NULL: true }
  if (typeof value === 'string') return { S: value }
  if (typeof value === 'boolean') return { BOOL: value }
  if (value instanceof Uint8Array) return { B: value }
  return { N: String(value as number | bigint) }
}

/** Equal for DynamoDB, which writes numbers in its own form, and for which a missing attribute is not a null one. */
export function sameValue(found: StoredDynamodbItem[string] | undefined, wanted: DynamodbValue): boolean {
  if (wanted.NULL) return found === undefined || found.NULL === true
  if (found === undefined) return false
  if (wanted.N !== undefined) return found.N !== undefined && sameNumber(found.N, wanted.N)
  if (wanted.B) return found.B !== undefined && Buffer.compare(found.B, wanted.B) === 0
  return found.S === wanted.S && found.BOOL === wanted.BOOL
}

function sameNumber(a: string, b: string): boolean {
  return a === b || (Number(a) === Number(b) && Math.abs(Number(a)) <= Number.MAX_SAFE_INTEGER)
}

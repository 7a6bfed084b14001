// Changes of an entry as DynamoDB's update expressions. Invariant: every change moves the revision, so that a writer that saw the
// entry before the change cannot write as if the entry were unchanged.

import type { Key } from '../../core/key.ts'
import type { Retention } from '../../core/store.ts'
import { namesIn } from './requests.ts'
import type { DynamodbItem, DynamodbUpdate } from '../../clients/dynamodb.ts'
import { keyOfItem, number, retainSeconds } from './entries.ts'
import type { DynamodbMoment } from './entries.ts'

export interface ItemChange {
  /** An expression for each attribute that is set. */
  readonly sets: Readonly<Record<string, string>>
  readonly values: DynamodbItem
  readonly removes?: readonly string[]
}

export interface Where {
  readonly condition: string
  readonly values: DynamodbItem
}

/** A lease that ends then, and the retention that the entry has counted from there. */
export function leaseEndingAt(untilMs: number): ItemChange {
  return {
    sets: {
      leaseUntilMs: ':untilMs',
      expiresAtMs: '#keepMs + :untilMs',
      forgottenAtMs: '#retainMs + :untilMs',
      removeAt: '#retainSeconds + :untilSeconds',
    },
    values: { ':untilMs': number(untilMs), ':untilSeconds': number(Math.ceil(untilMs / 1_000)) },
  }
}

/** Ended now, with another retention than it had. */
export function endingNow(
  { keepMs, tombstoneMs }: Retention,
  { now, clockSkewMs }: DynamodbMoment,
  others: DynamodbItem,
): ItemChange {
  const seconds = retainSeconds({ keepMs, tombstoneMs }, clockSkewMs)
  const attributes = {
    leaseUntilMs: number(now),
    keepMs: number(keepMs),
    retainMs: number(keepMs + tombstoneMs),
    retainSeconds: number(seconds),
    expiresAtMs: number(now + keepMs),
    forgottenAtMs: number(now + keepMs + tombstoneMs),
    removeAt: number(Math.ceil(now / 1_000) + seconds),
    ...others,
  }
  const entries = Object.entries(attributes)
  return {
    sets: Object.fromEntries(entries.map(([name]) => [name, `:${name}`])),
    values: Object.fromEntries(entries.map(([name, value]) => [`:${name}`, value])),
  }
}

export const contents: readonly string[] = ['outcome', 'outcomeApart', 'input']

/** Nothing but remains, until TTL or a sweep removes them. */
export function forgetting(moment: DynamodbMoment): ItemChange {
  return { ...endingNow({ keepMs: 0, tombstoneMs: 0 }, moment, { wrote: { S: 'forget' } }), removes: contents }
}

export function opening({ now }: DynamodbMoment): ItemChange {
  const { sets, values } = leaseEndingAt(now)
  return { sets: { ...sets, wrote: ':release' }, values: { ...values, ':release': { S: 'release' } } }
}

export function updateOf(table: string, key: Key, { sets, values, removes }: ItemChange, where: Where): DynamodbUpdate {
  const set = Object.entries({ ...sets, revision: '#revision + :one' }).map(([name, to]) => `#${name} = ${to}`)
  const remove = removes ? ` REMOVE ${removes.map((name) => `#${name}`).join(', ')}` : ''
  const expression = `SET ${set.join(', ')}${remove}`
  return {
    TableName: table,
    Key: keyOfItem(key),
    UpdateExpression: expression,
    ConditionExpression: where.condition,
    ExpressionAttributeNames: namesIn(expression, where.condition),
    ExpressionAttributeValues: { ...values, ...where.values, ':one': number(1) },
    ReturnValuesOnConditionCheckFailure: 'ALL_OLD',
  }
}

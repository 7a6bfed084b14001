// What becomes of rows after a try to publish them: pure, and the home of the failure policies. Invariant: of one order key nothing
// after the first failure counts as sent, whatever the publisher says of it.

import { backoffMs, backoffs, countedBackoffs } from '../../core/backoff.ts'
import type { Random } from '../../core/clock.ts'
import { FinalError } from '../../core/errors.ts'
import { NotSentError } from '../broker.ts'
import type { Published } from '../broker.ts'
import { orderKeyOf } from './source.ts'
import type { HeldRow, RelayRow } from './source.ts'

/**
 * What to do with a row that cannot be published. 'block': try it until it works, and its key waits. `skipAfter`: after so many tries it
 * is a dead letter, and its key goes on without it. 'park' and `parkAfter`: after so many tries it is a dead letter, and its key waits for
 * a person.
 */
export type FailurePolicy = 'block' | 'park' | { readonly skipAfter: number } | { readonly parkAfter: number }

export interface Verdicts {
  readonly sent: readonly RelayRow[]
  readonly held: readonly HeldRow[]
}

/**
 * Every message failed, they are of several keys, and nothing was confirmed meanwhile: that is the transport, and no single row. A
 * FinalError is always about its row.
 */
export function isOutage(rows: readonly RelayRow[], published: readonly Published[], isTransportUp: boolean): boolean {
  const failed = published.every((each) => each !== undefined && !(each instanceof FinalError))
  return failed && !isTransportUp && new Set(rows.map(orderKeyOf)).size > 1
}

export function judge(
  rows: readonly RelayRow[],
  published: readonly Published[],
  policy: FailurePolicy,
  random: Random,
): Verdicts {
  const sent: RelayRow[] = []
  const held: HeldRow[] = []
  const failed = new Set<string>()
  rows.forEach((row, index) => {
    const key = orderKeyOf(row)
    const error = published[index]
    if (failed.has(key)) held.push(behind(row))
    else if (error === undefined) sent.push(row)
    else {
      failed.add(key)
      held.push(failedRow(row, error, policy, random))
    }
  })
  return { sent, held }
}

/** A row whose key has a held row in front. It is due as soon as it is the first. */
export function behind(row: RelayRow): HeldRow {
  return { row, state: 'waiting', tries: row.tries, dueInMs: 0, reason: undefined }
}

function failedRow(row: RelayRow, error: Error, policy: FailurePolicy, random: Random): HeldRow {
  // The publisher did not try it, though nothing of its key failed before: that is no try of this row.
  const tries = error instanceof NotSentError ? row.tries : row.tries + 1
  const reason = reasonOf(error)
  const end = endOf(policy)
  // A FinalError says that no later try can succeed: the message is too large, the topic does not exist.
  if (end && (tries >= end.after || error instanceof FinalError)) {
    return { row, state: end.state, tries, dueInMs: undefined, reason }
  }
  return { row, state: 'waiting', tries, dueInMs: Math.ceil(backoffMs(backoffs.relay, tries - 1, random)), reason }
}

function endOf(policy: FailurePolicy): { readonly state: 'parked' | 'dead'; readonly after: number } | undefined {
  if (policy === 'block') return undefined
  if (policy === 'park') return { state: 'parked', after: countedBackoffs.relayPark.triesMax }
  return 'skipAfter' in policy
    ? { state: 'dead', after: policy.skipAfter }
    : { state: 'parked', after: policy.parkAfter }
}

const reasonCharactersMax = 1_000

function reasonOf(error: Error): string {
  const text = `${error.name}: ${error.message}`.toWellFormed().replaceAll('\0', '')
  return text.length > reasonCharactersMax ? `${text.slice(0, reasonCharactersMax)}…` : text
}

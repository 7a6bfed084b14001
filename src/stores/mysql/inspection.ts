// Looking at entries, and mending them by hand. A change and its audit record are one transaction.

import { releaseOrForget } from '../../core/entry.ts'
import { backoffMs } from '../../core/backoff.ts'
import { sleep, systemRandom } from '../../core/clock.ts'
import type { Clock } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey, key as makeKey } from '../../core/key.ts'
import type { AuditRecord, Entry, EntryState, Inspectable } from '../../core/store.ts'
import type { Row } from '../../clients/mysql.ts'
import { auditStatement, callStatement, listStatement, mendStatement, showStatement } from './statements.ts'
import { bytesOf } from '../sql-answers.ts'

/** Somebody who mends waits a little for an entry that is just being written, not for a long transaction. */
const mendBackoff = { firstMs: 5, factor: 2, maxMs: 200 }
const mendTriesMax = 10

export function inspection(
  table: string,
  clock: Clock,
  single: (statement: string, during: string) => Promise<readonly Row[]>,
): Inspectable {
  // A round trip of its own: only a procedure knows the store's clock, and people look seldom.
  const now = async (): Promise<string> =>
    (await single(callStatement(table, 'clock', []), 'look at the clock'))[0]![0]!
  return {
    async show(key) {
      const [row] = await single(showStatement(table, key, await now()), 'show')
      return row && entryOf(row[0]!)
    },
    list: async (filter) =>
      (await single(listStatement(table, filter, await now()), 'list')).map(([words]) => entryOf(words!)),
    async mend(key, mending, reason) {
      const action = releaseOrForget(mending)
      for (let tries = 0; tries < mendTriesMax; tries++) {
        const [row] = await single(mendStatement(table, key, action, reason), action)
        const words = row![0]!
        if (words !== 'locked') return words === null ? undefined : entryOf(words)
        await sleep(clock, backoffMs(mendBackoff, tries, systemRandom))
      }
      const message = `${describeKey(key)} was not changed: it is locked by a transaction that is still open. Ask again when it has ended.`
      throw new OnceError('STORE_UNAVAILABLE', { message })
    },
    async audit(key) {
      const rows = await single(auditStatement(table, key), 'audit')
      return rows.map(([words]) => {
        const [atMs, action, before, reason] = words!.split(' ')
        const done = { action: action as AuditRecord['action'], before: before as EntryState }
        return { key, atMs: Number(atMs), reason: unhex(reason!), ...done }
      })
    },
  }
}

/** Reads what entryWords in mysql/schema.ts writes. */
function entryOf(words: string): Entry {
  const [state, scope, id, attempt, fence, fingerprint, version, ...rest] = words.split(' ')
  const [firstClaimedAtMs, leaseUntilMs, keepMs, tombstoneMs] = rest.map(Number)
  const [outcome, input] = rest.slice(4)
  const expiresAtMs = leaseUntilMs! + keepMs!
  return {
    key: makeKey(unhex(scope!), unhex(id!)),
    state: state as EntryState,
    attempt: Number(attempt),
    fence: Number(fence),
    fingerprint: unhex(fingerprint!),
    version: Number(version),
    firstClaimedAtMs: firstClaimedAtMs!,
    leaseUntilMs: leaseUntilMs!,
    expiresAtMs,
    forgottenAtMs: expiresAtMs + tombstoneMs!,
    ...(outcome !== '-' && { outcome: bytesOf(outcome!.slice(1)) }),
    ...(input !== '-' && { input: bytesOf(input!.slice(1)) }),
  }
}

function unhex(text: string): string {
  return Buffer.from(text, 'hex').toString()
}

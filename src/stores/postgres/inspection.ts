// Looking at entries, and mending them by hand. A change and its audit record are one statement, hence one transaction.

import { releaseOrForget } from '../../core/entry.ts'
import { sleep, systemRandom } from '../../core/clock.ts'
import type { Clock } from '../../core/clock.ts'
import { backoffMs } from '../../core/backoff.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey, key as makeKey } from '../../core/key.ts'
import type { AuditRecord, Entry, EntryState, Inspectable } from '../../core/store.ts'
import type { SchemaNames } from './names.ts'
import { auditStatement, listStatement, mendStatement, showStatement } from './statements.ts'
import { bytesOf } from '../sql-answers.ts'

/** Somebody who mends waits a little for an entry that is just being written, not for a long transaction. */
const mendBackoff = { firstMs: 5, factor: 2, maxMs: 200 }
const mendTriesMax = 10

export function inspection(
  names: SchemaNames,
  clock: Clock,
  single: (statement: string, during: string) => Promise<readonly string[]>,
): Inspectable {
  return {
    async show(key) {
      const [answer] = await single(showStatement(names, key), 'show')
      return answer === undefined ? undefined : entryOf(answer)
    },
    list: async (filter) => (await single(listStatement(names, filter), 'list')).map(entryOf),
    async mend(key, mending, reason) {
      const action = releaseOrForget(mending)
      for (let tries = 0; tries < mendTriesMax; tries++) {
        const [answer] = await single(mendStatement(names, key, action, reason), action)
        if (answer !== 'locked') return answer === undefined ? undefined : entryOf(answer)
        await sleep(clock, backoffMs(mendBackoff, tries, systemRandom))
      }
      const message = `${describeKey(key)} was not changed: it is locked by a transaction that is still open. Ask again when it has ended.`
      throw new OnceError('STORE_UNAVAILABLE', { message })
    },
    async audit(key) {
      const answers = await single(auditStatement(names, key), 'audit')
      return answers.map((answer) => ({ key, ...(JSON.parse(answer) as Omit<AuditRecord, 'key'>) }))
    },
  }
}

interface EntryJson extends Omit<Entry, 'key' | 'outcome' | 'input'> {
  readonly scope: string
  readonly id: string
  readonly state: EntryState
  readonly outcome: string | null
  readonly input: string | null
}

function entryOf(answer: string): Entry {
  const { scope, id, outcome, input, ...rest } = JSON.parse(answer) as EntryJson
  return {
    key: makeKey(scope, id),
    ...rest,
    ...(outcome !== null && { outcome: bytesOf(outcome) }),
    ...(input !== null && { input: bytesOf(input) }),
  }
}

// Reading entries, and changing them manually. A change and its audit record are one statement, hence one transaction.

import { mendingName } from '../../core/entry.ts'
import type { Clock } from '../../core/clock.ts'
import { describeKey, key as makeKey } from '../../core/key.ts'
import type { AuditRecord, Entry, EntryState, Inspectable } from '../../core/store.ts'
import { bytesOf, mendWhileLocked } from '../sql-answers.ts'
import type { Alone } from './batches.ts'
import type { SchemaNames } from './names.ts'
import { auditStatement, listStatement, mendStatement, showStatement } from './statements.ts'

export function inspection(names: SchemaNames, clock: Clock, alone: Alone): Inspectable {
  return {
    async show(key) {
      const [answer] = await alone(showStatement(names, key), `show ${describeKey(key)}`)
      return answer === undefined ? undefined : entryOf(answer)
    },
    list: async (filter) => (await alone(listStatement(names, filter), 'list entries')).map(entryOf),
    async mend(key, mending, reason) {
      const statement = mendStatement(names, key, mending, reason)
      const what = `${mendingName(mending)} ${describeKey(key)}`
      const answer = await mendWhileLocked(clock, key, async () => (await alone(statement, what, 'unknown'))[0])
      return answer === undefined ? undefined : entryOf(answer)
    },
    async audit(key) {
      const answers = await alone(auditStatement(names, key), `read the audit records of ${describeKey(key)}`)
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

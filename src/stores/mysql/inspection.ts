// Inspecting entries and mending them manually. A change and its audit record are one transaction.

import { mendingName } from '../../core/entry.ts'
import { describeKey, key as makeKey } from '../../core/key.ts'
import type { AuditRecord, Entry, EntryState, Inspectable } from '../../core/store.ts'
import { bytesOf, mendWhileLocked } from '../sql-answers.ts'
import type { MysqlAskingContext } from './context.ts'
import { auditStatement, callStatement, listStatement, mendCall, showStatement } from './statements.ts'
import { refuseTooLarge } from './transactions.ts'

export function inspection<Client>(context: MysqlAskingContext<Client>): Inspectable {
  const { table, clock, connections, ready, single } = context
  // A separate round trip: only a procedure knows the store's clock, and people look seldom.
  const now = async (what: string): Promise<string> => (await single(callStatement(table, 'clock', []), what))[0]![0]!
  return {
    async show(key) {
      const what = `show ${describeKey(key)}`
      const [row] = await single(showStatement(table, key, await now(what)), what)
      return row && entryOf(row[0]!)
    },
    async list(filter) {
      const what = 'list entries'
      return (await single(listStatement(table, filter, await now(what)), what)).map(([words]) => entryOf(words!))
    },
    async mend(key, mending, reason) {
      const call = mendCall(key, mending, reason)
      refuseTooLarge(call.length, await ready(connections), key, 'outcome')
      const statement = callStatement(table, 'mend', call.values)
      const words = await mendWhileLocked(clock, key, async () => {
        const [row] = await single(statement, `${mendingName(mending)} ${describeKey(key)}`, 'unknown')
        return row![0] ?? undefined
      })
      return words === undefined ? undefined : entryOf(words)
    },
    async audit(key) {
      const rows = await single(auditStatement(table, key), `read the audit records of ${describeKey(key)}`)
      return rows.map(([words]) => {
        const [atMs, action, before, reason] = words!.split(' ')
        const done = { action: action as AuditRecord['action'], before: before as EntryState }
        return { key, atMs: Number(atMs), reason: unhex(reason!), ...done }
      })
    },
  }
}

/** Reads what entryWords in mysql/decisions.sql.ts writes. */
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

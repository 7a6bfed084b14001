// Operations in MySQL: their records in tables beside the entries. The decisions, and what is written with them, are procedures
// (mysql/operations.sql.ts). This file sends the calls and reads their answers.

import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type {
  Advanced,
  BegunStep,
  Change,
  Claim,
  Ledger,
  Recoverable,
  StepLedger,
  TransactionalSteps,
  WrittenRecord,
} from '../../core/store.ts'
import type { MysqlHeldConnection, MysqlRow } from '../../clients/mysql.ts'
import { askForAdvance, askForClaim, bytesOf, openStep } from '../sql-answers.ts'
import { advanceCall, advancesStatement, advanceStatement } from './advances.ts'
import type { AdvanceCall } from './advances.ts'
import { numberedAnswers, together } from './batches.ts'
import { storeError } from './errors.ts'
import type { ServerLimits } from './fitness.ts'
import {
  beginStepStatement,
  cancelStatement,
  claimCall,
  dismissStatement,
  dueStatement,
  ledgerStatement,
  takeStatement,
  unfinishedStatement,
} from './statements.ts'
import { abandon, commitLast, refuseTooLarge, rollback } from './transactions.ts'
import { retried } from './context.ts'
import type { MysqlAskingContext, MysqlContext } from './context.ts'

export function operations<Client>(
  context: MysqlAskingContext<Client>,
): StepLedger & TransactionalSteps<Client> & Recoverable {
  const { table, single } = context
  return {
    ...ledgerOf(context),
    beginStep: (claim) => beginStep(context, claim),
    async due(scope, { limit, holdMs }) {
      const [row] = await single(dueStatement(table, scope, limit, holdMs), 'find due operations')
      const [heldUntilMs, ...ids] = row![0]!.split(' ')
      return ids.map((id) => ({ key: { scope, id: textOf(id) }, heldUntilMs: Number(heldUntilMs) }))
    },
    async dismiss({ key, heldUntilMs }) {
      await single(dismissStatement(table, key, heldUntilMs), `dismiss ${describeKey(key)}`)
    },
    async requestCancel(key, reason) {
      const [row] = await single(cancelStatement(table, key, reason), `cancel ${describeKey(key)}`, 'unknown')
      return row![0] === '1'
    },
    async unfinished(scope, { after, limit }) {
      const rows = await single(unfinishedStatement(table, scope, after ?? '', limit), 'list operations')
      return rows.map(([id]) => ({ scope, id: textOf(id!) }))
    },
  }
}

function ledgerOf<Client>(context: MysqlAskingContext<Client>): StepLedger {
  const { table, clock, connections, ready, single } = context
  const alone = async (statement: string): Promise<string> =>
    (await retried(clock, () => connections.run(statement)))[0]![0]!
  const server = { clock, storeError }
  // Most advances go on, and change only the lease and the records.
  const goOn = together(context, {
    together: (calls: readonly AdvanceCall[]) => advancesStatement(table, calls),
    answers: numberedAnswers,
    alone: (call) => advanceStatement(table, 'advance', call),
  })
  return {
    enlist(key, request) {
      return askForClaim(server, key, request, async () => {
        const call = claimCall(key, request)
        refuseTooLarge(call.length, await ready(connections), key, 'input')
        return alone(takeStatement(table, call, 'operation'))
      })
    },
    advance(claim, change) {
      return askForAdvance(server, claim, async () => {
        const call = advanceCall(claim, change)
        refuseTooLarge(call.length, await ready(connections), claim.key, 'record')
        return change.becomes.to === 'running' ? goOn(call) : alone(advanceStatement(table, 'advance', call))
      })
    },
    ledger: async (key) =>
      ledgerFrom(key, await single(ledgerStatement(table, key), `read the records of ${describeKey(key)}`)),
  }
}

function ledgerFrom(key: Key, rows: readonly MysqlRow[]): Ledger | undefined {
  if (rows.length === 0) return undefined
  const [due, cancel] = rows[0]!
  return {
    dueAtMs: due === null ? undefined : Number(due),
    cancelReason: cancel === null ? undefined : textOf(cancel!),
    records: rows.filter(([, , name]) => name !== null).map((row) => recordOf(key, row)),
  }
}

function recordOf(key: Key, [, , name, revision, atMs, content]: MysqlRow): WrittenRecord {
  if (content === null) throw unreadable(key)
  return { name: textOf(name!), revision: Number(revision), atMs: Number(atMs), content: bytesOf(content!) }
}

function unreadable(key: Key): OnceError {
  return new OnceError('OUTCOME_UNREADABLE', {
    message:
      `A record of the operation ${describeKey(key)} is longer than the server can send: max_allowed_packet is now smaller ` +
      `than when it was written. Raise max_allowed_packet to what it was. Nothing was run.`,
  })
}

/** The fence check and BEGIN in one round trip, the record and COMMIT in another. */
async function beginStep<Client>(context: MysqlContext<Client>, claim: Claim): Promise<BegunStep<Client> | undefined> {
  const { table, clock, connections } = context
  let limits: ServerLimits
  return openStep({ clock, storeError }, claim, {
    async connect() {
      limits = await context.ready(connections)
      return connections.connect()
    },
    async isHeld(connection) {
      const [row] = await connection.run(beginStepStatement(table, claim))
      return row![0] === 'held'
    },
    begun: (connection) => begunStep(context, connection, limits, claim),
    rollback: (connection) => rollback(table, connection),
  })
}

function begunStep<Client>(
  { table, clock }: MysqlContext<Client>,
  connection: MysqlHeldConnection<Client>,
  limits: ServerLimits,
  claim: Claim,
): BegunStep<Client> {
  const statementOf = (change: Change): string => {
    const call = advanceCall(claim, change)
    refuseTooLarge(call.length, limits, claim.key, 'record')
    return advanceStatement(table, 'commit_step', call)
  }
  return {
    tx: connection.client,
    commit: async (change) => (await commitLast(table, connection, claim.key, () => statementOf(change))) as Advanced,
    rollback: () => rollback(table, connection),
    abandon: () => abandon(clock, connection),
  }
}

function textOf(hex: string): string {
  return Buffer.from(hex, 'hex').toString()
}

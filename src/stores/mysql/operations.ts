// Operations in MySQL: their records in tables beside the entries. The decisions, and what is written with them, are procedures
// (mysql/operations.sql.ts); here is only who asks what, and what the answers mean.

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
import { together } from './batches.ts'
import type { Connection, Row } from '../../clients/mysql.ts'
import type { ServerLimits } from './fitness.ts'
import { storeError } from './errors.ts'
import {
  advanceCall,
  advancesStatement,
  advanceStatement,
  beginStepStatement,
  callStatement,
  cancelStatement,
  claimCall,
  dismissStatement,
  dueStatement,
  ledgerStatement,
  numberedAnswers,
  unfinishedStatement,
} from './statements.ts'
import type { AdvanceCall } from './statements.ts'
import { abandon, commitLast, refuseTooLarge, retried, rollback } from './transactions.ts'
import type { MysqlGround } from './transactions.ts'
import { askForAdvance, bytesOf, claimWhileLocked, verdictOf } from '../sql-answers.ts'

export interface OperationsGround<Client> extends MysqlGround<Client> {
  /** A statement of its own. */
  single(statement: string, during: string): Promise<readonly Row[]>
}

export function operations<Client>(
  ground: OperationsGround<Client>,
): StepLedger & TransactionalSteps<Client> & Recoverable {
  const { table, single } = ground
  return {
    ...ledgerOf(ground),
    beginStep: (claim) => beginStep(ground, claim),
    async due(scope, { limit, holdMs }) {
      const [row] = await single(dueStatement(table, scope, limit, holdMs), 'search for due operations')
      const [heldUntilMs, ...ids] = row![0]!.split(' ')
      return ids.map((id) => ({ key: { scope, id: textOf(id) }, heldUntilMs: Number(heldUntilMs) }))
    },
    async dismiss({ key, heldUntilMs }) {
      await single(dismissStatement(table, key, heldUntilMs), 'dismissal of an operation')
    },
    async requestCancel(key, reason) {
      const [row] = await single(cancelStatement(table, key, reason), 'cancelling')
      return row![0] === '1'
    },
    async unfinished(scope, { after, limit }) {
      const rows = await single(unfinishedStatement(table, scope, after ?? '', limit), 'listing of operations')
      return rows.map(([id]) => ({ scope, id: textOf(id!) }))
    },
  }
}

function ledgerOf<Client>(ground: OperationsGround<Client>): StepLedger {
  const { table, clock, connections, ready, single } = ground
  const alone = async (statement: string): Promise<string> =>
    (await retried(clock, () => connections.run(statement)))[0]![0]!
  // Those that go on are most of them, and change nothing but the lease and the records.
  const goOn = together(ground, {
    together: (calls: readonly AdvanceCall[]) => advancesStatement(table, calls),
    answers: numberedAnswers,
    alone: (call) => advanceStatement(table, 'advance', call),
  })
  return {
    async enlist(key, request) {
      const call = claimCall(key, request)
      try {
        refuseTooLarge(call.length, await ready(connections), key, 'input')
        return verdictOf(
          key,
          request,
          await claimWhileLocked(clock, () => alone(callStatement(table, 'enlist', call.values))),
        )
      } catch (error) {
        throw storeError(error, `claim of ${describeKey(key)}`, 'no')
      }
    },
    async advance(claim, change) {
      const call = advanceCall(claim, change)
      const ask = (): Promise<string> =>
        change.becomes.to === 'running' ? goOn(call) : alone(advanceStatement(table, 'advance', call))
      try {
        refuseTooLarge(call.length, await ready(connections), claim.key, 'record')
        return await askForAdvance({ clock, storeError }, claim, ask)
      } catch (error) {
        throw storeError(error, `advance of ${describeKey(claim.key)}`, 'unknown')
      }
    },
    ledger: async (key) => ledgerFrom(key, await single(ledgerStatement(table, key), 'reading of records')),
  }
}

function ledgerFrom(key: Key, rows: readonly Row[]): Ledger | undefined {
  if (rows.length === 0) return undefined
  const [due, cancel] = rows[0]!
  return {
    dueAtMs: due === null ? undefined : Number(due),
    cancelReason: cancel === null ? undefined : textOf(cancel!),
    records: rows.filter(([, , name]) => name !== null).map((row) => recordOf(key, row)),
  }
}

function recordOf(key: Key, [, , name, revision, atMs, content]: Row): WrittenRecord {
  if (content === null) throw unreadable(key)
  return { name: textOf(name!), revision: Number(revision), atMs: Number(atMs), content: bytesOf(content!) }
}

function unreadable(key: Key): OnceError {
  return new OnceError('OUTCOME_UNREADABLE', {
    message:
      `A record of the operation ${describeKey(key)} is longer than the server can send: max_allowed_packet is now smaller ` +
      `than when it was written. Raise it to what it was. Nothing was run.`,
  })
}

/** The fence check and BEGIN in one round trip, the record and COMMIT in another. */
async function beginStep<Client>(ground: MysqlGround<Client>, claim: Claim): Promise<BegunStep<Client> | undefined> {
  const { table, connections } = ground
  try {
    const limits = await ground.ready(connections)
    const connection = await connections.connect()
    try {
      const [row] = await connection.run(beginStepStatement(table, claim))
      if (row![0] === 'held') return begunStep(ground, connection, limits, claim)
      connection.release()
      return undefined
    } catch (error) {
      await rollback(table, connection)
      throw error
    }
  } catch (error) {
    throw storeError(error, `beginning of a step of ${describeKey(claim.key)}`, 'no')
  }
}

function begunStep<Client>(
  { table, clock }: MysqlGround<Client>,
  connection: Connection<Client>,
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

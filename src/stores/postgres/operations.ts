// Operations in PostgreSQL: who asks which function of postgres/operations.sql.ts, and steps in a transaction. Invariant: the
// record of such a step is the last statement before COMMIT and goes with it in one message, so a lost claim cannot commit.

import type { Clock } from '../../core/clock.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type {
  Advanced,
  BegunStep,
  Change,
  Claim,
  Recoverable,
  StepLedger,
  TransactionalSteps,
} from '../../core/store.ts'
import { firstAnswer } from '../../clients/postgres.ts'
import { storeError } from './errors.ts'
import { clockMs, functionName, qualified } from './names.ts'
import type { SchemaNames } from './names.ts'
import { advanceCall, callStatement, claimCall, integer, literal, token } from './statements.ts'
import type { Call } from './statements.ts'
import { commitLast, rollback } from './transactions.ts'
import type { TransactionGround } from './transactions.ts'
import { bytesOf, claimWhileLocked, advanceUntilKnown, verdictOf } from '../sql-answers.ts'

export interface OperationsGround<Client> extends TransactionGround<Client> {
  readonly clock: Clock
  /** One of the calls that share a statement with others of the same moment. */
  ask(call: Call): Promise<string>
  /** A statement of its own. */
  single(statement: string, during: string): Promise<readonly string[]>
}

export function operations<Client>(
  ground: OperationsGround<Client>,
): StepLedger & TransactionalSteps<Client> & Recoverable {
  const { names, clock, ask, single } = ground
  return {
    async enlist(key, request) {
      const call = claimCall(key, request, 'enlist')
      try {
        return verdictOf(key, request, await claimWhileLocked(clock, () => ask(call)))
      } catch (error) {
        throw storeError(error, `claim of ${describeKey(key)}`, 'no')
      }
    },
    async advance(claim, change) {
      const call = advanceCall(claim, change)
      try {
        return await advanceUntilKnown(clock, () => ask(call))
      } catch (error) {
        throw storeError(error, `advance of ${describeKey(claim.key)}`, 'unknown')
      }
    },
    async ledger(key) {
      const [answer] = await single(ledgerStatement(names, key), 'reading of records')
      if (answer === undefined) return undefined
      const { due, cancel, records } = JSON.parse(answer) as LedgerJson
      return {
        dueAtMs: due ?? undefined,
        cancelReason: cancel ?? undefined,
        records: records.map(([name, revision, atMs, content]) => ({
          name,
          revision,
          atMs,
          content: bytesOf(content),
        })),
      }
    },
    beginStep: (claim) => beginStep(ground, claim),
    async due(scope, { limit, holdMs }) {
      const found = await single(dueStatement(names, scope, limit, holdMs), 'search for due operations')
      return found.map((answer) => {
        const [id, heldUntilMs] = JSON.parse(answer) as [string, number]
        return { key: { scope, id }, heldUntilMs }
      })
    },
    async dismiss({ key, heldUntilMs }) {
      await single(dismissStatement(names, key, heldUntilMs), 'dismissal of an operation')
    },
    async requestCancel(key, reason) {
      return (await single(cancelStatement(names, key, reason), 'cancelling')).length > 0
    },
    async unfinished(scope, { after, limit }) {
      const ids = await single(unfinishedStatement(names, scope, after ?? '', limit), 'listing of operations')
      return ids.map((id) => ({ scope, id }))
    },
  }
}

interface LedgerJson {
  readonly due: number | null
  readonly cancel: string | null
  readonly records: readonly [name: string, revision: number, atMs: number, content: string][]
}

/** BEGIN and the fence check in one round trip. */
async function beginStep<Client>(
  ground: OperationsGround<Client>,
  claim: Claim,
): Promise<BegunStep<Client> | undefined> {
  const { names, connections } = ground
  try {
    await ground.ready(connections)
    const connection = await connections.connect()
    try {
      const held = firstAnswer(await connection.run(['BEGIN', heldStatement(names, claim)]))
      if (held === 'held') {
        return {
          tx: connection.client,
          commit: (change) => commitStep(ground, connection, claim, change),
          rollback: () => rollback(connection),
          abandon: async () => connection.destroy(new Error('the step outlived its deadline')),
        }
      }
      await rollback(connection)
      return undefined
    } catch (error) {
      await rollback(connection)
      throw error
    }
  } catch (error) {
    throw storeError(error, `beginning of a step of ${describeKey(claim.key)}`, 'no')
  }
}

async function commitStep<Client>(
  { names }: OperationsGround<Client>,
  connection: Parameters<typeof commitLast>[0],
  claim: Claim,
  change: Change,
): Promise<Advanced> {
  const results = await commitLast(connection, claim.key, callStatement(names, advanceCall(claim, change, 'or-fail')))
  return results === 'lost' ? 'lost' : (firstAnswer(results) as Advanced)
}

function heldStatement(names: SchemaNames, { key, token: held, fence }: Claim): string {
  return `select case when exists (
      select from ${qualified(names)} e where e.scope = ${literal(key.scope)} and e.id = ${literal(key.id)}
        and e.token = ${literal(token(held))} and e.fence = ${integer('fence', fence)}
        and e.state = 'r' and ${clockMs} < e.lease_until_ms + e.keep_ms
    ) then 'held' else 'lost' end as answer`
}

function ledgerStatement(names: SchemaNames, { scope, id }: Key): string {
  const whose = (row: string): string => `${row}.scope = ${literal(scope)} and ${row}.id = ${literal(id)}`
  return `select json_build_object('due', o.due_at_ms, 'cancel', o.cancel_reason, 'records', coalesce((
      select json_agg(json_build_array(s.name, s.revision, s.at_ms, encode(s.content, 'base64')))
      from ${qualified(names, '_steps')} s where ${whose('s')}
    ), '[]'::json))::text as answer
    from ${qualified(names, '_operations')} o where ${whose('o')} and exists (
      select from ${qualified(names)} e where ${whose('e')} and ${clockMs} < e.lease_until_ms + e.keep_ms
    )`
}

// In the order of their dues, and not due again for a while: workers that ask at once pass over each other's rows.
function dueStatement(names: SchemaNames, scope: string, limit: number, holdMs: number): string {
  const name = qualified(names, '_operations')
  return `with found as (
      select o.scope, o.id, o.due_at_ms from ${name} o where o.scope = ${literal(scope)} and o.due_at_ms <= ${clockMs}
      order by o.due_at_ms limit ${integer('limit', limit)} for update skip locked
    ), held as (
      update ${name} o set due_at_ms = ${clockMs} + ${integer('holdMs', holdMs)}
      from found where o.scope = found.scope and o.id = found.id
      returning o.id, o.due_at_ms as until_ms, found.due_at_ms
    )
    select json_build_array(held.id, held.until_ms)::text as answer from held order by held.due_at_ms`
}

function dismissStatement(names: SchemaNames, { scope, id }: Key, heldUntilMs: number): string {
  return `update ${qualified(names, '_operations')} o set due_at_ms = null, settled = true, sweep_at_ms = least(o.sweep_at_ms, ${clockMs})
    where o.scope = ${literal(scope)} and o.id = ${literal(id)} and o.due_at_ms = ${integer('heldUntilMs', heldUntilMs)}
    returning 'dismissed' as answer`
}

function cancelStatement(names: SchemaNames, { scope, id }: Key, reason: string): string {
  return `update ${qualified(names, '_operations')} o set cancel_reason = ${literal(reason)}, due_at_ms = ${clockMs}
    where o.scope = ${literal(scope)} and o.id = ${literal(id)} and not o.settled returning 'asked' as answer`
}

function unfinishedStatement(names: SchemaNames, scope: string, after: string, limit: number): string {
  return `select o.id as answer from ${qualified(names, '_operations')} o
    where o.scope = ${literal(scope)} and o.id > ${literal(after)} and not o.settled order by o.id
    limit ${integer('limit', limit)}`
}

export function sweepOperationsStatement(names: SchemaNames, limit: number): string {
  return `select ${functionName(names, 'sweep_operations')}(${integer('limit', limit)}) as answer`
}

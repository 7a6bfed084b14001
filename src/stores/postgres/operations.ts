// Operations in PostgreSQL: who asks which function of postgres/operations.sql.ts, and steps in a transaction. Invariant: the
// record of such a step is the last statement before COMMIT and goes with it in one message, so a lost claim cannot commit.

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
import { firstAnswer, limited } from '../../clients/postgres.ts'
import type { PostgresConnection } from '../../clients/postgres.ts'
import { askForAdvance, askForClaim, bytesOf, openStep } from '../sql-answers.ts'
import type { Alone, Batched } from './batches.ts'
import type { PostgresContext } from './context.ts'
import { storeError } from './errors.ts'
import { clockMs, functionName, lockNumber, qualified } from './names.ts'
import type { SchemaNames } from './names.ts'
import { straightAdvance, straightEnlist } from './operate.ts'
import { advanceCall, callStatement, integer, literal, token } from './statements.ts'
import { commitLast, rollback } from './transactions.ts'

export function operations<Client>(
  context: PostgresContext<Client>,
  batched: Batched,
  alone: Alone,
): StepLedger & TransactionalSteps<Client> & Recoverable {
  const { names, clock } = context
  const server = { clock, storeError }
  return {
    async enlist(key, request) {
      const call = straightEnlist(key, request)
      return askForClaim(server, key, request, () => batched(call))
    },
    async advance(claim, change) {
      const call = straightAdvance(claim, change)
      return askForAdvance(server, claim, () => batched(call))
    },
    async ledger(key) {
      const [answer] = await alone(ledgerStatement(names, key), `read the records of ${describeKey(key)}`)
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
    beginStep: (claim) => beginStep(context, claim),
    async due(scope, { limit, holdMs }) {
      const found = await alone(dueStatement(names, scope, limit, holdMs), 'find due operations')
      return found.map((answer) => {
        const [id, heldUntilMs] = JSON.parse(answer) as [string, number]
        return { key: { scope, id }, heldUntilMs }
      })
    },
    async dismiss({ key, heldUntilMs }) {
      await alone(dismissStatement(names, key, heldUntilMs), `dismiss ${describeKey(key)}`)
    },
    async requestCancel(key, reason) {
      return (await alone(cancelStatement(names, key, reason), `cancel ${describeKey(key)}`, 'unknown')).length > 0
    },
    async unfinished(scope, { after, limit }) {
      const ids = await alone(unfinishedStatement(names, scope, after ?? '', limit), 'list operations')
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
function beginStep<Client>(context: PostgresContext<Client>, claim: Claim): Promise<BegunStep<Client> | undefined> {
  const { names, clock, connections } = context
  return openStep({ clock, storeError }, claim, {
    async connect() {
      await context.ready(limited(connections))
      return connections.connect()
    },
    isHeld: async (connection) => firstAnswer(await connection.run(['BEGIN', heldStatement(names, claim)])) === 'held',
    rollback,
    begun: (connection) => ({
      tx: connection.client,
      commit: (change) => commitStep(names, connection, claim, change),
      rollback: () => rollback(connection),
      abandon: async () => connection.destroy(new Error('the step outlived its deadline')),
    }),
  })
}

async function commitStep(
  names: SchemaNames,
  connection: PostgresConnection<unknown>,
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
    ) and set_config('onceonly.transaction', ${lockNumber(names, literal(key.scope), literal(key.id))}::text, true) <> ''
    then 'held' else 'lost' end as answer`
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

// A transaction as DynamoDB has it: an effect collects its writes, and one TransactWriteItems settles together with all of them
// or does nothing. No transaction stays open: the effect reads what it likes, and states by conditions what must hold.

import { invalidArgument, OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Claim, Collector, Fenced, Retention } from '../../core/store.ts'
import { cancellationOf, errorNameOf } from '../../clients/dynamodb.ts'
import type {
  DynamodbCancellationReason,
  TransactCheck,
  TransactDelete,
  TransactPut,
  TransactUpdate,
  TransactWriteItem,
} from '../../clients/dynamodb.ts'
import { call } from './requests.ts'
import type { DynamodbContext } from './requests.ts'
import { momentOf } from './entries.ts'
import type { DynamodbMoment } from './entries.ts'
import { messageOf } from '../failures.ts'
import { isLasting, isPassing, storeError } from './errors.ts'
import { updateOf } from './updates.ts'
import { heldBy, settle, settledBy, settling } from './writes.ts'

// DynamoDB takes 100 items in one transaction, and the entry is one of them.
const itemsMax = 99

/**
 * What an effect of `once.transaction` writes with: each call collects one item in the form of TransactWriteItems. All of them are
 * written together with the result of the effect, or none is.
 */
export interface DynamodbTransaction {
  put(item: TransactPut): void
  update(item: TransactUpdate): void
  delete(item: TransactDelete): void
  /** A condition on an item that is not written. */
  check(item: TransactCheck): void
}

export function collect(key: Key): Collector<DynamodbTransaction, readonly TransactWriteItem[]> {
  const items: TransactWriteItem[] = []
  let hasEnded = false
  const collectAs =
    (kind: keyof TransactWriteItem, method: string) =>
    (item: object): void => {
      const name = describeKey(key)
      if (hasEnded) {
        throw invalidArgument(
          `tx.${method}: the effect for ${name} has ended, so this item is not written. Await everything inside the effect.`,
        )
      }
      if (typeof item !== 'object' || item === null) {
        throw invalidArgument(`tx.${method}: expected an item in the form of TransactWriteItems, got ${typeof item}`)
      }
      if (items.length === itemsMax) {
        throw invalidArgument(
          `tx.${method}: expected at most ${itemsMax} items for ${name}, got one more. DynamoDB takes 100 in a transaction, ` +
            'and the record of the key is one of them.',
        )
      }
      // A copy: what the caller does to its object afterwards is not part of the write.
      items.push({ [kind]: structuredClone(item) })
    }
  return {
    tx: {
      put: collectAs('Put', 'put'),
      update: collectAs('Update', 'update'),
      delete: collectAs('Delete', 'delete'),
      check: collectAs('ConditionCheck', 'check'),
    },
    end() {
      hasEnded = true
      return items
    },
  }
}

/** Settle together with the caller's own writes: all of them, or none. */
export async function settleWith(
  context: DynamodbContext,
  claim: Claim,
  outcome: Uint8Array,
  retention: Retention,
  items: readonly TransactWriteItem[],
): Promise<Fenced> {
  if (!Array.isArray(items) || items.length > itemsMax) {
    throw invalidArgument(
      `settleWith: expected up to ${itemsMax} items, got ${Array.isArray(items) ? items.length : typeof items}`,
    )
  }
  const moment = momentOf(context)
  try {
    if (items.length === 0) return await settle(context, claim, outcome, retention)
    const change = await settling(context, claim, outcome, retention, moment)
    const own = { Update: updateOf(context.table, claim.key, change, heldBy(claim, moment)) }
    // Ours comes last, so that the reasons of a refusal have the places of the caller's items.
    const TransactItems = [...items, own]
    return await call(context, (options) => context.client.transactWriteItems({ TransactItems }, options)).then(
      () => 'done',
      (error: unknown) => afterRefusal(error, claim, moment, items),
    )
  } catch (error) {
    throw storeError(error, `settle ${describeKey(claim.key)}`, 'unknown')
  }
}

function afterRefusal(
  error: unknown,
  claim: Claim,
  moment: DynamodbMoment,
  items: readonly TransactWriteItem[],
): Fenced {
  const reasons = cancellationOf(error)
  const own = reasons?.at(-1)
  // An earlier try of the same call may have landed although its reply was lost: then the entry is settled by this claim.
  if (own?.Code === 'ConditionalCheckFailed') return settledBy(own.Item, claim, moment) ? 'done' : 'lost'
  const name = describeKey(claim.key)
  if (isLasting(error) || (reasons && !reasons.every(isPassing))) {
    throw new OnceError('COMMIT_REFUSED', {
      message:
        `DynamoDB refused the writes for ${name}, and nothing was written: ${whyOf(error, reasons ?? [], items)}. ` +
        'Read what is there and decide anew. The same writes under the same conditions are refused again.',
      cause: error,
    })
  }
  if (reasons) {
    throw new OnceError('TRANSACTION_CONFLICT', {
      message: `Another transaction was at the items of ${name}, or the table is throttled. Nothing was written. Retry.`,
      cause: error,
    })
  }
  throw new OnceError('OUTCOME_UNKNOWN', {
    message: `DynamoDB did not say whether the outcome of ${name} and the items beside it were written: ${messageOf(error)}. Retry.`,
    cause: error,
  })
}

/** "item 2 (ConditionCheck of accounts): ConditionalCheckFailed", for each of the caller's items that was refused. */
function whyOf(
  error: unknown,
  reasons: readonly DynamodbCancellationReason[],
  items: readonly TransactWriteItem[],
): string {
  const refused = reasons.flatMap((reason, at) => {
    const item = items[at]
    if (!item || isPassing(reason)) return []
    const [[kind, { TableName: table }]] = Object.entries(item) as [[string, TransactPut]]
    const more = reason.Message === undefined ? '' : ` (${reason.Message})`
    return [`item ${at + 1} (${kind} of ${table}): ${reason.Code}${more}`]
  })
  return refused.length > 0 ? refused.join(', ') : `${errorNameOf(error)}: ${messageOf(error)}`
}

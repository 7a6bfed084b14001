// Statements outside of any transaction of the caller's. Calls of one moment share one message, hence one round trip and one
// commit. Invariant: a message is one transaction, at READ COMMITTED whatever the session's default is.

import { lane } from '../../core/lane.ts'
import { partsOf, retried } from '../sql-answers.ts'
import type { PostgresContext } from './context.ts'
import { isPassing, storeError } from './errors.ts'
import type { PostgresFacts } from './fitness.ts'
import { batchStatement } from './statements.ts'
import type { FunctionCall } from './statements.ts'

/** Beyond some hundreds a larger batch saves nothing more, and its callers wait for each other. */
const batchMax = 256

/** One batch is on its way back while the server works on the next. More would only make the batches smaller. */
const dispatchesMax = 2

/** A statement is one message that client and server hold in memory whole: a few outcomes of a mebibyte, not hundreds. */
const statementLengthMax = 8 * 1024 * 1024

/** A call that shares its message with others of the same moment. Resolves to its line of text. */
export type Batched = (call: FunctionCall) => Promise<string>

export function batching<Client>(context: PostgresContext<Client>): Batched {
  const { clock, connections } = context
  const dispatch = async (batch: readonly FunctionCall[]): Promise<readonly string[]> => {
    const facts = await context.ready(connections)
    const answers: string[] = []
    for (const part of partsOf(batch, statementLengthMax)) {
      answers.push(...(await retried(clock, isPassing, () => runTogether(context, facts, part))))
    }
    return answers
  }
  return lane({ dispatch, batchMax, dispatchesMax })
}

/** A separate statement. Resolves to its rows. `what` completes "PostgreSQL could not …". */
export type Alone = (statement: string, what: string) => Promise<readonly string[]>

export function alone<Client>({ clock, connections, ready }: PostgresContext<Client>): Alone {
  return async (statement, what) => {
    try {
      const facts = await ready(connections)
      const results = await retried(clock, isPassing, () => connections.run([...readCommitted(facts), statement]))
      return results.at(-1)!.answers
    } catch (error) {
      throw storeError(error, what, 'no')
    }
  }
}

// Writes before claims: a claim of a key that is settled in the same moment returns the outcome.
async function runTogether<Client>(
  { names, connections }: PostgresContext<Client>,
  facts: PostgresFacts,
  calls: readonly FunctionCall[],
): Promise<readonly string[]> {
  const kinds = (['write', 'advance', 'claim', 'enlist'] as const)
    .map((to) => ({ to, calls: calls.filter((call) => call.to === to) }))
    .filter((kind) => kind.calls.length > 0)
  const statements = kinds.map((kind) => batchStatement(names, kind.to, kind.calls))
  const results = await connections.run([...readCommitted(facts), ...statements])
  const answered = results.filter((result) => result.answers.length > 0)
  const answers = new Map<FunctionCall, string>()
  kinds.forEach((kind, index) => kind.calls.forEach((call, row) => answers.set(call, answered[index]!.answers[row]!)))
  return calls.map((call) => answers.get(call)!)
}

// Above READ COMMITTED our statements would fail on each other by the dozen, for a strictness that they do not need: they lock
// what they write, and read it after the lock.
function readCommitted({ isolation }: PostgresFacts): readonly string[] {
  return isolation === 'read committed' ? [] : ['SET TRANSACTION ISOLATION LEVEL READ COMMITTED']
}

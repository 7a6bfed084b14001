// Statements outside of any transaction of the caller's. Calls of one moment share one message, hence one round trip and one
// commit. Invariant: a message is one transaction, at READ COMMITTED whatever the session's default is.

import { firstAnswer, limited } from '../../clients/postgres.ts'
import type { BoundStatement } from '../../clients/postgres.ts'
import { lane } from '../../core/lane.ts'
import { partsOf, retried } from '../sql-answers.ts'
import type { PostgresContext } from './context.ts'
import { isPassing, isPassingStraight, isUnprepared, storeError } from './errors.ts'
import type { PostgresFacts } from './fitness.ts'
import { largeAnswer } from './names.ts'
import { batchStatement } from './statements.ts'
import type { FunctionCall } from './statements.ts'
import { answersOf, asText, loneStatement, togetherStatement } from './straight.ts'
import type { StraightCall, StraightClaim, StraightSettle } from './straight.ts'

/** Beyond some hundreds a larger batch saves nothing more, and its callers wait for each other. */
const batchMax = 256

/** One batch is on its way back while the server works on the next. More would only make the batches smaller. */
const dispatchesMax = 2

// As one batch, all that wait would keep the server and this process waiting for each other in turn: with 256 callers that cost two
// fifths of the replays and a quarter of the fresh calls. Shared by fewer, two commits cost more than the waiting.
const batchMin = 32

/** A statement is one message that client and server hold in memory whole: a few outcomes of a mebibyte, not hundreds. */
const statementLengthMax = 8 * 1024 * 1024

type Call = FunctionCall | StraightCall

/** A call that shares its message with others of the same moment. Resolves to its line of text. */
export type Batched = (call: Call) => Promise<string>

export function batching<Client>(context: PostgresContext<Client>): Batched {
  const { clock, connections } = context
  const runStraight = straightWay(context)
  const dispatch = async (batch: readonly Call[]): Promise<readonly string[]> => {
    const facts = await context.ready(limited(connections))
    const goesStraight = context.protocol.binds && facts.isolation === 'read committed'
    const answers: string[] = []
    for (const part of partsOf(batch, statementLengthMax)) {
      const straight = goesStraight ? part.filter(isStraight) : []
      const others = straight.length === part.length ? [] : part.filter((call) => !goesStraight || !isStraight(call))
      const ofOthers = await retried(clock, isPassing, () => runTogether(context, facts, others.map(asText)))
      const ofStraight = await retried(clock, isPassingStraight, () => runStraight(straight))
      if (others.length === 0) answers.push(...ofStraight)
      else answers.push(...inOrder(part, (call) => goesStraight && isStraight(call), ofStraight, ofOthers))
    }
    return answers
  }
  const together = lane({ dispatch, batchMax, batchMin, dispatchesMax })
  // Large outcomes come one by one. Nobody who asks for something small waits behind them.
  const byItself = lane({ dispatch, batchMax: 1, dispatchesMax })
  return async (call) => {
    const answer = await together(call)
    return answer === largeAnswer ? byItself(call) : answer
  }
}

/** What two messages answered, in the order of the calls. */
function inOrder<Call>(
  calls: readonly Call[],
  isFirst: (call: Call) => boolean,
  first: readonly string[],
  second: readonly string[],
): readonly string[] {
  let [ofFirst, ofSecond] = [0, 0]
  return calls.map((call) => (isFirst(call) ? first[ofFirst++]! : second[ofSecond++]!))
}

/** A separate statement. Resolves to its rows. `what` completes "PostgreSQL could not …", and `executed` says whether it may have: default no. */
export type Alone = (statement: string, what: string, executed?: 'unknown') => Promise<readonly string[]>

export function alone<Client>({ clock, connections, ready }: PostgresContext<Client>): Alone {
  return async (statement, what, executed) => {
    try {
      const facts = await ready(limited(connections))
      const results = await retried(clock, isPassing, () => connections.run([...readCommitted(facts), statement]))
      return results.at(-1)!.answers
    } catch (error) {
      throw storeError(error, what, executed ?? 'no')
    }
  }
}

// Writes before claims: a claim of a key that is settled in the same moment returns the outcome.
async function runTogether<Client>(
  { names, connections }: PostgresContext<Client>,
  facts: PostgresFacts,
  calls: readonly FunctionCall[],
): Promise<readonly string[]> {
  if (calls.length === 0) return []
  const kinds = (['write', 'advance', 'claim', 'enlist'] as const)
    .map((to) => ({ to, calls: calls.filter((call) => call.to === to) }))
    .filter((kind) => kind.calls.length > 0)
  const statements = kinds.map((kind) => batchStatement(names, kind.to, kind.calls))
  const results = await connections.run({ limited: [...readCommitted(facts), ...statements] })
  const answered = results.filter((result) => result.answers.length > 0)
  const answers = new Map<FunctionCall, string>()
  kinds.forEach((kind, index) => kind.calls.forEach((call, row) => answers.set(call, answered[index]!.answers[row]!)))
  return calls.map((call) => answers.get(call)!)
}

// A statement that has a name is parsed and planned once per connection.
function straightWay<Client>({
  names,
  connections,
  protocol,
}: PostgresContext<Client>): (calls: readonly StraightCall[]) => Promise<readonly string[]> {
  const run = async (statement: BoundStatement): Promise<string> => {
    if (protocol.keepsPrepared) {
      try {
        return firstAnswer(await connections.run({ limited: statement }))
      } catch (error) {
        if (!isUnprepared(error)) throw error
        protocol.keepsPrepared = false
      }
    }
    return firstAnswer(await connections.run({ limited: { ...statement, name: undefined } }))
  }
  return async (calls) => {
    if (calls.length === 0) return []
    if (calls.length === 1) return [await run(loneStatement(names, calls[0]!))]
    const settles = calls.filter(isSettle)
    const claims = settles.length === calls.length ? [] : calls.filter(isClaim)
    const answer = await run(togetherStatement(names, settles, claims))
    const answers = answersOf(answer, settles.length, claims.length)
    if (settles.length === 0 || claims.length === 0) return answers
    return inOrder(calls, isSettle, answers, answers.slice(settles.length))
  }
}

function isStraight(call: Call): call is StraightCall {
  return isSettle(call) || isClaim(call)
}

function isSettle(call: Call): call is StraightSettle {
  return call.to === 'straight settle'
}

function isClaim(call: Call): call is StraightClaim {
  return call.to === 'straight claim'
}

// Above READ COMMITTED our statements would fail on each other by the dozen, for a strictness that they do not need: they lock
// what they write, and read it after the lock.
function readCommitted({ isolation }: PostgresFacts): readonly string[] {
  return isolation === 'read committed' ? [] : ['SET TRANSACTION ISOLATION LEVEL READ COMMITTED']
}

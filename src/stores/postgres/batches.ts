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
import { loneOperation, operateStatement, operationAsText } from './operate.ts'
import type { StraightAdvance, StraightEnlist, StraightOperation } from './operate.ts'
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

type Call = FunctionCall | StraightCall | StraightOperation

/** A call that shares its message with others of the same moment. Resolves to its line of text. */
export type Batched = (call: Call) => Promise<string>

export function batching<Client>(context: PostgresContext<Client>): Batched {
  const { clock, connections } = context
  const straight = straightWay(context)
  const dispatch = async (batch: readonly Call[]): Promise<readonly Reply[]> => {
    const facts = await context.ready(limited(connections))
    const goesStraight = context.protocol.binds && facts.isolation === 'read committed'
    const wayOf = (call: Call): Way => (goesStraight ? straightWayOf(call) : 'text')
    const ask: Ask = {
      text: (calls) => retried(clock, isPassing, () => runTogether(context, facts, calls.map(textOf))),
      keys: (calls) => retried(clock, isPassingStraight, () => straight.keys(calls as readonly StraightCall[])),
      operations: (calls) =>
        retried(clock, isPassingStraight, () => straight.operations(calls as readonly StraightOperation[])),
    }
    const replies: Reply[] = []
    for (const part of partsOf(batch, statementLengthMax)) {
      const way = wayOf(part[0]!)
      if (part.every((call) => wayOf(call) === way)) replies.push(...(await repliesOf(part, ask[way])))
      else replies.push(...(await askEach(part, wayOf, ask)))
    }
    return replies
  }
  const together = lane({ dispatch, batchMax, batchMin, dispatchesMax })
  // Large outcomes come one by one. Nobody who asks for something small waits behind them.
  const byItself = lane({ dispatch, batchMax: 1, dispatchesMax })
  return async (call) => {
    const answer = answerIn(await together(call))
    return answer === largeAnswer ? answerIn(await byItself(call)) : answer
  }
}

/** How a call goes to the server: one statement for those of each way. */
type Way = 'text' | 'keys' | 'operations'

function straightWayOf(call: Call): Way {
  return isSettle(call) || isClaim(call) ? 'keys' : isOperation(call) ? 'operations' : 'text'
}

type Ask = Readonly<Record<Way, (calls: readonly Call[]) => Promise<readonly string[]>>>

/** A line of text, or why there is none. */
type Reply = string | { readonly error: unknown }

function answerIn(reply: Reply): string {
  if (typeof reply !== 'string') throw reply.error
  return reply
}

/** Calls that commit together. When they fail, what others of their batch have committed is still told to those. */
async function repliesOf(calls: readonly Call[], ask: Ask[Way]): Promise<readonly Reply[]> {
  try {
    return await ask(calls)
  } catch (error) {
    return calls.map(() => ({ error }))
  }
}

/** Calls of several ways, one way after the other. */
async function askEach(calls: readonly Call[], wayOf: (call: Call) => Way, ask: Ask): Promise<readonly Reply[]> {
  const told = new Map<Call, Reply>()
  for (const way of ['text', 'keys', 'operations'] as const) {
    const own = calls.filter((call) => wayOf(call) === way)
    const replies = own.length > 0 ? await repliesOf(own, ask[way]) : []
    own.forEach((call, index) => told.set(call, replies[index]!))
  }
  return calls.map((call) => told.get(call)!)
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

interface StraightWay {
  keys(calls: readonly StraightCall[]): Promise<readonly string[]>
  operations(calls: readonly StraightOperation[]): Promise<readonly string[]>
}

// A statement that has a name is parsed and planned once per connection.
function straightWay<Client>({ names, connections, protocol }: PostgresContext<Client>): StraightWay {
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
  return {
    async keys(calls) {
      if (calls.length === 1) return [await run(loneStatement(names, calls[0]!))]
      const settles = calls.filter(isSettle)
      const claims = settles.length === calls.length ? [] : calls.filter(isClaim)
      const answers = answersOf(await run(togetherStatement(names, settles, claims)), settles.length, claims.length)
      return inOrder(calls, isSettle, answers, settles.length)
    },
    async operations(calls) {
      if (calls.length === 1) return [await run(loneOperation(names, calls[0]!))]
      const advances = calls.filter(isAdvance)
      const enlists = advances.length === calls.length ? [] : calls.filter(isEnlist)
      const answers = answersOf(await run(operateStatement(names, advances, enlists)), advances.length, enlists.length)
      return inOrder(calls, isAdvance, answers, advances.length)
    },
  }
}

/** What one statement answered, first to the calls that it carries out first, in the order of the calls. */
function inOrder<Call>(
  calls: readonly Call[],
  isFirst: (call: Call) => boolean,
  answers: readonly string[],
  firsts: number,
): readonly string[] {
  if (firsts === 0 || firsts === calls.length) return answers
  let [first, second] = [0, firsts]
  return calls.map((call) => answers[isFirst(call) ? first++ : second++]!)
}

function isSettle(call: Call): call is StraightSettle {
  return call.to === 'straight settle'
}

function isClaim(call: Call): call is StraightClaim {
  return call.to === 'straight claim'
}

function isOperation(call: Call): call is StraightOperation {
  return isAdvance(call) || isEnlist(call)
}

function isAdvance(call: Call): call is StraightAdvance {
  return call.to === 'straight advance'
}

function isEnlist(call: Call): call is StraightEnlist {
  return call.to === 'straight enlist'
}

/** The same call for a client that sends text. */
function textOf(call: Call): FunctionCall {
  return isOperation(call) ? operationAsText(call) : asText(call)
}

// Above READ COMMITTED our statements would fail on each other by the dozen, for a strictness that they do not need: they lock
// what they write, and read it after the lock.
function readCommitted({ isolation }: PostgresFacts): readonly string[] {
  return isolation === 'read committed' ? [] : ['SET TRANSACTION ISOLATION LEVEL READ COMMITTED']
}

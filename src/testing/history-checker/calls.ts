// Compares the answers of clients with what the ledger and the store show. A key has one answer, with its effect behind it, and
// never another's. "Not executed" is said only when nothing was left. Every client has its answer in the end.

import { keyString } from '../../core/key.ts'
import { isGrant } from './audit.ts'
import type { CallRecord, ExecutionRecord, History } from './history.ts'
import type { Violation } from './violation.ts'

/** The life of a key that a token belongs to: `forgotten and claimed anew` is another life. */
export interface Lives {
  of(token: string): string | undefined
  settledAtMs(life: string): number | undefined
}

export function livesOf({ changes, operations }: History): Lives {
  const ordinals = new Map<string, number>()
  const lives = new Map<string, string>()
  const settled = new Map<string, number>()
  for (const change of changes) {
    const { key, after, atMs, by } = change
    if (!after) continue
    if (isGrant(change, by === undefined ? undefined : operations[by])) {
      if (after.attempt === 1) ordinals.set(key, (ordinals.get(key) ?? 0) + 1)
      // A claim that is delivered once more long after its life brings its token into another life, where no process uses it. A grant that
      // nobody was told of was used by no process either, and its token may be granted for use after it.
      if (!change.untold && !lives.has(after.token)) lives.set(after.token, `${key} ${ordinals.get(key) ?? 0}`)
    }
    // What a person resolves is the life that the key has now, whoever holds it.
    const isByHand = by !== undefined && operations[by]?.call === 'mend'
    const life = isByHand ? `${key} ${ordinals.get(key) ?? 0}` : lives.get(after.token)
    if (life && after.wrote === 'settle' && !settled.has(life)) settled.set(life, atMs)
  }
  return { of: (token) => lives.get(token), settledAtMs: (life) => settled.get(life) }
}

type Report = (violation: Violation) => void
type Answered = CallRecord & { readonly answer: { readonly is: 'value' | 'failure' } }

const isAnswered = (call: CallRecord): call is Answered => call.answer?.is === 'value' || call.answer?.is === 'failure'

export function checkCalls(history: History, lives: Lives, report: Report): void {
  const { calls, executions } = history
  const firstAnswers = new Map<string, Answered>()
  const effects = countEffects(history)
  for (const call of calls) {
    if (isAnswered(call)) {
      const execution = executions[call.answer.execution]
      if (!execution) fail(call, 'own-answer', 'was told of an execution that never was')
      else {
        checkAnswer(call, execution, effects.get(call.answer.execution) ?? 0, lives, report)
        checkSameAnswer(firstAnswers, call, lives.of(execution.token), report)
      }
    }
    if (call.answer?.is === 'stray') fail(call, 'typed-errors', `was told "${call.answer.message}"`)
    if (!call.answer && !call.died) fail(call, 'everybody-answered', 'was never answered')
  }
  checkNotExecuted(history, effects, report)

  function fail(call: CallRecord, assertion: Violation['assertion'], what: string): void {
    report({ assertion, key: keyString(call.key), message: `${describeCall(call)} ${what}` })
  }
}

export function describeCall(call: CallRecord): string {
  return `${call.process}, asking for ${call.key.scope}/${call.key.id} (${call.asked}) at ${Math.round(call.startedAtMs)} ms,`
}

function checkAnswer(call: Answered, execution: ExecutionRecord, effects: number, lives: Lives, report: Report): void {
  const fail = (assertion: Violation['assertion'], what: string): void =>
    report({ assertion, key: keyString(call.key), message: `${describeCall(call)} ${what}` })
  const asked = execution.call
  if (keyString(asked.key) !== keyString(call.key) || asked.asked !== call.asked) {
    fail('own-answer', `was given the answer to ${asked.key.scope}/${asked.key.id} (${asked.asked})`)
  }
  if (call.answer.is === 'value' && effects !== 1) {
    fail(
      'answer-has-effect',
      `was told of execution ${call.answer.execution}, whose effect took place ${effects} times`,
    )
  }
  if (call.answer.is === 'failure' && asked.how === 'transaction' && effects > 0) {
    fail('transaction-once', 'was told of a failure, and what it wrote was committed')
  }
  const life = lives.of(execution.token)
  const settledAtMs = life === undefined ? undefined : lives.settledAtMs(life)
  if (settledAtMs === undefined || settledAtMs > (call.endedAtMs ?? Infinity)) {
    fail('answer-after-settle', 'was answered before the outcome was settled')
  }
}

function checkSameAnswer(first: Map<string, Answered>, call: Answered, life: string | undefined, report: Report): void {
  if (life === undefined) return
  const earlier = first.get(life)
  if (!earlier) return void first.set(life, call)
  if (earlier.answer.is === call.answer.is && earlier.answer.text === call.answer.text) return
  report({
    assertion: 'same-answer',
    key: keyString(call.key),
    message: `${describeCall(call)} was told ${call.answer.text}, and ${earlier.process} had been told ${earlier.answer.text}`,
  })
}

function countEffects({ effects }: History): Map<number, number> {
  const counts = new Map<number, number>()
  for (const { execution } of effects) counts.set(execution, (counts.get(execution) ?? 0) + 1)
  return counts
}

function checkNotExecuted({ executions }: History, effects: ReadonlyMap<number, number>, report: Report): void {
  for (const [index, { call }] of executions.entries()) {
    if (call.answer?.is !== 'refused' || call.answer.executed !== 'no' || !effects.get(index)) continue
    report({
      assertion: 'not-executed-left-nothing',
      key: keyString(call.key),
      message: `${describeCall(call)} was told ${call.answer.code}, not executed, and execution ${index} left its effect`,
    })
  }
}

// Judges a history. It knows the guarantees and nothing of how they are kept. It compares the clients' log, the ledger, the audit
// trail and the store operations with each other and with the contract. docs/guarantees.md says which guarantee each assertion is
// about.

import { keyString } from '../core/key.ts'
import { checkAudit } from './history-checker/audit.ts'
import { checkCalls, describeCall, livesOf } from './history-checker/calls.ts'
import { checkExecutions } from './history-checker/executions.ts'
import type { CallRecord, History, StoreOperation } from './history-checker/history.ts'
import { isLinearizable } from './history-checker/linearizable.ts'
import type { LinearizableOptions } from './history-checker/linearizable.ts'
import type { Violation } from './history-checker/violation.ts'

export { checkAudit, phaseOf, tokenOf } from './history-checker/audit.ts'
export { checkCalls, livesOf } from './history-checker/calls.ts'
export type { Lives } from './history-checker/calls.ts'
export { checkExecutions } from './history-checker/executions.ts'
export { emptyHistory, recordAnswer } from './history-checker/history.ts'
export type {
  Asked,
  CallAnswer,
  CallRecord,
  EffectRecord,
  ExecutionRecord,
  History,
  HistoryRow,
  RowChange,
  StoreOperation,
} from './history-checker/history.ts'
export { isLinearizable } from './history-checker/linearizable.ts'
export { tellStory } from './history-checker/story.ts'
export type { Line } from './history-checker/story.ts'
export { assertions } from './history-checker/violation.ts'
export type { Assertion, Violation } from './history-checker/violation.ts'

export interface CheckOptions extends LinearizableOptions {
  /** `calm`: nothing went wrong in the world, so nothing may be lost and no client refused. Default faulty. */
  readonly weather?: 'calm' | 'faulty'
  /** The caller ignores an answer of the store that comes later than this. Default: it ignores none. */
  readonly storeTimeoutMs?: number
}

/**
 * Returns what a history breaks: the guarantee, the key and the reason. An empty list means that the run kept every promise.
 *
 * @example
 * import { checkHistory, emptyHistory } from 'onceonly/testing'
 *
 * const history = emptyHistory()
 * // The calls of a run, its executions and its effects are recorded here.
 * for (const { assertion, key, message } of checkHistory(history)) console.log(assertion, key, message)
 */
export function checkHistory(history: History, options: CheckOptions = {}): Violation[] {
  const violations: Violation[] = []
  const report = (violation: Violation): void => void violations.push(violation)
  const lives = livesOf(history)
  checkAudit(history, report)
  checkCalls(history, lives, report)
  checkExecutions(history, lives, options.storeTimeoutMs ?? Infinity, report)
  checkLinearizable(history, options, report)
  checkEnds(history, report)
  if (options.weather === 'calm') checkCalm(history, report)
  return violations
}

/** The store's part alone: its rows and its answers, whatever the calls were for. */
export function checkStore(history: History, options: CheckOptions = {}): Violation[] {
  const violations: Violation[] = []
  checkAudit(history, (violation) => violations.push(violation))
  checkLinearizable(history, options, (violation) => violations.push(violation))
  return violations
}

function checkLinearizable(history: History, options: CheckOptions, report: (violation: Violation) => void): void {
  const byKey = new Map<string, StoreOperation[]>()
  for (const operation of history.operations) {
    if (operation.call === 'sweep' || operation.call === 'look') continue
    const operations = byKey.get(operation.key)
    if (operations) operations.push(operation)
    else byKey.set(operation.key, [operation])
  }
  for (const [key, operations] of byKey) {
    const found = isLinearizable(operations, options)
    if (found.is !== 'no') continue
    const stuck = found.stuck.map(describeOperation).join(' or ')
    const message = `after ${found.fit.length} operations that fit together, none of these could follow: ${stuck}`
    report({ assertion: 'linearizable', key, message })
  }
}

export function describeOperation(operation: StoreOperation): string {
  const { answer } = operation
  const told = typeof answer === 'object' ? ('is' in answer ? answer.is : 'done') : (answer ?? 'nothing')
  return `${operation.call} of ${operation.process}, sent at ${Math.round(operation.sentAtMs)} ms, answered ${told}`
}

/** After the last fault, a key that a client asks for must end. */
export function checkEnds({ calls }: History, report: (violation: Violation) => void): void {
  const last = new Map<string, CallRecord>()
  for (const call of calls) if (call.phase === 'last') last.set(keyString(call.key), call)
  for (const [key, call] of last) {
    const { answer } = call
    const ended = answer?.is === 'value' || answer?.is === 'failure'
    if (ended || (answer?.is === 'refused' && answer.code === 'EXPIRED')) continue
    const told = answer?.is === 'refused' ? answer.code : (answer?.is ?? 'nothing')
    report({ assertion: 'no-wedge', key, message: `${describeCall(call)} the last time, was told ${told}` })
  }
}

function checkCalm(history: History, report: (violation: Violation) => void): void {
  const executed = new Map<string, number>()
  for (const { call } of history.executions) {
    const key = keyString(call.key)
    executed.set(key, (executed.get(key) ?? 0) + 1)
  }
  for (const call of history.calls) {
    const key = keyString(call.key)
    const fail = (what: string): void =>
      report({ assertion: 'calm-is-free', key, message: `${describeCall(call)} ${what}` })
    if (executed.get(key) !== 1) fail(`asked for a key that was executed ${executed.get(key) ?? 0} times`)
    const { answer } = call
    if (answer?.is !== 'refused' || isRealOverlap(history, call, answer.code)) continue
    fail(`was told ${answer.code} without need`)
  }
  const settled = new Set<string>()
  for (const operation of history.operations) {
    if (operation.call === 'settle' && operation.answer === 'done') settled.add(operation.token)
  }
  for (const operation of history.operations) {
    if (operation.answer !== 'lost' && operation.call !== 'release') continue
    // An extension that its attempt's settle has overtaken finds nothing to extend.
    if (operation.call === 'extend' && settled.has(operation.token)) continue
    report({ assertion: 'calm-is-free', key: operation.key, message: describeOperation(operation) })
  }
}

/** A caller waits by its own clock, which may be faster than the one of the history by this. */
const driftMax = 0.001

function isRealOverlap(history: History, call: CallRecord, code: string): boolean {
  const endedAtMs = call.endedAtMs ?? Infinity
  if (code !== 'IN_FLIGHT' || endedAtMs - call.startedAtMs < call.waitMs / (1 + driftMax)) return false
  return history.calls.some(
    (other) =>
      other !== call &&
      keyString(other.key) === keyString(call.key) &&
      other.startedAtMs <= endedAtMs &&
      (other.endedAtMs ?? Infinity) >= call.startedAtMs,
  )
}

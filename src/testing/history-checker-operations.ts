// Judges a history of operations: what their steps did, in which order, and where they ended. It is told by the steps
// themselves, by the ledger of the outside systems and by the audit trail of what was recorded, and knows nothing of how
// operations are carried out.

import type { StepState } from '../core/operation-records.ts'
import { tokenOf } from './history-checker-audit.ts'
import type { History } from './history-checker-history.ts'
import type { Assertion, Violation } from './history-checker-violation.ts'
import type { OutsideEffect } from './simulation-outside.ts'
import type { OperationChange } from './simulation-server.ts'

export interface OperationHistory {
  /** What was asked of the store, and its rows. */
  readonly store: History
  readonly operations: OperationRecord[]
  readonly invocations: Invocation[]
  readonly ledger: readonly OutsideEffect[]
  readonly records: OperationChange[]
  readonly answers: OperationAnswer[]
}

/** An operation as it was planned. */
export interface OperationRecord {
  /** As `keyString` writes it. */
  readonly key: string
  readonly steps: readonly StepPlan[]
  /** When all is over; absent for an operation that was never enlisted. */
  end?: { readonly state: string; readonly text: string; readonly results: Readonly<Record<string, unknown>> }
  /** What was shown of it while it was parked, if that was anything else. */
  shownAs?: string
}

export interface StepPlan {
  readonly name: string
  /** Steps of one stage run at once. */
  readonly stage: number
  readonly kind: 'keyed' | 'asked' | 'deaf' | 'transaction'
  readonly undoable: boolean
  readonly pivot: boolean
}

/** The function of a step, of its undo or of its lookup that was called, and by whom. */
export interface Invocation {
  readonly operation: string
  readonly step: string
  readonly does: 'run' | 'undo' | 'lookup'
  readonly process: string
  readonly token: string
  readonly atMs: number
  /** So many changes of records had been made by then. */
  readonly recordsSeen: number
  /** Whether the token was that of the entry's holder. */
  readonly isHolder: boolean
  ended?: string
}

export interface OperationAnswer {
  readonly operation: string
  readonly how: 'run' | 'start' | 'cancel'
  readonly process: string
  readonly startedAtMs: number
  endedAtMs?: number
  /** Nothing when the process died. */
  is?: 'value' | 'failure' | 'refused' | 'threw' | 'stray'
  text?: string
}

/** Where in the ledger the effects of a step and of its undo are found. */
export function subjectOf(operation: string, step: string): string {
  return `${operation}\n${step}`
}

type Report = (assertion: Assertion, message: string) => void

export function checkOperations(history: OperationHistory): Violation[] {
  const violations: Violation[] = []
  for (const operation of history.operations) {
    const report: Report = (assertion, message) => violations.push({ assertion, key: operation.key, message })
    const trail = trailOf(history, operation.key, report)
    for (const invocation of history.invocations) {
      if (invocation.operation !== operation.key || invocation.does === 'lookup') continue
      checkInvocation(operation, invocation, trail, report)
    }
    checkEffects(history, operation, report)
    checkEnd(history, operation, trail, report)
    checkAnswers(history, operation, report)
  }
  return violations
}

/** What was recorded of one name of an operation at one time. */
interface Recorded extends RecordHead {
  /** The number of the change among all. */
  readonly at: number
  readonly token: string | undefined
  readonly name: string
  readonly isCancelled: boolean
}

export interface RecordHead {
  readonly state?: StepState
  readonly direction?: 'forward' | 'backward'
}

const courseName = ''

/** What was written, one after the other: each by the holder, and each where it may follow. */
function trailOf(history: OperationHistory, key: string, report: Report): Recorded[] {
  const trail: Recorded[] = []
  const heads = new Map<string, RecordHead>()
  history.records.forEach((change, at) => {
    if (change.key !== key) return
    const by = change.by === undefined ? undefined : history.store.operations[change.by]
    const token = by && tokenOf(by)
    for (const name of heads.keys()) {
      if (!change.after?.records.has(name)) report('records-in-order', `what was recorded of "${name}" is gone`)
    }
    for (const [name, head] of newRecords(change)) {
      checkRecord(name, heads.get(name), head, report)
      if (token !== change.holder) report('record-by-holder', `"${name}" was recorded by one who did not hold the key`)
      heads.set(name, head)
      trail.push({ ...head, at, token, name, isCancelled: change.after?.cancelReason !== undefined })
    }
  })
  return trail
}

/** The records that a change brought, by name. */
export function newRecords({ before, after }: OperationChange): [string, RecordHead][] {
  const found: [string, RecordHead][] = []
  for (const [name, { revision, content }] of after?.records ?? []) {
    const known = before?.records.get(name)
    if (known?.revision !== revision || known.content !== content) found.push([name, recordHead(content)])
  }
  return found
}

/** A record is a line of JSON, and what the step came to after it. */
export function recordHead(content: Uint8Array): RecordHead {
  return JSON.parse(Buffer.from(content.subarray(0, content.indexOf(newline))).toString()) as RecordHead
}

const newline = 10

const following: Readonly<Record<StepState | 'none', readonly StepState[]>> = {
  none: ['began', 'done'],
  began: ['began', 'done', 'failed', 'absent', 'undoing', 'undone', 'stuck'],
  done: ['undoing', 'undone', 'stuck'],
  failed: ['began', 'done'],
  absent: ['began', 'done'],
  undoing: ['undoing', 'undone', 'stuck'],
  stuck: ['undoing', 'undone', 'stuck'],
  undone: [],
}

function checkRecord(name: string, before: RecordHead | undefined, after: RecordHead, report: Report): void {
  if (name === courseName) {
    const isTurned = before?.direction === 'backward' && after.direction === 'forward'
    if (isTurned) report('records-in-order', 'it went back, and then forward')
  } else if (!following[before?.state ?? 'none'].includes(after.state!)) {
    report('records-in-order', `step "${name}" was ${before?.state ?? 'not there'} and became ${after.state}`)
  }
}

function checkInvocation(operation: OperationRecord, invocation: Invocation, trail: Recorded[], report: Report): void {
  const { step: name, does, token, recordsSeen, isHolder } = invocation
  const seen = (of: string): Recorded | undefined => trail.findLast((each) => each.name === of && each.at < recordsSeen)
  const step = operation.steps.find((each) => each.name === name)!
  const last = seen(name)
  const who = `${does === 'run' ? '' : 'the undo of '}"${name}" was called by ${invocation.process} at ${Math.round(invocation.atMs)} ms`
  const isBackward = seen(courseName)?.direction === 'backward'
  if (isBackward !== (does === 'undo') && isHolder) report('forward-or-back', `${who}, the wrong way`)
  // Who has lost the key meanwhile cannot know what became of the step since.
  const isOver = last?.state === 'undone' || (does === 'run' && last?.state === 'done')
  if (isHolder && isOver) report('step-not-again', `${who}, and it was ${last.state}`)
  if (does === 'undo') return checkUndo(operation, step, trail, recordsSeen, who, report)
  if (step.kind === 'transaction') return
  const began = trail.findLast((each) => each.name === name && each.token === token && each.at < recordsSeen)
  if (began?.state !== 'began') report('began-before-run', `${who}, and that it begins was not recorded`)
  const isPastPivot = operation.steps.some((each) => each.pivot && mayHaveRun(seen(each.name)?.state))
  if (began?.isCancelled && !isPastPivot)
    report('cancel-heard', `${who}, after somebody had asked for it to be cancelled`)
}

function mayHaveRun(state: StepState | undefined): boolean {
  return state !== undefined && state !== 'failed' && state !== 'absent'
}

function checkUndo(
  operation: OperationRecord,
  step: StepPlan,
  trail: Recorded[],
  recordsSeen: number,
  who: string,
  report: Report,
): void {
  const before = trail.filter((each) => each.at < recordsSeen)
  const began = before.some(({ name, state }) => name === step.name && (state === 'began' || state === 'done'))
  if (!began) report('undo-needed', `${who}, and it never began`)
  for (const later of operation.steps) {
    if (!later.undoable || later.stage <= step.stage) continue
    const state = before.findLast(({ name }) => name === later.name)?.state
    const isOwed = state === 'began' || state === 'done' || state === 'undoing'
    if (isOwed) report('undo-in-reverse', `${who}, and "${later.name}", which came later, was ${state}`)
  }
}

function effectsOf(
  { ledger }: OperationHistory,
  operation: string,
  step: string,
  does: 'run' | 'undo',
): OutsideEffect[] {
  const subject = subjectOf(operation, step)
  return ledger.filter((effect) => effect.subject === subject && effect.does === does)
}

/** What the promise says of each kind of system: one that can be asked must stand by what it says. */
function checkEffects(history: OperationHistory, { key, steps }: OperationRecord, report: Report): void {
  for (const { name, kind } of steps) {
    const runs = effectsOf(history, key, name, 'run').filter(({ isOvertaken }) => !isOvertaken)
    const undos = effectsOf(history, key, name, 'undo')
    if (runs.length > 1) report('step-once', `"${name}" (${kind}) took effect ${runs.length} times`)
    if (undos.length > 1) report('undo-once', `the undo of "${name}" (${kind}) took effect ${undos.length} times`)
  }
}

function checkEnd(history: OperationHistory, operation: OperationRecord, trail: Recorded[], report: Report): void {
  const { key, steps, end, shownAs } = operation
  if (shownAs !== undefined) report('parked-visible', `it is parked, and is shown as ${shownAs}`)
  const isOver = end?.state === 'completed' || end?.state === 'failed'
  // A claim that nobody heard of is taken back, and nothing has begun then.
  const hasBegun = history.invocations.some((each) => each.operation === key)
  if (!isOver && (hasBegun || end)) report('operation-ends', `it is ${end?.state ?? 'gone'} when all is over`)
  for (const { name, undoable } of steps) {
    const runs = effectsOf(history, key, name, 'run')
    const undos = effectsOf(history, key, name, 'undo')
    if (end?.state === 'completed') {
      if (runs.length === 0) report('ends-whole', `it is completed, and "${name}" never took effect`)
      if (undos.length > 0) report('ends-whole', `it is completed, and "${name}" was undone`)
      const result = history.ledger[end.results[name] as number]
      if (!result || !runs.includes(result)) report('ends-whole', `the result of "${name}" is not what it came to`)
    } else if (end?.state === 'failed' && undoable) {
      const isThere = runs.some(({ isOvertaken }) => !isOvertaken)
      if (isThere && undos.length === 0) report('ends-whole', `it failed, and "${name}" was not undone`)
    }
  }
  const last = trail.findLast(({ name }) => name === courseName)
  const isStuck = steps.some(({ name }) => trail.findLast((each) => each.name === name)?.state === 'stuck')
  if (end?.state === 'failed' && (isStuck || last?.direction !== 'backward')) {
    report('ends-whole', isStuck ? 'it failed, and an undo is stuck' : 'it failed without having gone back')
  }
}

function checkAnswers(history: OperationHistory, { key, end }: OperationRecord, report: Report): void {
  for (const { operation, how, process, is, text } of history.answers) {
    if (operation !== key) continue
    if (is === 'stray') report('typed-errors', `${process} was told "${text}"`)
    if (how !== 'run' || (is !== 'value' && is !== 'failure')) continue
    const expected = is === 'value' ? 'completed' : 'failed'
    if (end?.state !== expected || end.text !== text) {
      report('same-answer', `${process} was told the ${is} ${text}, and it came to ${end?.state}: ${end?.text}`)
    }
  }
}

// Judges a history of operations: what their steps did, in which order, and where they ended. It reads what the steps themselves
// report, the ledger of the outside systems and the audit trail of what was recorded, and knows nothing of how operations are
// carried out.

import { fingerprint } from '../../../../src/core/fingerprint.ts'
import type { StepState } from '../../../../src/core/operations.ts'
import type { MemoryOperation } from '../../../../src/stores/memory.ts'
import { phaseOf, tokenOf } from '../../../../src/testing/history-checker.ts'
import type { Assertion, History, Violation } from '../../../../src/testing/history-checker.ts'
import type { OutsideEffect } from '../outside.ts'
import type { OperationChange } from '../server.ts'

export interface OperationHistory {
  /** What was asked of the store, and its rows. */
  readonly store: History
  readonly operations: OperationRecord[]
  readonly invocations: Invocation[]
  readonly ledger: readonly OutsideEffect[]
  readonly records: OperationChange[]
  readonly answers: OperationAnswer[]
}

/** One life of an operation, as it was planned: an operation that expired, or that a person forgot, may be asked for again. */
export interface OperationRecord {
  /** As `keyString` writes it. */
  readonly key: string
  /** From 1 on, and the fence with which it began. */
  readonly life: number
  readonly lifeFence: number
  readonly steps: readonly StepPlan[]
  /** Its result, or its state at the end of the run. */
  end?: OperationEnd
  /** A person forgot it: no process will finish it. */
  isForgotten?: boolean
  /** A person has given it a result: what its steps did is that person's affair. */
  isResolved?: boolean
  /** A worker has found that no caller asked for it: nothing of it is kept. */
  isDiscarded?: boolean
  /** The code has changed so that no process can finish it, and it must be shown as parked. */
  isLeft?: boolean
  /** What was shown of it while it was parked, if that was anything else. */
  shownAs?: string
}

export interface OperationEnd {
  readonly state: string
  readonly text: string
  readonly results: Readonly<Record<string, unknown>>
  readonly atMs: number
}

export interface StepPlan {
  readonly name: string
  /** The versions of the code that ask for it. */
  readonly versions: readonly number[]
  /** Steps of one stage run at once. */
  readonly stage: number
  readonly kind: 'keyed' | 'asked' | 'deaf' | 'transaction'
  readonly undoable: boolean
  readonly pivot: boolean
}

/** The function of a step, of its undo or of its lookup that was called, and by which process. */
export interface Invocation {
  readonly operation: string
  readonly life: number
  /** Of the code that called it, and what it was asked with. */
  readonly version: number
  readonly asked: string | undefined
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
  readonly how: 'run' | 'start' | 'cancel' | 'resume'
  readonly process: string
  readonly startedAtMs: number
  endedAtMs?: number
  /** The process died before it could answer. */
  died?: true
  is?: 'value' | 'failure' | 'refused' | 'threw' | 'stray'
  text?: string
}

/** Where in the ledger the effects of a step and of its undo are found. */
export function subjectOf({ key, life }: Pick<OperationRecord, 'key' | 'life'>, step: string): string {
  return `${key}\n${step}${life > 1 ? `\nlife ${life}` : ''}`
}

type Report = (assertion: Assertion, message: string) => void

export function checkOperations(history: OperationHistory): Violation[] {
  const violations: Violation[] = []
  for (const operation of history.operations) {
    const report: Report = (assertion, message) => violations.push({ assertion, key: operation.key, message })
    const trail = trailOf(history, operation, report)
    for (const invocation of history.invocations) {
      if (!isOf(operation, invocation) || invocation.does === 'lookup') continue
      checkInvocation(operation, invocation, trail, report)
    }
    checkAskedFor(history, operation, report)
    checkPivot(trail, report)
    checkStuck(history, operation, trail, report)
    checkDeaths(history, trail, report)
    checkParked(history, operation, report)
    checkEffects(history, operation, report)
    checkEnd(history, operation, trail, report)
  }
  checkAnswers(history, (violation) => violations.push(violation))
  return violations
}

/** What runs, a caller has asked for. A worker goes on with what is there. */
function checkAskedFor(history: OperationHistory, life: OperationRecord, report: Report): void {
  if (!history.invocations.some((each) => isOf(life, each)) || isAskedFor(history, life)) return
  report('asked-for', `life ${life.life} of it ran, and no caller had asked for it`)
}

/** Only a caller's claim brings an input. */
function isAskedFor({ store, operations }: OperationHistory, { key, life, lifeFence }: OperationRecord): boolean {
  const next = operations.find((each) => each.key === key && each.life === life + 1)
  return store.operations.some((each) => {
    if (each.call !== 'claim' || each.key !== key || !each.request.input || each.answer?.is !== 'granted') return false
    const { fence } = each.answer.claim
    return fence >= lifeFence && fence < (next?.lifeFence ?? Infinity)
  })
}

function isOf({ key, life }: OperationRecord, invocation: Invocation): boolean {
  return invocation.operation === key && invocation.life === life
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
  readonly fingerprint?: string
  readonly direction?: 'forward' | 'backward'
  readonly version?: number
  readonly failuresBack?: number
  readonly interruptions?: number
  readonly lastError?: string
  readonly parked?: string
  readonly pivot?: true
}

const courseName = ''

/** What was written, one after the other: each by the holder, and each where it may follow. */
function trailOf(history: OperationHistory, { key, lifeFence }: OperationRecord, report: Report): Recorded[] {
  const trail: Recorded[] = []
  const heads = new Map<string, RecordHead>()
  history.records.forEach((change, at) => {
    const { before, after, entry } = change
    if (change.key !== key || (after ?? before)?.lifeFence !== lifeFence) return
    if (!after) return checkRemoval(history, change, report)
    const by = change.by === undefined ? undefined : history.store.operations[change.by]
    const token = by && tokenOf(by)
    if (by?.call === 'claim' && before?.lifeFence === lifeFence && isParked(before) && !isParked(after)) {
      report('parked-stays', `it was parked, and is due because ${by.process} has claimed it`)
    }
    for (const name of heads.keys()) {
      if (!after.records.has(name)) report('records-in-order', `what was recorded of "${name}" is gone`)
    }
    for (const [name, head] of newRecords(change)) {
      checkRecord(name, heads.get(name), head, report)
      if (token !== entry?.token) report('record-by-holder', `"${name}" was recorded by one who did not hold the key`)
      heads.set(name, head)
      trail.push({ ...head, at, token, name, isCancelled: after.cancelReason !== undefined })
    }
  })
  return trail
}

/** What is recorded goes with its entry: when a person forgets it, or when its retention has passed. */
function checkRemoval({ store }: OperationHistory, { by, entry, atMs }: OperationChange, report: Report): void {
  const operation = by === undefined ? undefined : store.operations[by]
  const phase = phaseOf(entry, atMs)
  if (phase === 'absent' || phase === 'tombstone' || operation?.call === 'mend') return
  report('records-kept', `what was recorded is gone, and its entry is ${phase} (at ${atMs} ms)`)
}

function isParked({ settled, dueAtMs }: MemoryOperation): boolean {
  return !settled && dueAtMs === undefined
}

/** Only a pivot that may have taken effect bars the way back. */
function checkPivot(trail: readonly Recorded[], report: Report): void {
  trail.forEach(({ name, parked }, index) => {
    if (name !== courseName || !parked?.includes('is past its pivot')) return
    const before = trail.slice(0, index + 1)
    const isPassed = before.some((each, at) => {
      const isLast = before.findLastIndex((other) => other.name === each.name) === at
      return each.pivot && isLast && mayHaveRun(each.state)
    })
    if (!isPassed) report('forward-or-back', 'it was parked as past its pivot, and no pivot may have taken effect')
  })
}

/** Only an undo that was tried, by the attempt that says so, can be stuck. Code that has changed may not know it any more. */
function checkStuck(
  { invocations }: OperationHistory,
  operation: OperationRecord,
  trail: readonly Recorded[],
  report: Report,
): void {
  const isChanged = new Set(trail.flatMap(({ version }) => version ?? [])).size > 1
  for (const { name, state, token, at } of isChanged ? [] : trail) {
    if (state !== 'stuck') continue
    const isTried = invocations.some(
      (each) => isOf(operation, each) && each.step === name && each.does === 'undo' && each.token === token,
    )
    if (!isTried)
      report('undo-tried', `the undo of "${name}" was recorded as stuck (change ${at}), and was never called`)
  }
}

/** What died on the way back leads to parking, so an attempt counts the one that it took over from, once, and nothing else. */
function checkDeaths({ store }: OperationHistory, trail: readonly Recorded[], report: Report): void {
  const takeovers = new Set(
    store.operations.flatMap((each) =>
      each.call === 'claim' && each.answer?.is === 'granted' && each.answer.how === 'taken-over'
        ? [each.answer.claim.token]
        : [],
    ),
  )
  let known = 0
  for (const { name, failuresBack = 0, token, at } of trail) {
    if (name !== courseName) continue
    if (failuresBack > known && !takeovers.delete(token!))
      report('deaths-counted', `${failuresBack} deaths on the way back were recorded (change ${at}), and none was seen`)
    known = failuresBack
  }
}

/** A parked operation waits: a process that looks at it gives it back, and runs nothing. */
function checkParked({ records, invocations }: OperationHistory, operation: OperationRecord, report: Report): void {
  for (const invocation of invocations) {
    if (!isOf(operation, invocation) || !invocation.isHolder) continue
    const last = records.findLast(({ key }, at) => key === operation.key && at < invocation.recordsSeen)?.after
    if (last && isParked(last))
      report('parked-stays', `${describeInvocation(invocation)}, and the operation was parked`)
  }
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

/** A record is a line of JSON, and after it the result of the step. */
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
  const who = describeInvocation(invocation)
  const course = seen(courseName)
  const isBackward = course?.direction === 'backward'
  if (isHolder && (course?.version ?? 0) > invocation.version) {
    report(
      'newer-untouched',
      `${who} of version ${invocation.version}, and version ${course?.version} had worked on it`,
    )
  }
  if (isBackward !== (does === 'undo') && isHolder) report('forward-or-back', `${who}, the wrong way`)
  // A process that has lost the key meanwhile cannot know what became of the step since.
  const isOver = last?.state === 'undone' || (does === 'run' && last?.state === 'done')
  if (isHolder && isOver) report('step-not-again', `${who}, and it was ${last.state}`)
  if (isHolder && does === 'run') checkAsked(invocation, last, who, report)
  if (does === 'undo') {
    const before = trail.filter((each) => each.at < recordsSeen)
    // A zombie has not seen what another attempt took up again since.
    const own = before.findLastIndex((each) => each.token === token)
    const known = isHolder || own < 0 ? before : before.slice(0, own + 1)
    return checkUndo(operation, step, known, who, report)
  }
  if (step.kind === 'transaction') return
  const began = trail.findLast((each) => each.name === name && each.token === token && each.at < recordsSeen)
  if (began?.state !== 'began') report('began-before-run', `${who}, and that it begins was not recorded`)
  const isPastPivot = operation.steps.some((each) => each.pivot && mayHaveRun(seen(each.name)?.state))
  if (began?.isCancelled && !isPastPivot)
    report('cancel-heard', `${who}, after somebody had asked for it to be cancelled`)
}

function describeInvocation({ does, step, process, atMs }: Invocation): string {
  return `${does === 'run' ? '' : `the ${does} of `}"${step}" was called by ${process} at ${Math.round(atMs)} ms`
}

/** A step that may have taken effect is run again with what it was asked with, or not at all. */
function checkAsked({ asked }: Invocation, last: Recorded | undefined, who: string, report: Report): void {
  if (!mayHaveRun(last?.state)) return
  const expected = asked === undefined ? undefined : fingerprint(asked)
  if (last?.fingerprint !== expected) report('step-as-asked', `${who} with ${asked ?? 'nothing'}, and not as before`)
}

function mayHaveRun(state: StepState | undefined): boolean {
  return state !== undefined && state !== 'failed' && state !== 'absent'
}

function checkUndo(
  operation: OperationRecord,
  step: StepPlan,
  before: readonly Recorded[],
  who: string,
  report: Report,
): void {
  // Code that has changed may have put a step in front of one that began before it.
  const beganAt = (of: string): number =>
    before.findIndex(({ name, state }) => name === of && (state === 'began' || state === 'done'))
  if (beganAt(step.name) < 0) report('undo-needed', `${who}, and it never began`)
  for (const later of operation.steps) {
    if (!later.undoable || later.stage === step.stage || beganAt(later.name) < beganAt(step.name)) continue
    const state = before.findLast(({ name }) => name === later.name)?.state
    const isOwed = state === 'began' || state === 'done' || state === 'undoing'
    if (isOwed) report('undo-in-reverse', `${who}, and "${later.name}", which came later, was ${state}`)
  }
}

function effectsOf(
  { ledger }: OperationHistory,
  operation: OperationRecord,
  step: string,
  does: 'run' | 'undo',
): OutsideEffect[] {
  const subject = subjectOf(operation, step)
  return ledger.filter((effect) => effect.subject === subject && effect.does === does)
}

/** What the promise says of each kind of system: one that can be asked must stand by what it says. */
function checkEffects(history: OperationHistory, operation: OperationRecord, report: Report): void {
  for (const { name, kind } of operation.steps) {
    const runs = effectsOf(history, operation, name, 'run').filter(({ isOvertaken }) => !isOvertaken)
    const undos = effectsOf(history, operation, name, 'undo')
    if (runs.length > 1) report('step-once', `"${name}" (${kind}) took effect ${runs.length} times`)
    if (undos.length > 1) report('undo-once', `the undo of "${name}" (${kind}) took effect ${undos.length} times`)
  }
}

function checkEnd(history: OperationHistory, operation: OperationRecord, trail: Recorded[], report: Report): void {
  const { steps, end, shownAs, isForgotten, isDiscarded, isLeft } = operation
  if (shownAs !== undefined) report('parked-visible', `it is parked, and is shown as ${shownAs}`)
  const isOver = end?.state === 'completed' || end?.state === 'failed' || (isLeft && end?.state === 'parked')
  if (isDiscarded && isAskedFor(history, operation))
    report('operation-ends', 'it was thrown away, and a caller had asked')
  // A claim whose answer was never heard is taken back, and nothing has begun then.
  const hasBegun = history.invocations.some((each) => isOf(operation, each))
  if (!isOver && !isForgotten && !isDiscarded && (hasBegun || end)) {
    report('operation-ends', `it is ${end?.state ?? 'gone'} when all is over`)
  }
  if (operation.isResolved) return
  const version = trail.findLast(({ name }) => name === courseName)?.version ?? 1
  for (const { name, undoable, versions } of steps) {
    const runs = effectsOf(history, operation, name, 'run')
    const undos = effectsOf(history, operation, name, 'undo')
    if (end?.state === 'completed') {
      if (undos.length > 0) report('ends-whole', `it is completed, and "${name}" was undone`)
      if (!versions.includes(version)) continue
      if (runs.length === 0) report('ends-whole', `it is completed, and "${name}" never took effect`)
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

/** Every caller gets the result that a life of the operation had by then. */
function checkAnswers({ answers, operations }: OperationHistory, report: (violation: Violation) => void): void {
  for (const { operation: key, how, process, is, text, endedAtMs = Infinity } of answers) {
    if (is === 'stray') report({ assertion: 'typed-errors', key, message: `${process} was told "${text}"` })
    if (how !== 'run' || (is !== 'value' && is !== 'failure')) continue
    const expected = is === 'value' ? 'completed' : 'failed'
    const ends = operations.flatMap((each) => (each.key === key && each.end ? [each.end] : []))
    if (ends.some((end) => end.state === expected && end.text === text && end.atMs <= endedAtMs)) continue
    const came = ends.map((end) => `${end.state}: ${end.text}`).join(', then ') || 'nothing'
    report({ assertion: 'same-answer', key, message: `${process} was told the ${is} ${text}, and it came to ${came}` })
  }
}

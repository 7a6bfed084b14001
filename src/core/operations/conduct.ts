// One attempt of an operation, from what is recorded to what is to be written at its end: forward while it can, back when it
// has failed for good, parked when only a person can tell. Whatever happens, the attempt ends in one of the three.

import { backoffMs, countedBackoffs } from '../backoff.ts'
import type { Backoff } from '../backoff.ts'
import { FinalError, OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import { describeKey } from '../key.ts'
import { Rewind, Stopped } from './asked.ts'
import type { LastStep, Performed } from './asked.ts'
import type { Journal, News } from './journal.ts'
import { messageOf } from './records.ts'
import type { Course, Ending } from './records.ts'
import type { AnyOperationOp } from './step.ts'
import { isPastPivot } from './steps.ts'
import type { RunningSteps, Steps } from './steps.ts'
import { owedSteps, undoAll } from './undo.ts'
import { storableJson } from '../outcome.ts'
import type { Outcome } from '../outcome.ts'

export interface Definition {
  readonly name: string
  readonly version: number
  /** How many attempts may fail before the operation goes back. */
  readonly attempts: number
  /** The pause before a worker tries again. */
  readonly backoff: Backoff
  run(op: AnyOperationOp, input: unknown): unknown
}

export interface Conducting extends RunningSteps {
  readonly definition: Definition
  readonly steps: Steps
  readonly input: unknown
  /** The attempt before this one never reported. */
  readonly takenOver: boolean
}

/** What is to be written at the end of the attempt, and what its caller gets. */
export type Plan =
  | {
      readonly do: 'settle'
      readonly outcome: Outcome
      readonly thrown?: unknown
      readonly news: News
      readonly last?: LastStep | undefined
    }
  | { readonly do: 'wait'; readonly afterMs: number; readonly thrown: unknown; readonly news: News }
  | { readonly do: 'park'; readonly thrown: unknown; readonly news: News }

export async function conduct(conducting: Conducting): Promise<Plan> {
  const { journal, steps, takenOver } = conducting
  if (takenOver) await countDeath(journal)
  const { direction, ending, failures, failuresBack = 0 } = journal.course
  if (direction === 'backward') {
    if (failuresBack >= deathsMax(conducting.definition)) return parkDeadly(journal, ending!, failuresBack)
    return goBack(conducting, { ending: ending!, undos: 'learn' })
  }
  const before = endingBefore(conducting, failures)
  if (before && isPastPivot(journal)) return parkPastPivot(journal, before, failures)
  if (before) return goBack(conducting, { ending: before, undos: 'learn' })
  const ended = await perform(conducting)
  if ('value' in ended) {
    reportDrift(journal, steps)
    const { value, last } = ended
    return { do: 'settle', outcome: { kind: 'value', value }, news: last ? { step: last.record } : {}, last }
  }
  return planFailure(conducting, ended.thrown, failures + 1)
}

/** A process also dies of a deploy, and loses its lease in an outage: that alone must not leave an operation half undone, whatever its attempts. */
function deathsMax({ attempts }: Definition): number {
  return Math.max(attempts, countedBackoffs.undo.triesMax)
}

/** A process that died under the operation reported nothing. Were its death not counted, processes could die of it forever. */
async function countDeath(journal: Journal): Promise<void> {
  const { course } = journal
  const { direction, failures, failuresBack = 0 } = course
  const counted = direction === 'forward' ? { failures: failures + 1 } : { failuresBack: failuresBack + 1 }
  await journal.write({ course: { ...course, ...counted } })
}

/** Why it fails for good before anything runs: it was cancelled, or its attempts are used up. */
function endingBefore({ journal, definition }: Conducting, failures: number): Ending | undefined {
  const { cancelReason, course } = journal
  if (cancelReason !== undefined && !isPastPivot(journal)) return cancelled(journal)
  return failures >= definition.attempts ? exhausted(journal, failures, course.lastError) : undefined
}

async function perform({ definition, input, steps, op }: Conducting): Promise<Performed> {
  const ended: Performed = await steps
    .perform(op, (given) => definition.run(given, input))
    .catch((thrown: unknown) => ({ thrown }))
  // Siblings that run in parallel with the one that failed must have ended before anything is undone or settled.
  const late = await steps.close()
  if ('thrown' in ended && isLost(ended.thrown)) return ended
  // Whatever the function made of it: an operation that a step has stopped is neither completed nor failed.
  if (steps.stop) return { thrown: steps.stop }
  return 'value' in ended && late ? { thrown: late.failure } : ended
}

async function planFailure(conducting: Conducting, thrown: unknown, failures: number): Promise<Plan> {
  const { journal, definition, runtime } = conducting
  if (isLost(thrown)) throw thrown
  const lastError = messageOf(thrown)
  if (thrown instanceof Stopped) return park(journal, thrown.why, lastError, { failures })
  const isKnown = journal.unconfirmed === undefined
  const ending = isKnown ? endingOf(journal, definition, thrown, failures) : undefined
  if (ending && isPastPivot(journal)) {
    if (ending.why === 'exhausted') return parkPastPivot(journal, ending, failures)
  } else if (ending) return goBack(conducting, { ending, undos: 'known', thrown })
  // One that was parked and goes on, because a person cancelled it, waits for no person any more.
  const { parked: _parked, ...going } = journal.course
  const course = { ...going, failures, lastError }
  const afterMs = Math.round(backoffMs(definition.backoff, failures - 1, runtime.random))
  return {
    do: 'wait',
    afterMs,
    thrown: thrown instanceof FinalError || thrown instanceof Rewind ? notYet(journal, thrown) : thrown,
    news: { course },
  }
}

function endingOf(journal: Journal, definition: Definition, thrown: unknown, failures: number): Ending | undefined {
  if (thrown instanceof FinalError && !isPastPivot(journal)) {
    return { why: 'final', message: thrown.message, ...storableData(thrown.data) }
  }
  if (thrown instanceof Rewind) return cancelled(journal)
  return failures >= definition.attempts ? exhausted(journal, failures, messageOf(thrown)) : undefined
}

interface WayBack {
  readonly ending: Ending
  /**
   * `learn`: the function has not run in this attempt, and only it knows the undos. It runs again: steps that are done return
   * their stored results, and the first step that is not done ends it.
   */
  readonly undos: 'learn' | 'known'
  readonly thrown?: unknown
}

async function goBack(conducting: Conducting, { ending, undos, thrown }: WayBack): Promise<Plan> {
  const { journal, definition } = conducting
  const { parked: _parked, ...course } = journal.course
  const backward: Course = { ...course, direction: 'backward', ending }
  if (journal.course.direction === 'forward') {
    publish('compensating', journal.claim.key, { operation: definition.name, why: ending.why })
    await journal.write({ course: backward })
  }
  const performed = undos === 'learn' ? await perform(conducting) : { thrown }
  const owed = owedSteps(journal).length
  const stuck = await undoAll({ ...conducting, performed }).catch((error: unknown) => ({ error }))
  if ('error' in stuck) return waitToGoBack(conducting, stuck.error, owed)
  if (stuck.length > 0) {
    const message = `${describeKey(journal.claim.key)} failed (${ending.message}) and could not undo ${stuck.map((name) => `"${name}"`).join(', ')}.`
    return park(journal, 'undo-stuck', message, backward)
  }
  const error = new FinalError(ending.message, { ...('data' in ending && { data: ending.data }), cause: thrown })
  return {
    do: 'settle',
    outcome: { kind: 'failure', error },
    thrown: thrown instanceof FinalError ? thrown : error,
    news: {},
  }
}

/**
 * The way back was interrupted, not refused: the next attempt goes on with it. However often that happens, no person is asked: what
 * was down comes back, and callers who retry fast would use up any number of attempts before it does. Only the pauses grow, unless
 * the attempt has undone some of what was `owed`.
 */
function waitToGoBack({ journal, definition, runtime }: Conducting, thrown: unknown, owed: number): Plan {
  if (isLost(thrown)) throw thrown
  const { parked: _parked, interruptions: known = 0, ...going } = journal.course
  const before = owedSteps(journal).length < owed ? 0 : known
  const course = { ...going, interruptions: before + 1, lastError: messageOf(thrown) }
  const afterMs = Math.round(backoffMs(definition.backoff, before, runtime.random))
  // Steps have taken effect, so an error that says "not executed", or nothing at all, is not for the caller.
  const isTrue = thrown instanceof OnceError && thrown.executed === 'unknown'
  return { do: 'wait', afterMs, thrown: isTrue ? thrown : notYet(journal, thrown), news: { course } }
}

/** A FinalError is an answer for good, and a Rewind is none. This operation has no answer yet: it will be resumed. */
export function notYet({ claim }: Journal, cause: unknown): OnceError {
  return new OnceError('OUTCOME_UNKNOWN', {
    message:
      `${describeKey(claim.key)} failed (${messageOf(cause)}), and that is not its result yet: a retry or a worker will resume ` +
      'it. Ask again with the same key, or see status(id).',
    cause,
  })
}

function parkDeadly(journal: Journal, ending: Ending, failuresBack: number): Plan {
  const { lastError } = journal.course
  const last = lastError === undefined ? '' : ` The last error: ${lastError}`
  const message = `${describeKey(journal.claim.key)} failed (${ending.message}), and ${failuresBack} attempts to undo it died or hung.${last}`
  return park(journal, 'undo-stuck', message, {})
}

function parkPastPivot(journal: Journal, ending: Ending, failures: number): Plan {
  const message = `${describeKey(journal.claim.key)} is past its pivot, where there is no way back, and cannot go on: ${ending.message}`
  return park(journal, 'past-pivot', message, { failures })
}

function park(journal: Journal, why: Stopped['why'], message: string, changes: Partial<Course>): Plan {
  const { key } = journal.claim
  publish('parked', key, { operation: journal.operation, why })
  const thrown = parkedError(message)
  return { do: 'park', thrown, news: { course: { ...journal.course, ...changes, parked: message } } }
}

export function parkedError(why: string): OnceError {
  return new OnceError('PARKED', {
    message: `${why} The operation waits for a person: see status(id), and decide with resume(id).`,
  })
}

/** A step that is recorded and that the code did not ask for: the code has changed since, and an operator should know. */
function reportDrift(journal: Journal, steps: Steps): void {
  for (const { name, state } of journal.steps()) {
    if (steps.asked.has(name) || state === 'failed' || state === 'absent') continue
    publish('drifted', journal.claim.key, { operation: journal.operation, what: 'step-not-asked-for', step: name })
  }
}

function cancelled({ claim, cancelReason }: Journal): Ending {
  return {
    why: 'cancelled',
    message: `${describeKey(claim.key)} was cancelled: ${cancelReason}`,
    data: { why: 'cancelled' },
  }
}

function exhausted({ claim }: Journal, failures: number, lastError: string | undefined): Ending {
  const message = `${describeKey(claim.key)} failed in ${failures} attempts and goes back. The last error: ${lastError ?? 'its process died'}`
  return { why: 'exhausted', message, data: { why: 'exhausted' } }
}

function isLost(thrown: unknown): boolean {
  return thrown instanceof OnceError && thrown.code === 'CLAIM_LOST'
}

/** The course is kept as JSON. The way back does not depend on data, so what JSON cannot hold is left out, as a whole. */
function storableData(data: unknown): { data?: unknown } {
  try {
    return data === undefined ? {} : { data: JSON.parse(storableJson(data)) as unknown }
  } catch {
    return {}
  }
}

// Puts the journals of all processes, the ledger and the audit trail together into one history, and holds it against the
// guarantees: the history checker's assertions, and those that only real processes and servers can break.
import { keyString } from '../../src/core/key.ts'
import {
  checkAudit,
  checkCalls,
  checkExecutions,
  emptyHistory,
  isLinearizable,
  livesOf,
  type CallAnswer,
  type CallRecord,
  type ExecutionRecord,
  type History,
  type Lives,
  type RowChange,
  type StoreOperation,
} from '../../src/testing/history-checker.ts'
import { readAudit } from './audit.ts'
import { type LedgerLine, readJournals, readLedger, type ToldAnswer, type Written } from './journal.ts'
import { checkOperations } from './judge/operations.ts'
import { isRefusing } from './asking.ts'
import { audited, dynamodbSkewMs, type OpenedStore, type Place } from './place.ts'
import { nameServed } from './served.ts'

export interface Found {
  readonly assertion: string
  readonly key?: string
  readonly message: string
}

export interface Judged {
  readonly violations: readonly Found[]
  readonly history: History
  readonly lines: readonly Written[]
  /** Keys whose operations were put in an order, and those of which the search gave up. */
  readonly linearized: number
  readonly undecided: number
}

/** Clocks of one machine, read by different programs in different ways. */
const clockErrorMs = 3

export async function judge(
  place: Place,
  folder: string,
  opened: OpenedStore,
  clocks: 'true' | 'moved',
): Promise<Judged> {
  const { lines, ledger } = nameServed(readJournals(folder), readLedger(folder))
  const history = emptyHistory()
  const isAudited = audited.includes(place.store)
  const effects = isAudited ? await opened.sql('select token, step, id from torture_effects') : []
  mergeLines(history, lines)
  mergeEffects(history, ledger, effects)
  if (isAudited) mergeChanges(history, await readAudit(opened), clocks)
  const violations: Found[] = []
  const report = (found: Found): void => void violations.push(found)
  if (isAudited) checkAudit(history, report)
  const lives = isAudited ? livesOf(history) : livesWithoutAudit(history)
  checkCalls(history, lives, report)
  checkExecutions({ ...history, operations: withoutUnbegun(history) }, lives, Infinity, report)
  checkEnds(history, report)
  checkOutcomes(history, report)
  checkZombies(lines, history, report)
  checkAtMostOnce(history, report)
  checkOperations(lines, effects, report)
  for (const line of lines)
    if (line.is === 'unhandled') report({ assertion: 'no-unhandled-rejection', message: line.message })
  const search = clocks === 'true' ? checkLinearizable(place, history, report) : { linearized: 0, undecided: 0 }
  const counted = violations.filter(
    (found) => isOurs(found) && (clocks === 'true' || found.assertion !== 'answer-after-settle'),
  )
  return { violations: counted, history, lines, ...search }
}

// With moved clocks, the time of a store's write cannot be compared with the time of a client's answer.
//
// Between the answer of the store and the signal lies the event loop of a process that may be stopped, or wait for a core: how
// soon an effect learns that it lost its key is the simulation's to judge.
function isOurs({ assertion }: Found): boolean {
  return assertion !== 'told-when-lost' && assertion !== 'quiet-after-end'
}

/** Keys are named so: …-flow-asked. */
const flowOf = (key: { readonly id: string }): string | undefined => key.id.split('-').at(-2)

function mergeLines(history: History, lines: readonly Written[]): void {
  const calls = new Map<string, CallRecord>()
  const operations = new Map<string, StoreOperation>()
  const executions = new Map<string, ExecutionRecord>()
  const answers: [CallRecord, ToldAnswer][] = []
  for (const line of lines) {
    if (line.is === 'call' && flowOf(line.key) !== 'operation') {
      const { key, asked, how, phase, waitMs } = line
      const call = { process: line.process, key, asked, how, phase, waitMs, startedAtMs: line.atMs }
      calls.set(line.call, call)
      history.calls.push(call)
    } else if (line.is === 'answer' && calls.has(line.call)) {
      const call = calls.get(line.call)!
      call.endedAtMs = line.atMs
      answers.push([call, line.answer])
    } else if (line.is === 'operation') {
      const operation = { process: line.process, sentAtMs: line.atMs, ...line.sent } as StoreOperation
      operations.set(line.operation, operation)
      history.operations.push(operation)
    } else if (line.is === 'operation-answer' && operations.has(line.operation)) {
      const { answer, failed } = line
      Object.assign(
        operations.get(line.operation)!,
        failed === undefined ? { answer, answeredAtMs: line.atMs } : { failed },
      )
    } else if (line.is === 'execution') {
      const { token, attempt, fence, derivedKey } = line
      const execution = { call: calls.get(line.call)!, token, attempt, fence, derivedKey, startedAtMs: line.atMs }
      executions.set(token, execution)
      history.executions.push(execution)
    } else if (line.is === 'ended')
      Object.assign(executions.get(line.token)!, { endedAtMs: line.atMs, ended: line.ended })
    else if (line.is === 'aborted') Object.assign(executions.get(line.token)!, { abortedAtMs: line.atMs })
    else if (line.is === 'incident') history.incidents.push({ atMs: line.atMs, text: line.text })
  }
  const indices = new Map(history.executions.map(({ token }, index) => [token, index]))
  for (const [call, told] of answers) call.answer = answerOf(indices, told)
  // A process that never wrote an answer down was killed, or the server that should have answered it was.
  for (const call of history.calls) if (!call.answer) call.died = true
}

function answerOf(indices: ReadonlyMap<string, number>, told: ToldAnswer): CallAnswer {
  if (told.is === 'refused' || told.is === 'stray') return told
  const { token, ...answer } = told
  return { ...answer, execution: indices.get(token) ?? -1 } as CallAnswer
}

function mergeEffects(history: History, ledger: readonly LedgerLine[], rows: readonly Record<string, unknown>[]): void {
  const indices = new Map(history.executions.map(({ token }, index) => [token, index]))
  const add = (token: string, atMs: number, transactional: boolean): void => {
    const execution = indices.get(token)
    if (execution !== undefined) history.effects.push({ execution, atMs, transactional })
  }
  for (const { token, atMs } of ledger) add(token, atMs, false)
  for (const { token, step } of rows) if (String(step) === '') add(String(token), 0, true)
}

type Change = RowChange & { readonly storeMs: number | undefined }

/** The operation that made each change is found by its token, which no other attempt has. */
function mergeChanges(history: History, changes: readonly Change[], clocks: 'true' | 'moved'): void {
  const byToken = new Map<string, number[]>()
  for (const [index, operation] of history.operations.entries()) {
    const token = 'request' in operation ? operation.request.token : 'token' in operation ? operation.token : ''
    byToken.set(token, [...(byToken.get(token) ?? []), index])
  }
  for (const change of changes) {
    const isGrant = change.before?.token !== change.after?.token
    const token = change.after?.token ?? change.before?.token ?? ''
    const by = byToken.get(token)?.find((index) => writes(history.operations[index]!.call, change, isGrant))
    // A grant is dated by the store itself: its fence is its clock. Other writes are dated no later than they were.
    const machineMs = clocks === 'moved' ? (change.storeMs ?? change.atMs) : change.atMs
    const atMs = isGrant
      ? Math.max(machineMs, Math.floor((change.after?.fence ?? 0) / 1_000))
      : machineMs - clockErrorMs
    history.changes.push({ ...change, atMs, by })
  }
}

function writes(call: StoreOperation['call'], { after }: Change, isGrant: boolean): boolean {
  if (!after) return call === 'release'
  if (after.wrote === 'settle') return call === 'settle' || call === 'commit'
  if (after.wrote === 'release') return call === 'release'
  return isGrant ? call === 'claim' || call === 'begin' : call === 'extend' || call === 'claim'
}

/** A store without triggers: what its clients know, and the ledger. A key has one life, as none is forgotten here. */
function livesWithoutAudit(history: History): Lives {
  const keys = new Map(history.executions.map(({ token, call }) => [token, keyString(call.key)]))
  const settled = new Map<string, number>()
  for (const operation of history.operations) {
    if (operation.call !== 'settle') continue
    settled.set(operation.key, Math.min(settled.get(operation.key) ?? Infinity, operation.sentAtMs))
  }
  return { of: (token) => keys.get(token), settledAtMs: (life) => settled.get(life) }
}

/** Every key that was asked for has ended. A key that must not be run again may be in doubt instead. */
/**
 * A key is given back as open only after its effect began. Not so an attempt of an operation that could not read its records: it gives the
 * key back before anything has begun, and the records say what did begin before.
 */
function withoutUnbegun({ operations, executions }: History): StoreOperation[] {
  const begun = new Set(executions.map(({ token }) => token))
  return operations.filter(
    (operation) =>
      operation.call !== 'release' ||
      operation.how !== 'open' ||
      begun.has(operation.token) ||
      !operation.key.includes('/operations/'),
  )
}

function checkEnds(history: History, report: (found: Found) => void): void {
  const told = new Map<string, string>()
  for (const { key, phase, answer } of history.calls) {
    const known = told.get(key.id) ?? 'nothing'
    if (phase === 'first' || known === 'an end') told.set(key.id, known)
    else if (answer?.is === 'value' || answer?.is === 'failure') told.set(key.id, 'an end')
    else if (answer?.is === 'refused' && answer.code === 'IN_DOUBT' && isRefusing(flowOf(key)))
      told.set(key.id, 'an end')
    else told.set(key.id, answer?.is === 'refused' ? answer.code : (answer?.is ?? 'nothing'))
  }
  for (const [key, last] of told) {
    if (last !== 'an end') report({ assertion: 'no-wedge', key, message: `asked for the last time, was told ${last}` })
  }
}

/**
 * An outcome names the token of the attempt that produced it. That must be the holder of the key, or another attempt's write was
 * accepted.
 */
function checkOutcomes(history: History, report: (found: Found) => void): void {
  for (const { key, after, by } of history.changes) {
    if (!after?.outcome || by === undefined) continue
    if (Buffer.from(after.outcome).includes(after.token)) continue
    // That of an HTTP answer is in its body, which may be packed. There, the outcome that was sent is compared.
    const operation = history.operations[by]!
    if ('outcome' in operation && Buffer.compare(operation.outcome, after.outcome) === 0) continue
    report({ assertion: 'holder-writes', key, message: `the outcome under token ${after.token} is somebody else's` })
  }
}

/** A process that was stopped, and taken over before it went on, has written nothing since. */
function checkZombies(lines: readonly Written[], history: History, report: (found: Found) => void): void {
  const resumedAtMs = new Map<string, number>()
  const taken = new Set<string>()
  for (const line of lines) {
    if (line.is === 'taken-over') taken.add(line.token)
    if (line.is === 'resumed' && taken.has(line.token) && !resumedAtMs.has(line.token))
      resumedAtMs.set(line.token, line.atMs)
  }
  for (const operation of history.operations) {
    if (!('token' in operation) || operation.answer !== 'done') continue
    const sinceMs = resumedAtMs.get(operation.token)
    if (sinceMs === undefined || operation.sentAtMs < sinceMs) continue
    const message = `a ${operation.call} of ${operation.process}, which had been taken over, was accepted`
    report({ assertion: 'zombie-fenced', key: operation.key, message })
  }
}

/** Keys of `refuse` are never taken over: their effect took place once, or not at all. */
function checkAtMostOnce(history: History, report: (found: Found) => void): void {
  const counts = new Map<string, number>()
  for (const { execution } of history.effects) {
    const { call } = history.executions[execution]!
    if (isRefusing(flowOf(call.key)) && call.asked !== 'throws') {
      counts.set(call.key.id, (counts.get(call.key.id) ?? 0) + 1)
    }
  }
  for (const [key, count] of counts) {
    if (count > 1) report({ assertion: 'at-most-once', key, message: `its effect took place ${count} times` })
  }
}

function checkLinearizable(
  { store }: Place,
  history: History,
  report: (found: Found) => void,
): Pick<Judged, 'linearized' | 'undecided'> {
  const byKey = new Map<string, StoreOperation[]>()
  for (const operation of history.operations) byKey.set(operation.key, [...(byKey.get(operation.key) ?? []), operation])
  let [linearized, undecided] = [0, 0]
  for (const [key, operations] of byKey) {
    // Those of operations have no model. And clients do not know when a server noticed that a transaction's connection was gone.
    if (key.includes('/operations/') || operations.some(({ call }) => call === 'begin')) continue
    const errorMs = store === 'dynamodb' ? dynamodbSkewMs + clockErrorMs : clockErrorMs
    const heard = operations.filter((operation) => !isBusyInPassing(operation, operations))
    const found = isLinearizable(heard, { clockErrorMs: errorMs })
    if (found.is === 'undecided') undecided++
    else linearized++
    if (found.is !== 'no') continue
    const stuck = found.stuck.map(
      (each) => `${each.call} of ${each.process} (${JSON.stringify(each.answer)?.slice(0, 90)})`,
    )
    report({
      assertion: 'linearizable',
      key,
      message: `after ${found.fit.length} that fit, none of: ${stuck.join(' or ')}`,
    })
  }
  return { linearized, undecided }
}

/** An operation whose answer was never heard is still under way for so long at the most. */
const underWayMsMax = 5_000

/**
 * A claim that meets another operation on the same row at work is `busy` in the stores that try locks and do not wait for them,
 * whatever the entry is. That `busy` says nothing about the entry.
 */
function isBusyInPassing(operation: StoreOperation, all: readonly StoreOperation[]): boolean {
  if (operation.call !== 'claim' || operation.answer?.is !== 'busy') return false
  const endOf = ({ answeredAtMs, sentAtMs }: StoreOperation): number => answeredAtMs ?? sentAtMs + underWayMsMax
  return all.some(
    (other) => other !== operation && other.sentAtMs <= endOf(operation) && endOf(other) >= operation.sentAtMs,
  )
}

/** How often a claim took a key over from a holder whose lease had ended. */
export function takeoversIn(history: History): number {
  return history.operations.filter(
    (operation) =>
      operation.call === 'claim' && operation.answer?.is === 'granted' && operation.answer.how === 'taken-over',
  ).length
}

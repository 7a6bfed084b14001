// What effects were given and did. Each runs under its own claim, which the store granted. A key has one effect where the other
// side deduplicates or the transaction decides. An attempt that lost the key learns of it.

import { keyString } from '../../core/key.ts'
import type { Claim } from '../../core/store.ts'
import type { Lives } from './calls.ts'
import type { ExecutionRecord, History, StoreOperation } from './history.ts'
import type { Violation } from './violation.ts'

type Report = (violation: Violation) => void

export function checkExecutions(history: History, lives: Lives, storeTimeoutMs: number, report: Report): void {
  const grants = grantsOf(history)
  const tokens = new Set<string>()
  const derivedKeys = new Map<string, string>()
  for (const execution of history.executions) {
    const key = keyString(execution.call.key)
    const fail = (assertion: Violation['assertion'], message: string): void => report({ assertion, key, message })
    const granted = (grants.get(execution.token) ?? []).filter(({ atMs }) => atMs <= execution.startedAtMs)
    if (granted.length === 0) {
      fail('claim-before-effect', `an effect of ${execution.call.process} ran before the store had granted its claim`)
    } else if (
      !granted.some(({ claim: { attempt, fence } }) => attempt === execution.attempt && fence === execution.fence)
    ) {
      fail('claim-before-effect', 'an effect was given another attempt or fence than the store granted')
    }
    if (tokens.has(execution.token)) fail('one-execution-a-claim', 'two effects ran under one claim')
    tokens.add(execution.token)
    const derived = derivedKeys.get(key) ?? execution.derivedKey
    derivedKeys.set(key, derived)
    if (derived !== execution.derivedKey) fail('same-derived-key', 'two attempts handed out different derived keys')
  }
  if (new Set(derivedKeys.values()).size < derivedKeys.size) {
    report({ assertion: 'same-derived-key', message: 'two keys have one derived key' })
  }
  checkTransactions(history, lives, report)
  checkAttempts(history, storeTimeoutMs, report)
}

/** By token. A claim that is delivered again may be granted again, and in another life of the key when it was forgotten. */
function grantsOf({ operations }: History): Map<string, { claim: Claim; atMs: number }[]> {
  const grants = new Map<string, { claim: Claim; atMs: number }[]>()
  for (const operation of operations) {
    if (operation.call !== 'claim' && operation.call !== 'begin') continue
    if (operation.answer?.is !== 'granted') continue
    const { claim } = operation.answer
    const grant = { claim, atMs: operation.decidedAtMs ?? operation.sentAtMs }
    const known = grants.get(claim.token)
    if (known) known.push(grant)
    else grants.set(claim.token, [grant])
  }
  return grants
}

function checkTransactions({ effects, executions }: History, lives: Lives, report: Report): void {
  const seen = new Set<string>()
  for (const { execution: index, transactional } of effects) {
    if (!transactional) continue
    const { token, call } = executions[index]!
    const life = lives.of(token)
    const key = keyString(call.key)
    if (life === undefined || seen.has(life)) {
      const why = life === undefined ? 'without a record of it' : 'twice'
      report({ assertion: 'transaction-once', key, message: `an effect of ${call.process} was committed ${why}` })
    }
    if (life !== undefined) seen.add(life)
  }
}

/** What an attempt asks of the store must fit what its effect has done so far. */
function checkAttempts({ executions, operations }: History, storeTimeoutMs: number, report: Report): void {
  const byToken = new Map(executions.map((execution) => [execution.token, execution]))
  const writtenAtMs = new Map<string, number>()
  for (const operation of operations) {
    if (operation.repeated || operation.takesBack) continue
    if (operation.call !== 'settle' && operation.call !== 'release') continue
    const execution = byToken.get(operation.token)
    if (!writtenAtMs.has(operation.token)) writtenAtMs.set(operation.token, operation.sentAtMs)
    checkEndOfAttempt(operation, execution, report)
  }
  for (const operation of operations) {
    const execution = operation.call === 'extend' && byToken.get(operation.token)
    if (!execution) continue
    const { endedAtMs = Infinity } = execution.call
    if (!operation.repeated && operation.sentAtMs > Math.min(endedAtMs, execution.abortedAtMs ?? Infinity)) {
      report(violation('quiet-after-end', execution, 'had its lease extended after it was answered or told to stop'))
    }
    // Once the end of the effect is being written, that write tells, and no effect runs any more that a signal could reach.
    const untilMs = Math.min(endedAtMs, writtenAtMs.get(operation.token) ?? Infinity)
    const isHeard = (operation.answeredAtMs ?? Infinity) - operation.sentAtMs < storeTimeoutMs
    if (isHeard && isUntold(operation, execution, untilMs)) {
      report(violation('told-when-lost', execution, 'lost its key and was not told'))
    }
  }
}

/** An attempt releases its key as `open` when its effect began, as `forget` when it did not, and not at all when it is in doubt. */
function checkEndOfAttempt(
  operation: StoreOperation & { readonly call: 'settle' | 'release' },
  execution: ExecutionRecord | undefined,
  report: Report,
): void {
  if (execution && (execution.endedAtMs ?? Infinity) > operation.sentAtMs) {
    return report(violation('write-after-effect', execution, `had its ${operation.call} written while it still ran`))
  }
  if (operation.call === 'settle') return
  const neverBegan = !execution || execution.ended === 'not-begun'
  const fits = operation.how === 'forget' ? neverBegan : execution?.ended === 'threw'
  if (fits) return
  const message = `a release "${operation.how}" of ${operation.process} followed an effect that ${describeEnd(execution)}`
  report({ assertion: 'release-fits-effect', key: operation.key, message })
}

function describeEnd(execution: ExecutionRecord | undefined): string {
  return execution ? `ended so: ${execution.ended}` : 'never began'
}

/** A timer lies between the last moment of a lease and the news of its end. */
const timerMs = 5

function isUntold(
  operation: StoreOperation,
  { call, abortedAtMs = Infinity }: ExecutionRecord,
  untilMs: number,
): boolean {
  const byMs = (operation.answeredAtMs ?? Infinity) + timerMs
  return operation.answer === 'lost' && byMs < untilMs && !call.died && abortedAtMs > byMs
}

function violation(assertion: Violation['assertion'], { call }: ExecutionRecord, what: string): Violation {
  return { assertion, key: keyString(call.key), message: `an effect of ${call.process} ${what}` }
}

// What run, transaction, within and operations have in common. A call is read: what the caller gave, checked and copied. Then it
// claims its key, holds it by a heartbeat and runs its effect (see call/). Each verdict is translated for the caller here.

import type { RunContext } from './call/attempt.ts'
import { createWaiting } from './call/waiting.ts'
import type { Waiting } from './call/waiting.ts'
import { invalidArgument, OnceError } from './errors.ts'
import { isHeard, publish } from './events.ts'
import { fingerprint } from './fingerprint.ts'
import { checkKey, describeKey, key, keyString } from './key.ts'
import type { Key } from './key.ts'
import { decodeOutcome, encodeOutcome, versionOf } from './outcome.ts'
import type { Outcome } from './outcome.ts'
import { readRunOptions } from './settings.ts'
import type { OnceOptions, RunOptions, Settings } from './settings.ts'
import type { ClaimRequest, Verdict } from './store.ts'

export { claimLost, holdKey } from './call/attempt.ts'
export type { HeldKey, RunContext } from './call/attempt.ts'
export { ask, byLease, claim, isWaitedFor, mayHaveEnded, stillHeld, waitForKey } from './call/claim.ts'
export type { Asking } from './call/claim.ts'
export { createOp, isObject, isThenable, startEffect } from './call/effect.ts'
export type { Ended, Op } from './call/effect.ts'

export interface Result<T> {
  readonly value: T
  /** The effect had run before, and this is its stored result. */
  readonly replayed: boolean
  /** The attempt that returned this value. */
  readonly attempt: number
}

/** A call with everything it was asked with taken down before the effect can change it. */
export interface Call {
  readonly key: Key
  readonly settings: Settings
  readonly request: Omit<ClaimRequest, 'token'>
  /** Calls of one group wait together: they would get the same result. */
  readonly group: string
}

export interface Calls {
  readonly context: RunContext
  readonly waiting: Waiting
  /** Checks what the caller gave, before anything is claimed. `what` names the method in errors. */
  read(what: string, id: string | Key, effect: unknown, options: RunOptions): Call
  /** An attempt of this call ended here: local callers that wait for it ask the store at once. */
  wake(call: Call): void
  /** The result of every verdict but `granted`: a replay, or the error that is thrown. */
  answer<T>(call: Call, verdict: Exclude<Verdict, { is: 'granted' }>, startedMs: number): Result<T>
  encode(outcome: Outcome): { bytes: Uint8Array; outcome: Outcome }
}

export function createCalls(options: OnceOptions, settings: Settings, context: RunContext): Calls {
  const { clock } = context
  const once = { options, settings }
  const waiting = createWaiting(clock, context.random)

  function replay<T>(call: Call, verdict: Verdict & { is: 'settled' }, startedMs: number): Result<T> {
    const outcome = decodeOutcome(verdict.outcome, options.codec, call.key)
    if (isHeard('replayed')) {
      publish('replayed', call.key, { attempt: verdict.attempt, durationMs: clock.elapsed() - startedMs })
    }
    const version = versionOf(verdict.outcome, verdict.version)
    const value = upgraded(options, call.key, valueOf(call.key, outcome), version)
    return { value: value as T, replayed: true, attempt: verdict.attempt }
  }

  return {
    context,
    waiting,
    read(what, id, effect, runOptions) {
      const subject = keyFrom(options.scope, id)
      if (typeof effect !== 'function')
        throw invalidArgument(`${what}: expected the effect to be a function, got ${typeof effect}`)
      return new KeyCall(subject, readRunOptions(what, once, runOptions), fingerprint(runOptions.fingerprint))
    },
    wake(call) {
      // Mostly no caller waits, and the name of the group need not be put together.
      if (waiting.isAnyWaiting()) waiting.wake(call.group)
    },
    answer(call, verdict, startedMs) {
      if (verdict.is === 'settled') return replay(call, verdict, startedMs)
      throw refusal(call.key, verdict)
    },
    encode: (outcome) => encodeOutcome(outcome, options.codec),
  }
}

export function keyFrom(scope: string, id: string | Key): Key {
  return typeof id === 'string' ? key(scope, id) : checkKey(id)
}

/** The value of an outcome. A failure is thrown as it was. */
export function valueOf(subject: Key, outcome: Outcome): unknown {
  if (outcome.kind === 'failure') throw outcome.error
  if (outcome.kind === 'value') return outcome.value
  throw new OnceError('OUTCOME_NOT_STORED', {
    message: `The effect for ${describeKey(subject)} did run, but its value could not be stored: ${clause(outcome.reason)}. It will not run again.`,
  })
}

/** The outcome cannot be stored, and the effect and its claim were undone with it: the error can say "no". */
export function undoneAsNotStored(subject: Key, reason: string): OnceError {
  return new OnceError('OUTCOME_NOT_STORED', {
    executed: 'no',
    message: `The value of the effect for ${describeKey(subject)} cannot be stored: ${clause(reason)}. The effect and its claim were rolled back.`,
  })
}

/** A reason may be a sentence of its own. */
function clause(reason: string): string {
  return reason.replace(/\.$/, '')
}

class KeyCall implements Call {
  readonly key: Key
  readonly settings: Settings
  readonly request: Call['request']

  constructor(subject: Key, settings: Settings, asked: string) {
    const { leaseMs, keepMs, tombstoneMs, version, onTakeover, onExpired } = settings
    this.key = subject
    this.settings = settings
    const retention = { keepMs, tombstoneMs }
    this.request = { fingerprint: asked, leaseMs, retention, version, onTakeover, onExpired }
  }

  /** Put together when a caller waits: mostly none does. */
  get group(): string {
    const { fingerprint: asked, onTakeover, onExpired } = this.request
    return `${keyString(this.key)}\n${asked}\n${onTakeover}\n${onExpired}`
  }
}

function refusal(subject: Key, verdict: Exclude<Verdict, { is: 'granted' } | { is: 'settled' }>): OnceError {
  const name = describeKey(subject)
  switch (verdict.is) {
    case 'busy':
      return new OnceError('IN_FLIGHT', {
        message: `Another attempt for ${name} is running. Ask again with the same key, at the latest in ${Math.ceil(verdict.retryAfterMs)} ms, or set waitMs.`,
        retryAfterMs: Math.ceil(verdict.retryAfterMs),
      })
    case 'mismatch':
      publish('mismatched', subject, {})
      return new OnceError('MISMATCH', {
        message: `The key ${name} was used before with another request (fingerprint). Nothing was run. Use a new key for a new request.`,
      })
    case 'doubt':
      publish('doubted', subject, { attempt: verdict.attempt })
      return new OnceError('IN_DOUBT', {
        message:
          `Attempt ${verdict.attempt} for ${name} began and never reported, and onTakeover is 'refuse'. Find out whether its effect ` +
          'took place. If it did, give the key its true result: once.resolve(key, { value }, reason). ' +
          'If it did not, let the next request run it: once.release(key, reason). Do not forget the key: a retry would run the effect again.',
      })
    case 'expired':
      publish('expired', subject, {})
      return new OnceError('EXPIRED', {
        message: `The key ${name} was used before, and its outcome is no longer kept. Nothing was run. Use a new key if the effect is wanted again.`,
      })
  }
}

function upgraded(options: OnceOptions, subject: Key, value: unknown, version: number | 'any'): unknown {
  if (!options.upgrade || version === 'any' || version === (options.version ?? 0)) return value
  try {
    return options.upgrade(value, version)
  } catch (cause) {
    throw new OnceError('OUTCOME_UNREADABLE', {
      message: `The outcome of ${describeKey(subject)} was written by version ${version}, and upgrade() refused it. The effect was not run again.`,
      cause,
    })
  }
}

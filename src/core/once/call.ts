// What run, transaction and within have in common: a call as it was asked, asking the store (and waiting while the key is
// busy), and the answer to each verdict.

import type { Ground } from './attempt.ts'
import { invalidArgument, OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import { fingerprint } from '../fingerprint.ts'
import { checkKey, describeKey, key, keyString } from '../key.ts'
import type { Key } from '../key.ts'
import { decodeOutcome, encodeOutcome } from '../outcome.ts'
import type { Outcome } from '../outcome.ts'
import { readRunOptions } from '../settings.ts'
import type { OnceOptions, RunOptions, Settings } from '../settings.ts'
import type { ClaimRequest, Verdict } from '../store.ts'
import { createWaiting } from './waiting.ts'
import type { Asked } from './waiting.ts'

export interface Result<T> {
  readonly value: T
  /** The effect had run before; this is what it came to then. */
  readonly replayed: boolean
  /** The attempt that came to this value. */
  readonly attempt: number
}

/** A call with everything it was asked with taken down before the effect can change it. */
export interface Call {
  readonly key: Key
  readonly settings: Settings
  readonly request: Omit<ClaimRequest, 'token'>
  /** Calls of one group wait together: they would be answered alike. */
  readonly group: string
}

export interface Protocol {
  readonly ground: Ground
  call(what: string, id: string | Key, effect: unknown, options: RunOptions): Call
  /** Ask, and while the key is busy ask again for up to waitMs. */
  ask<A extends Asked>(call: Call, ask: (request: ClaimRequest) => Promise<A>): Promise<A>
  /** An attempt of this call ended here: those who wait for it may ask at once. */
  wake(call: Call): void
  /** The answer to every verdict but `granted`. */
  answer<T>(call: Call, verdict: Exclude<Verdict, { is: 'granted' }>, startedMs: number): Result<T>
  encode(outcome: Outcome): { bytes: Uint8Array; outcome: Outcome }
}

export function createProtocol(options: OnceOptions, settings: Settings, ground: Ground): Protocol {
  const { clock, random } = ground
  const waiting = createWaiting(clock, random)

  async function ask<A extends Asked>(call: Call, askOnce: (request: ClaimRequest) => Promise<A>): Promise<A> {
    // The token is random, not the attempt number: an entry can be forgotten and claimed anew, attempts start again at 1,
    // and a zombie of the old attempt 1 would pass for the new one.
    const again = (): Promise<A> => askOnce({ ...call.request, token: random.uuid() })
    const first = await again()
    if (first.verdict.is !== 'busy' || call.settings.waitMs === 0) return first
    const startedMs = clock.elapsed()
    const asked = await waiting.wait({ group: call.group, waitMs: call.settings.waitMs, ask: again })
    publish('waited', call.key, { durationMs: clock.elapsed() - startedMs, ended: asked ? 'verdict' : 'in-flight' })
    return asked ?? first
  }

  function replay<T>(call: Call, verdict: Verdict & { is: 'settled' }, startedMs: number): Result<T> {
    const outcome = decodeOutcome(verdict.outcome, options.codec, call.key)
    publish('replayed', call.key, { attempt: verdict.attempt, durationMs: clock.elapsed() - startedMs })
    const value = upgraded(options, call.key, valueOf(call.key, outcome), verdict.version)
    return { value: value as T, replayed: true, attempt: verdict.attempt }
  }

  return {
    ground,
    ask,
    call: (what, id, effect, runOptions) => readCall(options.scope, settings, what, id, effect, runOptions),
    wake: (call) => waiting.wake(call.group),
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

/** The value of an outcome; a failure is thrown as it was. */
export function valueOf(subject: Key, outcome: Outcome): unknown {
  if (outcome.kind === 'failure') throw outcome.error
  if (outcome.kind === 'value') return outcome.value
  throw new OnceError('OUTCOME_NOT_STORED', {
    message: `The effect for ${describeKey(subject)} did run, but its value could not be stored: ${outcome.reason}. It will not run again.`,
  })
}

function readCall(
  scope: string,
  defaults: Settings,
  what: string,
  id: string | Key,
  effect: unknown,
  options: RunOptions,
): Call {
  const subject = keyFrom(scope, id)
  if (typeof effect !== 'function')
    throw invalidArgument(`${what}: expected the effect to be a function, got ${typeof effect}`)
  const settings = readRunOptions(what, defaults, options)
  const { leaseMs, keepMs, tombstoneMs, version, onTakeover, onExpired } = settings
  const asked = fingerprint(options.fingerprint)
  return {
    key: subject,
    settings,
    request: { fingerprint: asked, leaseMs, retention: { keepMs, tombstoneMs }, version, onTakeover, onExpired },
    group: `${keyString(subject)}\n${asked}\n${onTakeover}\n${onExpired}`,
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
          'took place; then release the key (it may run again) or forget it by hand.',
      })
    case 'expired':
      publish('expired', subject, {})
      return new OnceError('EXPIRED', {
        message: `The key ${name} was used before, and its outcome is no longer kept. Nothing was run. Use a new key if the effect is wanted again.`,
      })
  }
}

function upgraded(options: OnceOptions, subject: Key, value: unknown, version: number): unknown {
  if (!options.upgrade || version === (options.version ?? 0)) return value
  try {
    return options.upgrade(value, version)
  } catch (cause) {
    throw new OnceError('OUTCOME_UNREADABLE', {
      message: `The outcome of ${describeKey(subject)} was written by version ${version}, and upgrade() refused it. The effect was not run again.`,
      cause,
    })
  }
}

// The store as a process under torture has it: every call is written down before and after, and is a point at which the process
// can kill or stop itself. Invariant: at a point the process does nothing more than what it wrote down before.
import { keyString } from '../../src/core/key.ts'
import type { Key } from '../../src/core/key.ts'
import type { Claim, ClaimRequest, Retention } from '../../src/core/store.ts'
import type { Journal } from './journal.ts'

/** Where to die or to stop: at the `nth` call of this name, before it is sent or after its answer came. */
export interface Point {
  readonly call: string
  readonly nth: number
  readonly side: 'before' | 'after'
}

export interface Fate {
  readonly die?: Point
  /** Stop at this point, each time it comes again: the n-th and all that follow. */
  readonly stop?: Point
}

/** Passes a call through. `token` is that of the claim which makes the call, where it is known. */
export type Pass = <T>(call: string, token: string, sent: object | undefined, work: () => Promise<T>) => Promise<T>

export function passThrough(journal: Journal, fate: Fate): Pass {
  const counts = new Map<string, number>()
  let operations = 0
  return async (call, token, sent, work) => {
    const nth = (counts.get(call) ?? 0) + 1
    counts.set(call, nth)
    const reach = (side: Point['side']): void => meetFate(journal, fate, { call, nth, side }, token)
    reach('before')
    const operation = `${journal.process}/${++operations}`
    if (sent) journal.write({ is: 'operation', operation, sent })
    try {
      const answer = await work()
      if (sent) journal.write({ is: 'operation-answer', operation, answer: isBegan(answer) ? answer.verdict : answer })
      reach('after')
      return answer
    } catch (error) {
      const failed = error instanceof Error ? error.message : String(error)
      if (sent) journal.write({ is: 'operation-answer', operation, failed })
      throw error
    }
  }
}

function isBegan(answer: unknown): answer is { readonly verdict: unknown } {
  return typeof answer === 'object' && answer !== null && 'verdict' in answer
}

const cell = new Int32Array(new SharedArrayBuffer(4))

function meetFate(journal: Journal, { die, stop }: Fate, at: Point, token: string): void {
  const point = `${at.call} ${at.side}`
  if (die && die.call === at.call && die.side === at.side && die.nth === at.nth) {
    journal.write({ is: 'dying', point })
    process.kill(process.pid, 'SIGKILL')
    // The signal may reach other threads first. This one must not run on meanwhile.
    Atomics.wait(cell, 0, 0)
  }
  if (stop && stop.call === at.call && stop.side === at.side && at.nth >= stop.nth) {
    journal.write({ is: 'stopping', point, token })
    process.kill(process.pid, 'SIGSTOP')
    Atomics.wait(cell, 0, 0, 20)
    journal.write({ is: 'resumed', token })
  }
}

type AnyFunction = (...args: unknown[]) => Promise<unknown>

/** What of the history checker's operation is known when a call is sent. Undefined for calls that it has no model of. */
function sentBy(call: string, args: readonly unknown[]): object | undefined {
  if (call === 'claim' || call === 'begin') {
    return { call, key: keyString(args[0] as Key), request: args[1] as ClaimRequest }
  }
  if (call !== 'extend' && call !== 'settle' && call !== 'release') return undefined
  const { key, token, fence } = args[0] as Claim
  const write = { call, key: keyString(key), token, fence }
  if (call === 'extend') return { ...write, leaseMs: args[1] }
  if (call === 'settle') return { ...write, outcome: args[1], retention: args[2] }
  return { ...write, how: args[1] }
}

const watchedCalls = ['claim', 'begin', 'extend', 'settle', 'release', 'enlist', 'ledger', 'advance', 'beginStep']

export function watched<S extends object>(store: S, pass: Pass): S {
  return new Proxy(store, {
    get(target, name) {
      const member: unknown = Reflect.get(target, name, target)
      if (typeof member !== 'function') return member
      const call = String(name)
      if (!watchedCalls.includes(call)) return member.bind(target) as unknown
      return async (...args: unknown[]) => {
        const { token } = (call === 'claim' || call === 'begin' || call === 'enlist' ? args[1] : args[0]) as Claim
        const answer = await pass(call, token ?? '', sentBy(call, args), async () =>
          (member as AnyFunction).apply(target, args),
        )
        if (call === 'begin') return watchedTransaction(answer, args[0] as Key, token, pass)
        return call === 'beginStep' && answer ? watchedStep(answer, token, pass) : answer
      }
    },
  })
}

function watchedTransaction(answer: unknown, key: Key, token: string, pass: Pass): unknown {
  const { granted } = answer as { granted?: Record<'commit' | 'rollback' | 'abandon', AnyFunction> }
  if (!granted) return answer
  const { commit, rollback, abandon } = granted
  const write = { key: keyString(key), token }
  const end = (call: AnyFunction) => () =>
    pass('rollback', token, { ...write, call: 'rollback' }, async () => {
      await call()
      return 'done'
    })
  const committed = (outcome: Uint8Array, retention: Retention): Promise<unknown> =>
    pass('commit', token, { ...write, call: 'commit', outcome, retention }, () => commit(outcome, retention))
  return {
    ...(answer as object),
    granted: { ...granted, commit: committed, rollback: end(rollback), abandon: end(abandon) },
  }
}

function watchedStep(answer: unknown, token: string, pass: Pass): object {
  const begun = answer as { commit: AnyFunction }
  return {
    ...begun,
    commit: (change: unknown) => pass('step-commit', token, undefined, () => begun.commit(change)),
  }
}

// What the function of an operation has asked for in this attempt: each name once, nothing after its end, and nothing is over
// before everything that was asked for is.

import { invalidArgument } from '../errors.ts'
import type { Journal } from './journal.ts'
import type { StepRecord } from './records.ts'
import { Rewind, Stopped } from './signals.ts'

/** What the function came to; with `last`, its last step is done and not yet recorded. */
export interface Answer {
  readonly value: unknown
  readonly last?: LastStep
}

/**
 * A function that returns the very promise of a step has nothing left to do when that step is done, and nobody can learn of it
 * before the operation is settled: its record is written together with that.
 */
export interface LastStep {
  readonly record: StepRecord
  /** It is written: whoever else waits for the step is answered. */
  written(): void
}

export interface Asked<Step> {
  readonly steps: ReadonlyMap<string, Step>
  /** What a step has left the function by, whatever the function then made of it. */
  readonly left: Rewind | Stopped | undefined
  /** `work` hands a step out to the function; what it rejects with is never an unhandled rejection of the process. */
  handOut<T>(name: string, work: () => Promise<T>): Promise<T>
  begin<T>(name: string, step: Step, run: () => Promise<T>): Promise<T>
  /** Records that a step is done. */
  done(record: StepRecord, value: unknown): Promise<void>
  /** Runs the function, to what it came to. */
  perform(run: () => unknown): Promise<Answer>
  /** No step begins any more. */
  close(): void
  /** Resolves when those that run have ended, to the failure of one that nobody waited for. */
  ended(): Promise<{ readonly failure: unknown } | undefined>
}

/** A larger result may be refused by the store, and the step itself must be told that. */
const lastBytesMax = 65_536

export function createAsked<Step>(journal: Journal): Asked<Step> {
  const steps = new Map<string, Step>()
  const running = new Map<string, Promise<unknown>>()
  const handedOut = new Map<unknown, string>()
  const answer = Promise.withResolvers<Answer>()
  let lastName: string | undefined
  let closed = false
  let left: Rewind | Stopped | undefined
  let late: { readonly failure: unknown } | undefined

  function learn(failure: unknown): void {
    if (failure instanceof Rewind || failure instanceof Stopped) left ??= failure
    if (closed) late ??= { failure }
  }

  return {
    steps,
    get left() {
      return left
    },
    handOut<T>(name: string, work: () => Promise<T>): Promise<T> {
      const promise = work()
      handedOut.set(promise, name)
      return promise
    },
    begin<T>(name: string, step: Step, run: () => Promise<T>): Promise<T> {
      if (closed)
        throw invalidArgument(`step "${name}" was asked for after the operation's function had ended; await every step`)
      if (steps.has(name)) {
        throw invalidArgument(
          `step "${name}" was asked for twice in one attempt; in a loop, put the index into the name`,
        )
      }
      steps.set(name, step)
      const work = run()
      const tracked = work.catch(learn).finally(() => running.delete(name))
      running.set(name, tracked)
      return work
    },
    async done(record, value) {
      const isLast = record.name === lastName && running.size === 1
      if (!isLast || record.result!.length > lastBytesMax) return journal.write({ step: record })
      const { promise, resolve: written } = Promise.withResolvers<void>()
      closed = true // or a step that begins now would keep this record waiting
      running.delete(record.name)
      answer.resolve({ value, last: { record, written } })
      return promise
    },
    async perform(run) {
      const returned = run()
      lastName = handedOut.get(returned)
      if (lastName === undefined) return { value: await returned }
      return Promise.race([answer.promise, (returned as Promise<unknown>).then((value) => ({ value }))])
    },
    close() {
      closed = true
    },
    async ended() {
      for (const each of handedOut.keys()) (each as Promise<unknown>).catch(() => {})
      await Promise.all(running.values())
      return late
    },
  }
}

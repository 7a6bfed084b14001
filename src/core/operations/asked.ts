// What the function of an operation has asked for in this attempt: each name once, and nothing after its end. And how a step
// ends the function other than by failing: what it throws then stops every later step, even if the user's code catches it.

import { invalidArgument } from '../errors.ts'
import type { Journal } from './journal.ts'
import type { StepRecord } from './records.ts'

/** The operation goes back: the function ends as soon as it asks for something that is not done. */
export class Rewind extends Error {
  constructor() {
    super('The operation goes back, so that no step begins.')
    this.name = 'Rewind'
  }
}

/** The operation waits for a person. */
export class Stopped extends Error {
  readonly why: 'in-doubt' | 'undo-stuck' | 'past-pivot'

  constructor(why: Stopped['why'], message: string) {
    super(message)
    this.name = 'Stopped'
    this.why = why
  }
}

export interface AskedSteps<Step> {
  readonly steps: ReadonlyMap<string, Step>
  /** How a step has ended the function, whatever the function then made of it. */
  readonly stop: Rewind | Stopped | undefined
  /** Hands the promise of a step to the function. Its rejection is never an unhandled rejection of the process. */
  handOut<T>(name: string, work: () => Promise<T>): Promise<T>
  /** The step whose promise this is. */
  nameOf(promise: unknown): string | undefined
  begin<T>(name: string, step: Step, run: () => Promise<T>): Promise<T>
  /** Whether this step runs, and no other. */
  runsAlone(name: string): boolean
  /** No step begins any more, and this one is not waited for. */
  closeAt(name: string): void
  /** No step begins any more. */
  close(): void
  /** Resolves when the steps that run have ended, to the failure of one that the function did not wait for. */
  ended(): Promise<{ readonly failure: unknown } | undefined>
}

export function createAskedSteps<Step>(): AskedSteps<Step> {
  const steps = new Map<string, Step>()
  const running = new Map<string, Promise<unknown>>()
  const handedOut = new Map<unknown, string>()
  let closed = false
  let stop: Rewind | Stopped | undefined
  let late: { readonly failure: unknown } | undefined

  function learn(failure: unknown): void {
    if (failure instanceof Rewind || failure instanceof Stopped) stop ??= failure
    if (closed) late ??= { failure }
  }

  return {
    steps,
    get stop() {
      return stop
    },
    handOut<T>(name: string, work: () => Promise<T>): Promise<T> {
      const promise = work()
      handedOut.set(promise, name)
      return promise
    },
    nameOf: (promise) => handedOut.get(promise),
    begin<T>(name: string, step: Step, run: () => Promise<T>): Promise<T> {
      checkAsked(name, closed, steps)
      steps.set(name, step)
      const work = run()
      const tracked = work.catch(learn).finally(() => running.delete(name))
      running.set(name, tracked)
      return work
    },
    runsAlone: (name) => running.size === 1 && running.has(name),
    closeAt(name) {
      closed = true
      running.delete(name)
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

function checkAsked(name: string, closed: boolean, steps: ReadonlyMap<string, unknown>): void {
  if (closed) {
    throw invalidArgument(`step "${name}" was asked for after the operation's function had ended. Await every step.`)
  }
  if (steps.has(name)) {
    throw invalidArgument(`step "${name}" was asked for twice in one attempt. In a loop, put the index into the name.`)
  }
}

/** How the function ended. */
export type Performed = Returned | { readonly thrown: unknown }

/** What the function returned. With `last`, its last step is done and not yet recorded. */
export interface Returned {
  readonly value: unknown
  readonly last?: LastStep
}

/**
 * A function that returns the very promise of a step has nothing left to do when that step is done. No code can learn of the step
 * before the operation is settled, so the step's record is written together with the outcome.
 */
export interface LastStep {
  readonly record: StepRecord
  /** Resolves the promise of the step, for other code that waits for it. */
  written(): void
}

export interface Returning {
  /** Runs the function, to what it returns. */
  perform(run: () => unknown): Promise<Returned>
  /** Records that a step is done: with the end of the operation if it is the last step, otherwise now. */
  done(record: StepRecord, value: unknown): Promise<void>
}

/** The store may refuse a larger result, and that must be an error of the step itself. */
const lastBytesMax = 65_536

export function createReturning(asked: AskedSteps<unknown>, journal: Journal): Returning {
  const last = Promise.withResolvers<Returned>()
  let lastName: string | undefined
  return {
    async perform(run) {
      const returned = run()
      lastName = asked.nameOf(returned)
      if (lastName === undefined) return { value: await returned }
      return Promise.race([last.promise, (returned as Promise<unknown>).then((value) => ({ value }))])
    },
    async done(record, value) {
      const isLast = record.name === lastName && asked.runsAlone(record.name)
      if (!isLast || record.result!.length > lastBytesMax) return journal.write({ step: record })
      const { promise, resolve: written } = Promise.withResolvers<void>()
      // Closed, or a step that begins now would keep this record waiting.
      asked.closeAt(record.name)
      last.resolve({ value, last: { record, written } })
      return promise
    },
  }
}

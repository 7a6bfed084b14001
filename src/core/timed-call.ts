// Calls to a store, bounded in time and with errors of one kind. What a call that timed out did is unknown. `late` lets the
// caller clean up when the store's reply comes after all.

import { Limit } from './clock.ts'
import type { Clock } from './clock.ts'
import { OnceError } from './errors.ts'
import type { ErrorCode } from './errors.ts'
import { publish } from './events.ts'
import type { Events } from './events.ts'
import { describeKey } from './key.ts'
import type { Key } from './key.ts'

export interface StoreCalls {
  readonly clock: Clock
  readonly storeName: string
  readonly timeoutMs: number
}

type During = Events['store-failed']['during']

/** Resolves with the answer, or rejects with an OnceError after `timeoutMs` at the latest. */
export function callStore<T>(
  calls: StoreCalls,
  during: During,
  key: Key | undefined,
  call: () => Promise<T>,
  late?: (answer: T) => void,
): Promise<T> {
  return new StoreCall(calls, during, key, late).start(call)
}

/** The same with the store's errors as they are. */
export function bounded<T>(calls: StoreCalls, call: () => Promise<T>, late?: (answer: T) => void): Promise<T> {
  return new BoundedCall(calls, late).start(call)
}

/**
 * One call. It is its own time limit, and one promise: every call of the library comes through here twice. `Told` is what its caller gets,
 * which is the answer unless `heard` makes something else of it.
 */
export class BoundedCall<T, Told = T> extends Limit {
  protected readonly calls: StoreCalls
  readonly #late: ((answer: T) => void) | undefined
  #resolve!: (told: Told | Promise<Told>) => void
  #reject!: (error: unknown) => void
  #isOver = false

  constructor(calls: StoreCalls, late: ((answer: T) => void) | undefined) {
    super()
    this.calls = calls
    this.#late = late
  }

  start(call: () => Promise<T>, nowMs?: number): Promise<Told> {
    const told = new Promise<Told>((resolve, reject) => {
      this.#resolve = resolve
      this.#reject = reject
    })
    this.set(this.calls.clock, this.calls.timeoutMs, nowMs)
    started(call).then(
      (answer) => this.answered(answer),
      (error: unknown) => this.failed(error),
    )
    return told
  }

  passed(): void {
    this.#isOver = true
    this.#fail(new Error(`no answer within ${this.calls.timeoutMs} ms`))
  }

  protected answered(answer: T): void {
    this.cancel()
    if (this.#isOver) return this.late(answer)
    try {
      this.#resolve(this.heard(answer))
    } catch (error) {
      this.#reject(error)
    }
  }

  protected failed(cause: unknown): void {
    this.cancel()
    if (!this.#isOver) this.#fail(cause)
  }

  #fail(cause: unknown): void {
    try {
      this.#resolve(this.heardOf(cause))
    } catch (error) {
      this.#reject(error)
    }
  }

  /** What the caller gets for an answer in time. */
  protected heard(answer: T): Told | Promise<Told> {
    return answer as unknown as Told
  }

  /** The answer came after its caller was told that there is none. */
  protected late(answer: T): void {
    this.#late?.(answer)
  }

  /** What the caller gets for a failure: mostly it throws the error that the caller gets. */
  protected heardOf(cause: unknown): Told | Promise<Told> {
    throw this.errorFor(cause)
  }

  /** The error that the caller gets. */
  protected errorFor(cause: unknown): unknown {
    return cause
  }
}

/** A call whose failure is an OnceError, and is published. */
export class StoreCall<T> extends BoundedCall<T> {
  readonly #during: During
  readonly #key: Key | undefined

  constructor(calls: StoreCalls, during: During, key: Key | undefined, late?: (answer: T) => void) {
    super(calls, late)
    this.#during = during
    this.#key = key
  }

  protected override errorFor(cause: unknown): OnceError {
    const error = cause instanceof OnceError ? cause : unavailable(this.calls, this.#during, cause)
    if (!sessionRefusals.includes(error.code)) {
      publish('store-failed', this.#key, { during: this.#during, code: error.code, ...causeOf(error) })
    }
    if (isUnfit(error)) tellUnfit(this.calls, this.#key, error)
    return error
  }
}

/** What the rules of a session refuse: the store has answered, and nothing failed. */
const sessionRefusals: readonly ErrorCode[] = [
  'SESSION_EXPIRED',
  'FENCED',
  'FORGOTTEN',
  'MISMATCH',
  'WINDOW_EXCEEDED',
  'GAP',
]

/** What is wrong with the store itself, when the error is not retryable: every call fails until a person mends it. */
const unfitCodes: readonly ErrorCode[] = ['STORE_UNAVAILABLE', 'STORE_UNSAFE', 'SCHEMA_MISSING']

/** Only a person can mend the store. */
export function isUnfit(error: unknown): error is OnceError {
  return error instanceof OnceError && !error.retryable && unfitCodes.includes(error.code)
}

/** By createOnce and cause: when a warning was given. */
const warnedAtMs = new WeakMap<StoreCalls, Map<string, number>>()

/** A fault that lasts is reported again, so that it is in today's log, too. */
const warnAgainMs = 3_600_000

/** Callers may see no more than a 503, and the library never logs. So the message, which names the cure, goes to the process's warnings. */
function tellUnfit(calls: StoreCalls, key: Key | undefined, error: OnceError): void {
  const cause = causeOf(error)
  const warned = warnedAtMs.get(calls) ?? new Map<string, number>()
  warnedAtMs.set(calls, warned)
  const what = `${error.code} ${cause.cause ?? ''}`
  const nowMs = calls.clock.elapsed()
  if (nowMs < (warned.get(what) ?? -Infinity) + warnAgainMs) return
  warned.set(what, nowMs)
  publish('store-unfit', undefined, { store: calls.storeName, code: error.code, ...cause })
  // A store of the user's own may name the key, which belongs in no log.
  const message = key ? error.message.replaceAll(describeKey(key), 'a key') : error.message
  process.emitWarning(`The ${calls.storeName} store cannot be used. ${message}`, {
    type: 'OnceonlyWarning',
    code: error.code,
  })
}

/** What throws synchronously is no different from what rejects. */
export function started<T>(call: () => T | Promise<T>): Promise<T> {
  try {
    return Promise.resolve(call())
  } catch (error) {
    return Promise.reject(error as Error)
  }
}

/** Codes only, whatever a driver may have put in the place of one: an event must not carry a key or a value. */
function causeOf({ cause }: OnceError): { cause?: string } {
  const code = typeof cause === 'object' && cause !== null && 'code' in cause ? cause.code : undefined
  return typeof code === 'string' && /^\w{1,40}$/.test(code) ? { cause: code } : {}
}

function unavailable(calls: StoreCalls, during: During, cause: unknown): OnceError {
  const why = cause instanceof Error ? cause.message || cause.name : String(cause)
  const isChange = changes.has(during)
  const became = isChange ? ' It may have done it all the same.' : during === 'claim' ? ' The effect was not run.' : ''
  return new OnceError('STORE_UNAVAILABLE', {
    message: `The ${calls.storeName} store did not answer (${during}): ${why}.${became} Check that the store is up and reachable.`,
    executed: isChange ? 'unknown' : 'no',
    cause,
  })
}

/** What a caller asks the store to change, and is told of. The core's own writes are repeated or judged by token. */
const changes: ReadonlySet<During> = new Set<During>(['mend', 'session'])

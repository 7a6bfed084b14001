// Calls to a store, bounded in time and with errors of one kind. What a call that timed out did is unknown; `late` lets the
// caller clean up when its answer comes after all.

import type { Clock } from './clock.ts'
import { OnceError } from './errors.ts'
import { publish } from './events.ts'
import type { Events } from './events.ts'
import type { Key } from './key.ts'

export interface StoreCalls {
  readonly clock: Clock
  readonly storeName: string
  readonly timeoutMs: number
}

type During = Events['store-failed']['during']

/** Resolves with the answer, or rejects with an OnceError after `timeoutMs` at the latest. */
export async function callStore<T>(
  calls: StoreCalls,
  during: During,
  key: Key | undefined,
  call: () => Promise<T>,
  late?: (answer: T) => void,
): Promise<T> {
  try {
    return await bounded(calls, call, late)
  } catch (cause) {
    const error = cause instanceof OnceError ? cause : unavailable(calls, during, cause)
    publish('store-failed', key, { during, code: error.code, ...causeOf(error) })
    throw error
  }
}

/** The same with the store's errors as they are. */
export function bounded<T>(calls: StoreCalls, call: () => Promise<T>, late?: (answer: T) => void): Promise<T> {
  return new Promise((resolve, reject) => {
    let over = false
    const cancel = calls.clock.schedule(() => {
      over = true
      reject(new Error(`no answer within ${calls.timeoutMs} ms`))
    }, calls.timeoutMs)
    // In a promise chain of its own, so that a store that throws synchronously is no different.
    Promise.resolve()
      .then(call)
      .then(
        (answer) => {
          cancel()
          if (over) late?.(answer)
          else resolve(answer)
        },
        (error: unknown) => {
          cancel()
          reject(error as Error)
        },
      )
  })
}

/** Codes only, whatever a driver may have put in the place of one: an event must not carry a key or a value. */
function causeOf({ cause }: OnceError): { cause?: string } {
  const code = typeof cause === 'object' && cause !== null && 'code' in cause ? cause.code : undefined
  return typeof code === 'string' && /^\w{1,40}$/.test(code) ? { cause: code } : {}
}

function unavailable(calls: StoreCalls, during: During, cause: unknown): OnceError {
  const why = cause instanceof Error ? cause.message || cause.name : String(cause)
  const notRun = during === 'claim' ? ' The effect was not run.' : ''
  return new OnceError('STORE_UNAVAILABLE', {
    message: `The ${calls.storeName} store did not answer (${during}): ${why}.${notRun} Check that the store is up and reachable.`,
    cause,
  })
}

// Who may write, and when. SQLite has one writer at a time. Within this process writers take turns. The store waits for another
// process's lock by asking again, never inside SQLite, where the wait would block the event loop.

import { backoffMs, backoffs } from '../../core/backoff.ts'
import { sleep, systemRandom } from '../../core/clock.ts'
import type { Clock } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { isBusy } from './errors.ts'

/** Waits to be the only writer of this process, for `waitMs` at most. The returned function ends the turn. */
export type TakeTurn = (waitMs: number) => Promise<() => void>

/** In the order of arrival: a transaction that is held for long delays the others, and starves none. */
export function turns(clock: Clock): TakeTurn {
  const waiting: (() => void)[] = []
  let taken = false
  const turn = (): (() => void) => {
    let over = false
    return () => {
      if (over) return
      over = true
      const next = waiting.shift()
      if (next) next()
      else taken = false
    }
  }
  return (waitMs) =>
    new Promise((resolve, reject) => {
      if (!taken) {
        taken = true
        return resolve(turn())
      }
      const enter = (): void => {
        cancel()
        resolve(turn())
      }
      const cancel = clock.schedule(() => {
        waiting.splice(waiting.indexOf(enter), 1)
        reject(noLock(waitMs))
      }, waitMs)
      waiting.push(enter)
    })
}

/** Does `work` as soon as no other process's lock is in its way. Gives up after `waitMs` of waiting. */
export async function whileBusy<T>(clock: Clock, waitMs: number, work: () => T): Promise<T> {
  let waitedMs = 0
  for (let tries = 0; ; tries++) {
    try {
      return work()
    } catch (error) {
      if (!isBusy(error)) throw error
      if (waitedMs >= waitMs) throw noLock(waitMs, error)
    }
    const pauseMs = backoffMs(backoffs.sqliteLock, tries, systemRandom)
    waitedMs += pauseMs
    await sleep(clock, pauseMs)
  }
}

function noLock(waitMs: number, cause?: unknown): OnceError {
  return new OnceError('STORE_UNAVAILABLE', {
    message:
      `The SQLite database stayed locked by another writer for ${waitMs} ms, and nothing was written. Keep transactions short; ` +
      'if the lock is your own, ask inside your transaction with within(tx).',
    cause,
  })
}

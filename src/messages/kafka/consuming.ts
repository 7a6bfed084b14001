// What a loop that runs looks like from outside: it opens by itself, ends once, and says how.

import { backoffMs, backoffs } from '../../core/backoff.ts'
import { sleep, systemClock, systemRandom } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import type { Consuming } from '../broker.ts'
import { reportFailed } from '../failures.ts'

interface Stoppable {
  stop(): Promise<void>
}

interface Hooks {
  /** Ends with this error. */
  end(error: unknown): void
  onError(error: unknown): void
}

/** Opens, again and again until it succeeds, and stops what was opened. `consumer` names it in events. */
export function consuming(consumer: string, open: (hooks: Hooks) => Promise<Stoppable>): Consuming {
  const stopping = new AbortController()
  const { promise: ended, resolve, reject } = Promise.withResolvers<void>()
  // A process that does not look at `ended` has the event.
  ended.catch(() => {})
  let failure: { readonly error: unknown } | undefined
  const hooks: Hooks = {
    end(error) {
      hooks.onError(error)
      failure ??= { error }
      stopping.abort()
    },
    onError: (error) => reportFailed({ broker: 'kafka', consumer }, 'receive', error),
  }
  const openUntilItIs = async (): Promise<Stoppable | undefined> => {
    for (let tries = 0; !stopping.signal.aborted; tries++) {
      try {
        return await open(hooks)
      } catch (error) {
        // A setting that is refused stays refused.
        if (error instanceof OnceError && !error.retryable) hooks.end(error)
        else hooks.onError(error)
      }
      await sleep(systemClock, backoffMs(backoffs.broker, tries, systemRandom), { signal: stopping.signal })
    }
    return undefined
  }
  const run = async (): Promise<void> => {
    const opened = await openUntilItIs()
    if (!stopping.signal.aborted)
      await new Promise<void>((go) => stopping.signal.addEventListener('abort', () => go(), { once: true }))
    await opened?.stop()
    if (failure) throw failure.error
  }
  run().then(resolve, reject)
  return {
    ended,
    async stop() {
      stopping.abort()
      await ended.catch(() => {})
    },
  }
}

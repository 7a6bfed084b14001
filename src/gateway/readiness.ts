// Whether a keyed request could be served now: the watch asks `once.ready()` every few seconds. So a store that is down,
// read-only, full or in quarantine is noticed. It takes several failures to be not ready, and several successes to be ready again, so
// that a blip does not drain a fleet.

import { sleep } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import type { OnceRunner } from '../core/once.ts'

export interface ReadinessOptions {
  readonly once: Pick<OnceRunner, 'ready'>
  readonly clock: Clock
  /** Called when it becomes not ready, with the reason, and when it is ready again. */
  readonly onChange?: (notReady: string | undefined) => void
}

export interface ReadinessWatch {
  /** Why no keyed request can be served, or undefined. */
  notReady(): string | undefined
  close(): Promise<void>
}

// A load balancer asks about as often.
const everyMs = 2_000
// Six seconds of failures: longer than the failover of a Sentinel that is tuned for it, shorter than clients' patience.
const failuresMax = 3
const successesMin = 2

export function watchReadiness(options: ReadinessOptions): ReadinessWatch {
  const { once, clock, onChange } = options
  const closing = new AbortController()
  let failures = 0
  let successes = successesMin
  let why: string | undefined

  const become = (reason: string | undefined): void => {
    const changes = (why === undefined) !== (reason === undefined)
    why = reason
    if (changes) onChange?.(reason)
  }
  const look = async (): Promise<void> => {
    try {
      await once.ready()
      failures = 0
      successes += 1
      if (successes >= successesMin) become(undefined)
    } catch (error) {
      failures += 1
      successes = 0
      if (failures >= failuresMax || why !== undefined) become(error instanceof Error ? error.message : String(error))
    }
  }
  const watching = (async () => {
    while (!closing.signal.aborted) {
      await look()
      await sleep(clock, everyMs, { signal: closing.signal, background: 'background' })
    }
  })()
  return {
    notReady: () => why,
    async close() {
      closing.abort()
      await watching
    },
  }
}

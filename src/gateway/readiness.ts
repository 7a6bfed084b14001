// Whether a keyed request could be served now: the watch claims its own key every few seconds and forgets it, as a request
// would. So a store that is down, read-only, full or in quarantine is noticed. It takes several failures to be not ready, and
// several successes to be ready again, so that a blip does not drain a fleet.

import { sleep, systemRandom } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { fingerprint } from '../core/fingerprint.ts'
import { key } from '../core/key.ts'
import { callStore } from '../core/timed-call.ts'
import type { Store } from '../core/store.ts'

export interface ReadinessOptions {
  readonly store: Store
  /** The keys of the watch are in `scope#readiness`, which is no tenant's. */
  readonly scope: string
  readonly storeTimeoutMs: number
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
// Longer than any probe takes. A probe that cannot release its key leaves it to the lease.
const leaseMs = 30_000

export function watchReadiness(options: ReadinessOptions): ReadinessWatch {
  const { clock, onChange } = options
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
      await claimAndForget(options)
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

const request = {
  fingerprint: fingerprint('readiness'),
  leaseMs,
  retention: { keepMs: leaseMs, tombstoneMs: 0 },
  version: 0,
  onTakeover: 'run',
  onExpired: 'run',
} as const

async function claimAndForget({ store, scope, clock, storeTimeoutMs }: ReadinessOptions): Promise<void> {
  const calls = { clock, storeName: store.name, timeoutMs: storeTimeoutMs }
  const token = systemRandom.uuid()
  const probe = key(`${scope}#readiness`, token)
  const verdict = await callStore(calls, 'claim', probe, () => store.claim(probe, { ...request, token }))
  if (verdict.is === 'granted') await callStore(calls, 'release', probe, () => store.release(verdict.claim, 'forget'))
}

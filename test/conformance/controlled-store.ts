// A store between the middleware and the real one: it can be cut off, slowed down, narrowed or killed, and it knows what is going on,
// so that the runner waits for events and never for time. It changes no answer.
import type { Clock } from '../../src/core/clock.ts'
import { sleep } from '../../src/core/clock.ts'
import { OnceError } from '../../src/core/errors.ts'
import { describeKey, type Key } from '../../src/core/key.ts'
import type { Inspectable, Store, Transactional } from '../../src/core/store.ts'

export type StoreMode = 'restore' | 'cut' | 'slow' | 'narrow'

export interface ControlledStore {
  readonly store: Store
  readonly mode: () => StoreMode
  setMode(mode: StoreMode): void
  readonly seen: Seen
}

export interface Seen {
  /** Claims that were asked, answered at all, answered `busy`. */
  claimsAsked: number
  claims: number
  busy: number
  settles: number
  releases: number
  /** Calls that the real store has not answered yet. */
  inFlight: number
  /** Calls that wait behind a slow line. */
  slow: number
}

/** The case says 30 s; longer than any time-out is what matters. */
const slowMs = 30_000

export function controlledStore(real: Store, clock: Clock): ControlledStore {
  const seen: Seen = { claimsAsked: 0, claims: 0, busy: 0, settles: 0, releases: 0, inFlight: 0, slow: 0 }
  let mode: StoreMode = 'restore'

  async function call<T>(key: Key, ask: () => Promise<T>): Promise<T> {
    if (mode === 'cut') throw cutOff(key)
    if (mode === 'slow') {
      seen.slow++
      await sleep(clock, slowMs, { background: 'background' })
      seen.slow--
    }
    seen.inFlight++
    try {
      return await ask()
    } finally {
      seen.inFlight--
    }
  }

  const store: Store = {
    name: real.name,
    async claim(key, request) {
      seen.claimsAsked++
      const verdict = await call(key, () => real.claim(key, request))
      seen.claims++
      if (verdict.is === 'busy') seen.busy++
      return verdict
    },
    extend: (claim, leaseMs) => call(claim.key, () => real.extend(claim, leaseMs)),
    async settle(claim, outcome, retention) {
      if (mode === 'narrow' && outcome.length > narrowBytes) throw tooLarge()
      const fenced = await call(claim.key, () => real.settle(claim, outcome, retention))
      seen.settles++
      return fenced
    },
    async release(claim, how) {
      const fenced = await call(claim.key, () => real.release(claim, how))
      seen.releases++
      return fenced
    },
  }
  return { store: { ...more(real, call), ...store }, seen, mode: () => mode, setMode: (next) => void (mode = next) }
}

/** As DynamoDB and MongoDB have a limit, only lower. */
const narrowBytes = 1_000

function tooLarge(): OnceError {
  return new OnceError('OUTCOME_NOT_STORED', { message: `more than ${narrowBytes} bytes` })
}

type CallThrough = <T>(key: Key, ask: () => Promise<T>) => Promise<T>

/** As the stores that are servers say it, with the key in it: whoever logs or publishes must not show that. */
function cutOff(key: Key): OnceError {
  const message = `connect ECONNREFUSED: the call for ${describeKey(key)} did not reach the store.`
  return new OnceError('STORE_UNAVAILABLE', { message })
}

/** The other interfaces of the real store, where it has them. */
function more(real: Store, call: CallThrough): Partial<Transactional<unknown> & Inspectable> {
  const given = real as Store & Partial<Transactional<unknown> & Inspectable>
  return {
    ...(given.begin && {
      begin: (key, request) => call(key, () => given.begin!(key, request)),
      within: (tx) => given.within!(tx),
      isConflict: (error) => given.isConflict!(error),
    }),
    ...(given.show && {
      show: (key) => call(key, () => given.show!(key)),
      list: (filter) => given.list!(filter),
      mend: (key, action, reason) => call(key, () => given.mend!(key, action, reason)),
      audit: (key) => call(key, () => given.audit!(key)),
    }),
  }
}

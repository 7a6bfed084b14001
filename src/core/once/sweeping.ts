// Expiry in the background of a process that uses the store anyway, in bounded steps. It is safe to run in all of them at once.

import { backoffMs, backoffs } from '../backoff.ts'
import type { Backoff } from '../backoff.ts'
import type { RunContext } from '../call.ts'
import { sleep } from '../clock.ts'
import { OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import { callStore } from '../timed-call.ts'
import type { Store, Sweepable, Swept } from '../store.ts'

/** A step of this many entries holds no lock long enough to be noticed. A store on which it would be takes fewer (SQLite). */
const stepLimit = 1_000

/** Sweeps every `everyMs`. Undefined leaves it to the store: one that needs a sweep gets it by default. */
export function startSweeping(context: RunContext, everyMs: number | false | undefined): void {
  const { store } = context
  if (everyMs === false) return
  if (!isSweepable(store)) {
    if (everyMs === undefined) return
    throw new OnceError('UNSUPPORTED', {
      message:
        `sweepEveryMs: the ${store.name} store has no sweep. A store without one (Redis) gives every key its own expiry and ` +
        'forgets by itself: leave sweepEveryMs out.',
    })
  }
  if (everyMs === undefined && store.isSweptByServer) return
  const pause = everyMs === undefined ? backoffs.sweep : { firstMs: everyMs, factor: 1, maxMs: everyMs }
  context.background(sweepUntilClosed(context, store, pause))
}

function isSweepable(store: Store): store is Store & Sweepable {
  return 'sweep' in store
}

async function sweepUntilClosed(context: RunContext, store: Sweepable, pause: Backoff): Promise<void> {
  const { clock, closing, random } = context
  for (let idleRounds = 0; !closing.aborted;) {
    // The pause has jitter: processes that started together do not sweep together.
    await sleep(clock, backoffMs(pause, idleRounds, random), { signal: closing, background: 'background' })
    idleRounds++
    for (let more = true; more && !closing.aborted;) {
      const swept = await sweepStep(context, store)
      if (swept.tombstoned + swept.forgotten > 0) idleRounds = 0
      more = swept.more
    }
  }
}

async function sweepStep(context: RunContext, store: Sweepable): Promise<Swept> {
  const sweep = (): Promise<Swept> => store.sweep({ limit: stepLimit })
  const swept = await callStore(context.storeCalls, 'sweep', undefined, sweep).catch(() => nothing)
  const { tombstoned, forgotten } = swept
  if (tombstoned + forgotten > 0) publish('swept', undefined, { tombstoned, forgotten })
  return swept
}

/** What a sweep that failed did. It was published as store-failed, and the next round tries again. */
const nothing: Swept = { tombstoned: 0, forgotten: 0, more: false }

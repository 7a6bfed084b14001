// Expiry in the background of a process that uses the store anyway; safe to run in all of them at once.

import type { RunContext } from '../call.ts'
import { sleep } from '../clock.ts'
import { OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import { callStore } from '../timed-call.ts'
import type { Store, Sweepable } from '../store.ts'

/** A step of this many entries holds no lock long enough to be noticed. */
const stepLimit = 1_000

export function startSweeping(context: RunContext, everyMs: number): void {
  const { store } = context
  if (!('sweep' in store))
    throw new OnceError('UNSUPPORTED', {
      message:
        `sweepEveryMs: the ${store.name} store has no sweep. A store without one (Redis) gives every key its own expiry and ` +
        'forgets by itself: leave sweepEveryMs out.',
    })
  context.background(sweepUntilClosed(context, store as Store & Sweepable, everyMs))
}

async function sweepUntilClosed(context: RunContext, store: Sweepable, everyMs: number): Promise<void> {
  const { clock, closing, random } = context
  while (!closing.aborted) {
    // Half to all of the time: machines that started together do not sweep together.
    const pauseMs = everyMs * (0.5 + random.fraction() / 2)
    await sleep(clock, pauseMs, { signal: closing, background: 'background' })
    for (let more = true; more && !closing.aborted;) more = await sweepStep(context, store)
  }
}

async function sweepStep(context: RunContext, store: Sweepable): Promise<boolean> {
  const swept = await callStore(context.storeCalls, 'sweep', undefined, () => store.sweep({ limit: stepLimit })).catch(
    () => undefined,
  )
  if (!swept) return false // it was published as store-failed; the next round tries again
  const { tombstoned, forgotten, more } = swept
  if (tombstoned + forgotten > 0) publish('swept', undefined, { tombstoned, forgotten })
  return more
}

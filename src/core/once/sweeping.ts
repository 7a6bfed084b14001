// Expiry in the background of a process that uses the store anyway; safe to run in all of them at once.

import type { Ground } from './attempt.ts'
import { sleep } from '../clock.ts'
import { OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import { callStore } from '../store-call.ts'
import type { Store, Sweepable } from '../store.ts'

/** A step of this many entries holds no lock long enough to be noticed. */
const stepLimit = 1_000

export function startSweeping(ground: Ground, everyMs: number): void {
  const { store } = ground
  if (!('sweep' in store))
    throw new OnceError('UNSUPPORTED', {
      message:
        `sweepEveryMs: the ${store.name} store has no sweep. A store without one (Redis) gives every key its own expiry and ` +
        'forgets by itself: leave sweepEveryMs out.',
    })
  ground.background(sweepUntilClosed(ground, store as Store & Sweepable, everyMs))
}

async function sweepUntilClosed(ground: Ground, store: Sweepable, everyMs: number): Promise<void> {
  const { clock, closing, random } = ground
  while (!closing.aborted) {
    // Half to all of the time: machines that started together do not sweep together.
    const pauseMs = everyMs * (0.5 + random.fraction() / 2)
    await sleep(clock, pauseMs, { signal: closing, background: 'background' })
    for (let more = true; more && !closing.aborted;) more = await sweepStep(ground, store)
  }
}

async function sweepStep(ground: Ground, store: Sweepable): Promise<boolean> {
  const swept = await callStore(ground.calls, 'sweep', undefined, () => store.sweep({ limit: stepLimit })).catch(
    () => undefined,
  )
  if (!swept) return false // it was published as store-failed; the next round tries again
  const { tombstoned, forgotten, more } = swept
  if (tombstoned + forgotten > 0) publish('swept', undefined, { tombstoned, forgotten })
  return more
}

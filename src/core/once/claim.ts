// Asking the store for a key. A claim whose answer never came is disowned by its token, so that a key whose effect will not
// run is not blocked; a claim that was granted too long ago is confirmed before anything starts.

import { claimLost } from './attempt.ts'
import type { Ground } from './attempt.ts'
import { sleep } from '../clock.ts'
import { OnceError } from '../errors.ts'
import type { Key } from '../key.ts'
import type { Settings } from '../settings.ts'
import { callStore } from '../store-call.ts'
import type { Claim, ClaimRequest, Verdict } from '../store.ts'
import type { Asked } from './waiting.ts'

/** The lease counts from the asking: a process that stood still until it was over must not start what another may have taken. */
export async function stillHeld(ground: Ground, held: Claim, settings: Settings, askedMs: number): Promise<void> {
  if (ground.clock.elapsed() - askedMs < settings.leaseMs) return
  const fenced = await callStore(ground.calls, 'extend', held.key, () => ground.store.extend(held, settings.leaseMs))
  if (fenced === 'lost') throw claimLost(held, settings, { executed: 'no' })
}

/** `ask` claims the key with this request, in whatever way the store has for it. */
export async function claim(
  ground: Ground,
  key: Key,
  request: ClaimRequest,
  ask: () => Promise<Verdict>,
): Promise<Asked & { askedMs: number }> {
  const askedMs = ground.clock.elapsed()
  const disown = (): void => ground.background(releaseUnheard(ground, key, request))
  const late = (verdict: Asked['verdict']): void => {
    if (verdict.is === 'granted') disown()
  }
  try {
    return { verdict: await callStore(ground.calls, 'claim', key, ask, late), askedMs }
  } catch (error) {
    // The claim may have landed although nobody heard of it. Its effect will not run, so it must not block the key.
    if (error instanceof OnceError && error.code === 'STORE_UNAVAILABLE') disown()
    throw error
  }
}

/** A claim that was cut off may still be on its way to the store: the release is repeated. No effect runs under its token. */
const unheardReleaseDelaysMs = [0, 100, 1_000, 5_000]

async function releaseUnheard(ground: Ground, key: Key, request: ClaimRequest): Promise<void> {
  const unheard: Claim = { key, token: request.token, attempt: 0, fence: 0 }
  for (const delayMs of unheardReleaseDelaysMs) {
    if (delayMs >= request.leaseMs) return
    await sleep(ground.clock, delayMs, { signal: ground.closing, background: 'background' })
    const fenced = await callStore(ground.calls, 'release', key, () => ground.store.release(unheard, 'forget')).catch(
      () => undefined,
    )
    if (fenced === 'lost') return
  }
}

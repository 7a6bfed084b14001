// Could the store serve a call now? A key of no caller's is claimed and forgotten, as a call would do it, so that everything which
// would refuse a call refuses here: a server that is down, read-only, full, unsafe, without tables, or that knows another password.

import type { RunContext } from '../call.ts'
import { fingerprint } from '../fingerprint.ts'
import { key } from '../key.ts'
import { callStore } from '../timed-call.ts'
import type { Verdict } from '../store.ts'

// Longer than any probe takes. A probe that cannot release its key leaves it to the lease.
const leaseMs = 30_000

const request = {
  fingerprint: fingerprint('readiness'),
  leaseMs,
  retention: { keepMs: leaseMs, tombstoneMs: 0 },
  version: 0,
  onTakeover: 'run',
  onExpired: 'run',
} as const

export async function checkReady({ store, storeCalls, random, background }: RunContext, scope: string): Promise<void> {
  const token = random.uuid()
  // In a scope that is no tenant's.
  const probe = key(`${scope}#readiness`, token)
  const forget = async (verdict: Verdict): Promise<void> => {
    if (verdict.is !== 'granted') return
    await callStore(storeCalls, 'release', probe, () => store.release(verdict.claim, 'forget'))
  }
  const claim = (): Promise<Verdict> => store.claim(probe, { ...request, token })
  await forget(await callStore(storeCalls, 'claim', probe, claim, (late) => background(forget(late))))
}

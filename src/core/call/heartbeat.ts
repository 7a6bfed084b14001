// Keeps a lease alive while its effect runs.

import { callStore } from '../timed-call.ts'
import type { Claim } from '../store.ts'
import type { RunContext } from './attempt.ts'

/**
 * Extends the lease at a third of it, so that two extensions may fail before it ends. Calls `onEnd` when the store says that
 * the claim is lost, or when a whole lease passed without an answer (`silent`: it may be lost, and only the store can tell).
 * Returns what stops it.
 */
export function startHeartbeat(
  context: RunContext,
  claim: Claim,
  leaseMs: number,
  onEnd: (why: 'lost' | 'silent') => void,
): () => void {
  const { clock, store } = context
  const periodMs = leaseMs / 3
  let stopped = false
  let aliveMs = clock.elapsed()
  let cancel = clock.schedule(() => void beat(), periodMs)
  const leftMs = (): number => aliveMs + leaseMs - clock.elapsed()

  async function beat(): Promise<void> {
    const beganMs = clock.elapsed()
    // Below a millisecond nothing can be extended any more, and a timer for it would only come back here.
    if (leftMs() < 1) return end('silent')
    const calls = { ...context.storeCalls, timeoutMs: Math.min(context.storeCalls.timeoutMs, leftMs()) }
    const fenced = await callStore(calls, 'extend', claim.key, () => store.extend(claim, leaseMs)).catch(
      () => undefined,
    )
    if (stopped) return
    if (fenced === 'lost') return end('lost')
    // The lease counts from when the store wrote it, at the earliest when we asked.
    if (fenced === 'done') aliveMs = beganMs
    const pauseMs = Math.min(periodMs - (clock.elapsed() - beganMs), leftMs())
    cancel = clock.schedule(() => void beat(), Math.max(0, pauseMs))
  }

  function end(why: 'lost' | 'silent'): void {
    if (stopped) return
    stopped = true
    cancel()
    onEnd(why)
  }

  return () => {
    stopped = true
    cancel()
  }
}

// Keeps a lease alive while its effect runs.

import { Limit } from '../clock.ts'
import { callStore } from '../timed-call.ts'
import type { Claim } from '../store.ts'
import type { RunContext } from './attempt.ts'

/** What holds the key by this heartbeat. */
export interface HeartbeatHolder {
  readonly claim: Claim
  readonly settings: { readonly leaseMs: number }
  /**
   * The store says that the claim is lost, or a whole lease passed without an answer (`silent`: it may be lost, and only the
   * store can tell).
   */
  heartbeatEnded(why: 'lost' | 'silent'): void
}

/** Extends the lease at a third of it, so that two extensions may fail before it ends. */
export class Heartbeat extends Limit {
  readonly #context: RunContext
  readonly #holder: HeartbeatHolder
  #aliveMs: number
  #isStopped = false

  /** The lease counts from `heldMs`. */
  constructor(context: RunContext, holder: HeartbeatHolder, heldMs: number) {
    super()
    this.#context = context
    this.#holder = holder
    this.#aliveMs = heldMs
    this.set(context.clock, this.#periodMs, heldMs)
  }

  stop(): void {
    this.#isStopped = true
    this.cancel()
  }

  passed(): void {
    void this.#beat()
  }

  get #periodMs(): number {
    return this.#holder.settings.leaseMs / 3
  }

  get #leftMs(): number {
    return this.#aliveMs + this.#holder.settings.leaseMs - this.#context.clock.elapsed()
  }

  async #beat(): Promise<void> {
    const { clock, store, storeCalls } = this.#context
    const { claim, settings } = this.#holder
    const beganMs = clock.elapsed()
    // Below a millisecond nothing can be extended any more, and a timer for it would only come back here.
    if (this.#leftMs < 1) return this.#end('silent')
    const calls = { ...storeCalls, timeoutMs: Math.min(storeCalls.timeoutMs, this.#leftMs) }
    const extend = callStore(calls, 'extend', claim.key, () => store.extend(claim, settings.leaseMs))
    const fenced = await extend.catch(() => undefined)
    if (this.#isStopped) return
    if (fenced === 'lost') return this.#end('lost')
    // The lease counts from when the store wrote it, at the earliest when we asked.
    if (fenced === 'done') this.#aliveMs = beganMs
    const pauseMs = Math.min(this.#periodMs - (clock.elapsed() - beganMs), this.#leftMs)
    this.set(clock, Math.max(0, pauseMs))
  }

  #end(why: 'lost' | 'silent'): void {
    if (this.#isStopped) return
    this.stop()
    this.#holder.heartbeatEnded(why)
  }
}

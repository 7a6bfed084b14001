// What the members of all clients share: they begin anew after a failure, and a process that stood still takes itself for dead.

import { backoffMs, backoffs } from '../../core/backoff.ts'
import { sleep, systemClock, systemRandom } from '../../core/clock.ts'
import type { KafkaGroupOptions, KafkaMember } from '../kafka.ts'

/** Serves until `stop`, and again after each failure. `serve` resolves after its signal, and rejects to begin anew. */
export function openMember(serve: (stopping: AbortSignal) => Promise<void>, options: KafkaGroupOptions): KafkaMember {
  const stopping = new AbortController()
  const { signal } = stopping
  const loop = async (): Promise<void> => {
    for (let tries = 0; !signal.aborted; tries++) {
      const beganMs = systemClock.elapsed()
      try {
        await serve(signal)
        return
      } catch (error) {
        options.onError(error)
      }
      // It had worked for a while.
      if (systemClock.elapsed() - beganMs > backoffs.broker.maxMs) tries = 0
      await sleep(systemClock, backoffMs(backoffs.broker, tries, systemRandom), { signal })
    }
  }
  const running = loop()
  return {
    async stop() {
      stopping.abort()
      await running
    },
  }
}

export interface Halts {
  /** Throws when the process has stood still. */
  check(): void
  stop(): void
}

/**
 * Notices that the process stood still (SIGSTOP, a suspended machine, a blocked event loop) for so long that the group may have given its
 * partitions away. The clients join again by themselves, and then commit under the new generation what a zombie has handled. So `onHalt`
 * is called before anything else can be committed, and `check` throws from then on.
 */
export function watchHalts(sessionMs: number, onHalt: () => void): Halts {
  // The broker counts from the last heartbeat, of which there are ten per session.
  const limitMs = sessionMs * 0.7
  let lastMs = systemClock.elapsed()
  let haltedMs: number | undefined
  const look = (): void => {
    const nowMs = systemClock.elapsed()
    if (haltedMs === undefined && nowMs - lastMs > limitMs) {
      haltedMs = nowMs - lastMs
      onHalt()
    }
    lastMs = nowMs
  }
  let cancel = (): void => {}
  const tick = (): void => {
    look()
    cancel = systemClock.schedule(tick, limitMs / 4, 'background')
  }
  tick()
  return {
    check() {
      look()
      if (haltedMs === undefined) return
      throw new Error(
        `The process stood still for ${Math.round(haltedMs)} ms of a session of ${sessionMs} ms. It joins the group again.`,
      )
    },
    stop: () => cancel(),
  }
}

// What a consumer has in hand. Invariants: at most so many messages are handled at once, also while the work of a connection that has
// ended still runs; messages of one key are handled one after another, in the order in which they came; and one that failed is tried
// again before a later one of its key, as long as it is ours.
//
// A message that failed is tried again in place. To give it back would cost one of the deliveries that a broker allows, and a database
// that is down for some seconds would cost all of them: the broker would drop messages that the inbox has not seen.

import { sleep } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import type { Message, MessageHandler, Receiver } from './broker.ts'

/** A message between its arrival and the broker's word that it is done with. */
export interface HeldMessage {
  readonly message: Message
  /** False when its connection has ended: the broker takes no acknowledgement any more, and delivers it again. */
  isOurs(): boolean
  acknowledge(): Promise<void>
  /** The broker can keep it until its next try, and delivers it as often as it takes. Then it takes no room here meanwhile. */
  readonly canWaitAtBroker: boolean
  /** Lets the broker deliver it again after this time. Never throws. */
  giveBack(afterMs: number): void
}

export interface HandlingOptions<Tx> {
  readonly inbox: Receiver<Tx>
  readonly handler: MessageHandler<Tx>
  /** Messages that are handled at once, at most. */
  readonly atOnce: number
  readonly clock: Clock
  /** Begin nothing any more, and end what is under way. */
  readonly stop: AbortSignal
}

export interface InHand {
  take(held: HeldMessage): void
  readonly size: number
  /** Resolves when fewer than `count` are in hand. For one that asks at a time. */
  below(count: number): Promise<void>
  /** Resolves when nothing is in hand. */
  empty(): Promise<void>
}

export function handling<Tx>(options: HandlingOptions<Tx>): InHand {
  const { inbox, handler, stop, clock } = options
  const permitted = permits(options.atOnce)
  const work = new Set<Promise<void>>()
  const lastOfKey = new Map<string, Promise<void>>()

  const handle = async (held: HeldMessage): Promise<void> => {
    for (;;) {
      // A later message of the key must not begin when the one before it comes again.
      if (stop.aborted || !held.isOurs()) return held.giveBack(0)
      const delivered = await permitted(() => inbox.deliver(held.message, handler, () => held.acknowledge()))
      if (delivered.acknowledged) return
      const { retryAfterMs } = delivered
      // With a key it stays here, and keeps the later ones of its key waiting.
      if (held.canWaitAtBroker && held.message.key === undefined) return held.giveBack(retryAfterMs)
      await sleep(clock, retryAfterMs, { signal: stop })
    }
  }

  let wake = (): void => {}
  return {
    get size() {
      return work.size
    },
    async below(count) {
      while (work.size >= count) await new Promise<void>((resolve) => (wake = resolve))
    },
    take(held) {
      const { key } = held.message
      const before = key === undefined ? undefined : lastOfKey.get(key)
      const done = before ? before.then(() => handle(held)) : handle(held)
      work.add(done)
      if (key !== undefined) lastOfKey.set(key, done)
      void done.finally(() => {
        work.delete(done)
        wake()
        if (key !== undefined && lastOfKey.get(key) === done) lastOfKey.delete(key)
      })
    },
    async empty() {
      while (work.size > 0) await Promise.all(work)
    },
  }
}

function permits(count: number): <T>(work: () => Promise<T>) => Promise<T> {
  let free = count
  const waiting: (() => void)[] = []
  return async (work) => {
    if (free > 0) free -= 1
    else await new Promise<void>((resolve) => waiting.push(resolve))
    try {
      return await work()
    } finally {
      const next = waiting.shift()
      if (next) next()
      else free += 1
    }
  }
}

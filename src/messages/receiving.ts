// The loop of a consumer that asks its broker for messages: SQS, Redis Streams. Invariants: it never holds more messages than it may;
// what it holds is kept from other consumers by a heartbeat; and it ends when all that it held is done with.

import { backoffMs, backoffs, pausesMs } from '../core/backoff.ts'
import type { Backoff } from '../core/backoff.ts'
import { sleep } from '../core/clock.ts'
import type { Clock, Random } from '../core/clock.ts'
import type { Consuming } from './broker.ts'
import { reportFailed } from './failures.ts'

/** A broker as the loop asks it. */
export interface Source<Item> {
  readonly broker: string
  readonly consumer: string
  readonly clock: Clock
  readonly random: Random
  readonly inFlight: number
  readonly heartbeatMs: number
  /** Between two questions of which the first found nothing, where the broker does not wait for messages itself. */
  readonly pauses?: Backoff
  /** How long the broker may wait for messages before it answers. */
  readonly waitMs: number
  /** `asking` is aborted when the consumer has been stopped and the broker has no answer although its time is over. */
  receive(countMax: number, asking: AbortController): Promise<readonly Item[]>
  /** Resolves when the items are done with. Each has been let go by then. */
  handle(items: readonly Item[], hand: Hand<Item>): Promise<void>
  /** Keeps items from other consumers for another while. Returns each one's error. */
  extend(items: readonly Item[]): Promise<readonly (Error | undefined)[]>
  /** Items that came after the consumer was stopped. */
  putBack(items: readonly Item[]): Promise<void>
  /** The error to end with, when no retry cures this one. */
  hopeless(error: unknown): Error | undefined
}

/** What the handling of an item tells the loop. */
export interface Hand<Item> {
  readonly stopping: AbortSignal
  /** It is held no more: there is room for another, and no heartbeat for it begins. */
  letGo(item: Item): void
  /** Resolves when no heartbeat is on its way: one that comes late would hide an item for longer than it should be. */
  quiet(): Promise<void>
}

export function startReceiving<Item>(source: Source<Item>): Consuming {
  const stopping = new AbortController()
  const held = new Set<Item>()
  const work = new Set<Promise<void>>()
  let wake = (): void => {}
  const heartbeat = heartbeatOf(source, held)
  const hand: Hand<Item> = {
    stopping: stopping.signal,
    quiet: heartbeat.quiet,
    letGo(item) {
      held.delete(item)
      wake()
    },
  }
  const hold = (items: readonly Item[]): void => {
    if (items.length === 0) return
    for (const item of items) held.add(item)
    heartbeat.start()
    const done = source.handle(items, hand).finally(() => work.delete(done))
    work.add(done)
  }
  const run = async (): Promise<void> => {
    try {
      await receiveUntil(stopping.signal, source, {
        free: () => source.inFlight - held.size,
        room: () => new Promise((resolve) => (wake = resolve)),
        hold,
      })
    } finally {
      await Promise.all(work)
      heartbeat.stop()
    }
  }
  const ended = run()
  return {
    ended,
    async stop() {
      stopping.abort()
      await ended.catch(() => {})
    },
  }
}

interface Hands<Item> {
  free(): number
  /** Resolves when there may be room. */
  room(): Promise<void>
  hold(items: readonly Item[]): void
}

async function receiveUntil<Item>(stop: AbortSignal, source: Source<Item>, hands: Hands<Item>): Promise<void> {
  const { clock, random, pauses } = source
  const pause = (backoff: Backoff, tries: number): Promise<void> =>
    sleep(clock, backoffMs(backoff, tries, random), { signal: stop })
  let failures = 0
  let nothings = 0
  while (!stop.aborted) {
    if (hands.free() <= 0) {
      await hands.room()
      continue
    }
    try {
      const items = await receiveOrStop(stop, source, hands.free())
      failures = 0
      if (stop.aborted) return await source.putBack(items)
      hands.hold(items)
      nothings = items.length === 0 ? nothings + 1 : 0
      if (pauses && nothings > 0) await pause(pauses, nothings - 1)
    } catch (error) {
      if (stop.aborted) return
      reportFailed(source, 'receive', error)
      const last = source.hopeless(error)
      if (last) throw last
      await pause(backoffs.broker, failures++)
    }
  }
}

// A question that is under way when the consumer is stopped is waited for. The broker may not notice that it was cut off, and give messages
// that come meanwhile to nobody: they would be hidden for a while.
async function receiveOrStop<Item>(stop: AbortSignal, source: Source<Item>, count: number): Promise<readonly Item[]> {
  const { clock, waitMs } = source
  const asking = new AbortController()
  const askedAt = clock.elapsed()
  let cancel = (): void => {}
  const onStop = (): void => {
    const leftMs = Math.max(0, askedAt + waitMs - clock.elapsed())
    cancel = clock.schedule(() => asking.abort(), leftMs + pausesMs.lastReceive)
  }
  stop.addEventListener('abort', onStop, { once: true })
  try {
    return await source.receive(count, asking)
  } finally {
    stop.removeEventListener('abort', onStop)
    cancel()
  }
}

interface Heartbeat {
  start(): void
  stop(): void
  quiet(): Promise<void>
}

function heartbeatOf<Item>(source: Source<Item>, held: ReadonlySet<Item>): Heartbeat {
  let cancel: (() => void) | undefined
  let beating: Promise<void> = Promise.resolve()
  const extend = async (items: readonly Item[]): Promise<void> => {
    const failures = await source.extend(items)
    // One that has been acknowledged meanwhile cannot be extended, and need not.
    const failure = failures.find((each, index) => each !== undefined && held.has(items[index]!))
    if (failure) reportFailed(source, 'extend', failure)
  }
  const beat = async (): Promise<void> => {
    beating = extend([...held])
    await beating
    if (cancel) cancel = held.size > 0 ? schedule() : undefined
  }
  const schedule = (): (() => void) => source.clock.schedule(() => void beat(), source.heartbeatMs)
  return {
    start: () => void (cancel ??= schedule()),
    stop() {
      cancel?.()
      cancel = undefined
    },
    quiet: () => beating,
  }
}

// Lane batching without timers: an idle lane dispatches at once, and what arrives while a batch is under way forms the next one.
// A lone caller pays nothing for it (a 1 ms timer would cost 3 to 4 times its latency). Many callers share one commit.
// A server reads requests from many sockets in one turn of the event loop: where asked for, what follows the first of a turn goes at its
// end, together.

import { systemClock } from './clock.ts'
import type { Clock } from './clock.ts'

export interface LaneOptions<Request, Reply> {
  /** Carries out a batch and returns the results in its order. A rejection is every caller's. */
  dispatch(batch: readonly Request[]): Promise<readonly Reply[]>
  /** Waited for before a batch is taken: what arrives meanwhile belongs to it. */
  gather?(): Promise<unknown>
  /** Requests that one dispatch takes at the most. The rest waits for the next dispatch. */
  batchMax: number
  /**
   * What one dispatch takes at the least, if there are as many. Of more, each free dispatch gets its share: while the server works on one, the
   * next is made and the last is read. `batchMax` unless told: one dispatch takes all that it can.
   */
  batchMin?: number
  /** Dispatches under way at once at the most. */
  dispatchesMax: number
  /**
   * Gathers the requests of one turn of the event loop: the first goes at once if a dispatch is free, and those after it together, when they
   * are `batchMin` or the turn ends. For many dispatches at once: of two, the first alone would take one. The clock of a test has no turns,
   * and gathers nothing.
   */
  gatherTurns?: Clock
}

// As it was when this was loaded: a test of a user that replaces the timers would hold back what is gathered. Some environments of tests
// have none.
const atEndOfTurn: ((then: () => void) => unknown) | undefined = globalThis.setImmediate

// One microtask later, so that calls made in one go are one batch even on an idle lane. `queueMicrotask` of Node does the same, and
// makes three objects for it.
const soon = Promise.resolve()

export function lane<Request, Reply>(options: LaneOptions<Request, Reply>): (request: Request) => Promise<Reply> {
  interface Waiting {
    readonly request: Request
    readonly resolve: (reply: Reply) => void
    readonly reject: (error: unknown) => void
  }
  let waiting: Waiting[] = []
  let dispatches = 0
  let isScheduled = false
  let isTurnUnderWay = false
  /** The first request of the turn was served: what comes now is held. */
  let isGathering = false

  const { batchMax, batchMin = batchMax, dispatchesMax } = options
  const hasTurns = options.gatherTurns === systemClock && typeof atEndOfTurn === 'function'
  const nextSize = (): number => {
    const free = dispatchesMax - dispatches + 1
    return Math.min(batchMax, Math.max(batchMin, Math.ceil(waiting.length / free)))
  }

  const dispatchNext = async (): Promise<void> => {
    dispatches++
    if (options.gather) await options.gather()
    const batch = waiting.splice(0, nextSize())
    try {
      const replies = await options.dispatch(batch.map((each) => each.request))
      if (replies.length !== batch.length) {
        throw new Error(`Bug! A batch of ${batch.length} requests was answered by ${replies.length} replies.`)
      }
      batch.forEach((each, index) => each.resolve(replies[index]!))
    } catch (error) {
      for (const each of batch) each.reject(error)
    } finally {
      dispatches--
      drain()
    }
  }

  const isEnough = (): boolean => waiting.length >= (isGathering ? batchMin : 1)
  const drain = (): void => {
    while (isEnough() && dispatches < dispatchesMax) void dispatchNext()
  }
  const drainScheduled = (): void => {
    isScheduled = false
    drain()
    isGathering = isTurnUnderWay
  }
  const endTurn = (): void => {
    isGathering = isTurnUnderWay = false
    drain()
  }

  return (request) =>
    new Promise((resolve, reject) => {
      waiting.push({ request, resolve, reject })
      if (isScheduled || !isEnough()) return
      isScheduled = true
      // Before the dispatch: a client that writes at the end of the turn, too, then writes all of the turn's requests at once.
      if (hasTurns && !isTurnUnderWay) {
        isTurnUnderWay = true
        atEndOfTurn(endTurn)
      }
      void soon.then(drainScheduled)
    })
}

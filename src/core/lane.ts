// Lane batching without timers: an idle lane dispatches at once, and what arrives while a batch is under way forms the next one.
// A lone caller pays nothing for it (a 1 ms timer would cost 3 to 4 times its latency). Many callers share one commit.

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
}

export function lane<Request, Reply>(options: LaneOptions<Request, Reply>): (request: Request) => Promise<Reply> {
  interface Waiting {
    readonly request: Request
    readonly resolve: (reply: Reply) => void
    readonly reject: (error: unknown) => void
  }
  let waiting: Waiting[] = []
  let dispatches = 0
  let scheduled = false

  const { batchMax, batchMin = batchMax, dispatchesMax } = options
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

  const drain = (): void => {
    while (waiting.length > 0 && dispatches < dispatchesMax) void dispatchNext()
  }

  return (request) =>
    new Promise((resolve, reject) => {
      waiting.push({ request, resolve, reject })
      if (scheduled) return
      scheduled = true
      // One microtask later, so that calls made in one go are one batch even on an idle lane.
      queueMicrotask(() => {
        scheduled = false
        drain()
      })
    })
}

// Works on the endpoints that have something due: takes them, sends within their concurrency and order, and gives them back.

import { backoffMs, backoffs, pausesMs } from '../../core/backoff.ts'
import { restingOn, sleep } from '../../core/clock.ts'
import { publish } from '../../core/events.ts'
import { codeOf } from '../../messages/failures.ts'
import { attempt } from './attempts.ts'
import type { AttemptEnd, SendingContext } from './attempts.ts'
import type { Holding } from './holdings.ts'

export type WebhookRun = Readonly<Record<AttemptEnd, number>>

/** Sends what is due to one endpoint, until nothing is, or until `stopping`. After a lease it lets the other endpoints go first. */
async function serve(context: SendingContext, holding: Holding, run: Counts, stopping?: AbortSignal): Promise<void> {
  const { calls, leaseMs, clock, random } = context
  const running = new Map<number, Promise<void>>()
  const untilMs = clock.elapsed() + leaseMs
  const failed = Promise.withResolvers<never>()
  failed.promise.catch(() => undefined)
  let idle = 0
  try {
    for (;;) {
      const mayTake = !stopping?.aborted && clock.elapsed() < untilMs
      // Before anything is sent: what is sent now has ended before the lease has.
      const endpoint = mayTake ? await calls.extend(holding, leaseMs) : undefined
      const room = endpoint ? endpoint.concurrency - running.size : 0
      const due = endpoint && room > 0 ? await calls.due(holding, endpoint.order, [...running.keys()], room) : []
      for (const delivery of due) {
        const work = attempt(context, holding, endpoint!, delivery)
          .then((end) => void run[end]++, failed.reject)
          .finally(() => running.delete(delivery.position))
        running.set(delivery.position, work)
      }
      if (running.size === 0) break
      idle = due.length > 0 ? 0 : idle + 1
      const more = new AbortController()
      // What was added meanwhile must not wait for an endpoint that is slow to answer.
      const poll =
        endpoint && room > due.length
          ? [sleep(clock, backoffMs(backoffs.relayPoll, idle, random), { signal: more.signal })]
          : []
      await Promise.race([...running.values(), failed.promise, ...poll]).finally(() => more.abort())
    }
  } finally {
    await Promise.all(running.values())
    await calls.give(holding)
  }
}

type Counts = { -readonly [End in AttemptEnd]: number }

const nothing = (): Counts => ({ delivered: 0, again: 0, exhausted: 0, gone: 0, lost: 0 })

/** Sends what is due, to the endpoints that no other sender has, and ends. */
export async function sendOnce(context: SendingContext): Promise<WebhookRun> {
  const run = nothing()
  for (;;) {
    const taken = await context.calls.take(context.endpointsMax, context.leaseMs)
    if (taken.length === 0) return run
    const ends = await Promise.allSettled(taken.map((holding) => serve(context, holding, run)))
    for (const end of ends) if (end.status === 'rejected') throw end.reason
  }
}

export interface SendingWorker {
  /** Something may be due. */
  wake(): void
  /** Takes nothing more, records what is under way, and gives the endpoints back. */
  stop(): Promise<void>
}

export function sendingWorker(context: SendingContext, retain: () => Promise<void>): SendingWorker {
  const { calls, endpointsMax, leaseMs, clock, random } = context
  const stopping = new AbortController()
  const resting = restingOn(clock, stopping.signal)
  const serving = new Set<Promise<void>>()
  const wake = (): void => resting.wakeAt(clock.elapsed())
  let failures = 0
  let idle = 0
  let upkeepAt = clock.elapsed()

  const fail = (error: unknown): void => {
    failures++
    const cause = codeOf(error)
    publish('webhooks-failed', undefined, { ...(cause !== undefined && { cause }) })
  }
  const begin = (holding: Holding): void => {
    const work = serve(context, holding, nothing(), stopping.signal)
      .catch(fail)
      .finally(() => {
        serving.delete(work)
        if (failures === 0) wake()
      })
    serving.add(work)
  }
  const round = async (): Promise<void> => {
    const room = endpointsMax - serving.size
    const taken = room > 0 ? await calls.take(room, leaseMs) : []
    failures = 0
    idle = taken.length > 0 ? 0 : idle + 1
    taken.forEach(begin)
    if (clock.elapsed() < upkeepAt) return
    upkeepAt = clock.elapsed() + pausesMs.webhookUpkeep
    await retain()
  }
  const loop = async (): Promise<void> => {
    while (!stopping.signal.aborted) {
      await round().catch(fail)
      const backoff = failures > 0 ? backoffs.relayOutage : backoffs.relayPoll
      await resting.rest(backoffMs(backoff, failures > 0 ? failures : idle, random))
    }
  }
  const looping = loop()
  return {
    wake() {
      idle = 0
      // A sender that rests because its database is down is not woken by more of it.
      if (failures === 0) wake()
    },
    async stop() {
      stopping.abort()
      resting.wakeAt(0)
      await looping
      await Promise.all(serving)
    },
  }
}

// Works on one shard, round after round, until it is stopped or another relay has the shard. It rests longer the longer there is
// nothing to do, and is woken when events are added in this process.

import { backoffMs, backoffs } from '../../core/backoff.ts'
import { restingOn } from '../../core/clock.ts'
import { publish } from '../../core/events.ts'
import { nothing, reasonIn, roundOf, stateOf } from './rounds.ts'
import type { RelayContext, Round } from './rounds.ts'
import type { HeldShard } from './source.ts'

export interface ShardWorker {
  readonly shard: number
  epoch(): number
  /** Until `stop`, or until another relay has the shard. */
  run(): Promise<'stopped' | 'lost'>
  /** Look 'now', or 'soon': a transaction that has added events is about to commit. */
  wake(when: 'now' | 'soon'): void
  /** Ends after the batch that is being published. */
  stop(): void
}

export function shardWorker(context: RelayContext, taken: HeldShard): ShardWorker {
  const { source, owner, leaseMs, clock, random, publisher } = context
  const { shard } = taken
  const stopping = new AbortController()
  const resting = restingOn(clock, stopping.signal)
  let state = stateOf(context, taken)
  let idle = 0
  let failures = 0

  /**
   * After an error nothing is known of what was written. The shard is taken anew, with what is in the database, and nothing is read,
   * published or marked before that: what the relay knew may be from before its own last write.
   */
  async function recover(error: unknown): Promise<'ours' | 'lost'> {
    for (let failure = error; ;) {
      publish('relay-failed', undefined, { shard, publisher: publisher.name, reason: reasonIn(failure) })
      await resting.rest(backoffMs(backoffs.relayOutage, failures++, random))
      if (stopping.signal.aborted) return 'ours'
      try {
        const again = await source.take(shard, owner, leaseMs)
        if (!again) return 'lost'
        const { failingSince, from, wayOut } = state
        // Nothing to wait for: what it still publishes is of an older epoch.
        wayOut.close().catch(() => undefined)
        state = { ...stateOf(context, again), failingSince, from }
        return 'ours'
      } catch (next) {
        failure = next
      }
    }
  }

  async function work(): Promise<'stopped' | 'lost'> {
    while (!stopping.signal.aborted) {
      const round = await roundOf(context, state).catch((error: unknown): Round => ({ ...nothing, error }))
      if (round.is === 'lost') return 'lost'
      if (round.error !== undefined) {
        if ((await recover(round.error)) === 'lost') return 'lost'
        continue
      }
      failures = 0
      if (round.found > 0) idle = 0
      else await resting.rest(backoffMs(backoffs.relayPoll, idle++, random))
    }
    return 'stopped'
  }

  return {
    shard,
    epoch: () => state.epoch,
    async run() {
      try {
        return await work()
      } finally {
        await state.wayOut.close().catch(() => undefined)
      }
    },
    wake(when) {
      // A relay that rests because its broker is down is not woken by more rows for it.
      if (failures > 0) return
      idle = 0
      resting.wakeAt(clock.elapsed() + (when === 'now' ? 0 : backoffs.relayPoll.firstMs))
    },
    stop() {
      stopping.abort()
      resting.wakeAt(0)
    },
  }
}

// Attends to the leases three times per lease, and has a worker for each shard that is ours.

import { backoffMs, backoffs, pausesMs } from '../../core/backoff.ts'
import { sleep } from '../../core/clock.ts'
import { publish } from '../../core/events.ts'
import { reasonIn } from './rounds.ts'
import type { RelayContext } from './rounds.ts'
import { sharesOf } from './shares.ts'
import type { RelayOutbox, RelaySource } from './source.ts'
import { shardWorker } from './worker.ts'
import type { ShardWorker } from './worker.ts'

export interface ShardKeeper {
  stop(): Promise<void>
}

interface Working {
  readonly worker: ShardWorker
  readonly ended: Promise<void>
}

export function keepShards(context: RelayContext, onAdded: RelayOutbox['onAdded']): ShardKeeper {
  const { source, owner, leaseMs, shardsMax, clock, random, publisher } = context
  const stopping = new AbortController()
  const workers = new Map<number, Working>()
  let shardsCount = 1
  const forget = onAdded((lanes) => {
    if (!lanes) return workers.forEach(({ worker }) => worker.wake('now'))
    for (const lane of lanes) workers.get(lane % shardsCount)?.worker.wake('soon')
  })
  let upkeepAt = clock.elapsed()

  const attend = async (): Promise<void> => {
    const ours = [...workers.keys()]
    const { shards, relays } = await source.attend(owner, leaseMs, ours)
    shardsCount = shards.length
    const shares = sharesOf({ owner, ours, shards, relays, shardsMax, fraction: random.fraction() })
    await end(source, workers, [...shares.lost, ...shares.give])
    for (const shard of shares.take) if (!stopping.signal.aborted) await begin(context, workers, shard, stopping.signal)
    // One of the relays does this: the one that has the first shard.
    if (!workers.has(0) || clock.elapsed() < upkeepAt) return
    upkeepAt = clock.elapsed() + pausesMs.relayUpkeep
    await upkeep(source)
  }

  const loop = async (): Promise<void> => {
    for (let failures = 0; !stopping.signal.aborted;) {
      try {
        await attend()
        failures = 0
      } catch (error) {
        failures++
        publish('relay-failed', undefined, { publisher: publisher.name, reason: reasonIn(error) })
      }
      const soonMs = failures === 0 ? leaseMs : backoffMs(backoffs.relayOutage, failures, random)
      await sleep(clock, Math.min(leaseMs / 3, soonMs), { signal: stopping.signal })
    }
  }
  const looping = loop()
  return {
    async stop() {
      stopping.abort()
      forget()
      for (const { worker } of workers.values()) worker.stop()
      await looping
      // What cannot be given back now is free after a lease.
      await end(source, workers, [...workers.keys()]).catch(() => undefined)
      await source.leave(owner).catch(() => undefined)
    },
  }
}

async function begin(
  context: RelayContext,
  workers: Map<number, Working>,
  shard: number,
  stopping: AbortSignal,
): Promise<void> {
  const taken = await context.source.take(shard, context.owner, context.leaseMs)
  if (!taken) return
  publish('relay-shard', undefined, { shard, epoch: taken.epoch, how: 'taken' })
  const worker = shardWorker(context, taken)
  if (stopping.aborted) worker.stop()
  const ended = worker.run().then((how) => {
    if (how === 'stopped') return
    workers.delete(shard)
    publish('relay-shard', undefined, { shard, epoch: worker.epoch(), how })
  })
  workers.set(shard, { worker, ended })
}

/** What another relay has by now is given back, too: its epoch is not ours, so nothing happens. */
async function end(source: RelaySource, workers: Map<number, Working>, shards: readonly number[]): Promise<void> {
  const ending = shards.flatMap((shard) => workers.get(shard) ?? [])
  for (const { worker } of ending) worker.stop()
  await Promise.all(ending.map(({ ended }) => ended))
  const given = ending.map(({ worker }) => ({ shard: worker.shard, epoch: worker.epoch() }))
  for (const { shard, epoch } of given) {
    if (workers.delete(shard)) publish('relay-shard', undefined, { shard, epoch, how: 'given' })
  }
  await source.give(given)
}

async function upkeep(source: RelaySource): Promise<void> {
  await source.retain()
  const { unsent, lagMs = 0, blockedKeys, headOfLineMs = 0, parked, dead } = await source.status()
  publish('relay-lag', undefined, { unsent, lagMs, blockedKeys, headOfLineMs, parked, dead })
}

// How relays share the shards: each takes what is free up to its fair share, and gives back what it has beyond it.

import type { ShardLease } from './source.ts'

export interface Shares {
  /** Shards to take, in the order to try them. */
  readonly take: readonly number[]
  /** Shards that we work on and that are another relay's by now. */
  readonly lost: readonly number[]
  /** Shards to give back, as another relay has fewer. */
  readonly give: readonly number[]
}

export interface Standing {
  readonly owner: string
  /** The shards that we work on. */
  readonly ours: readonly number[]
  readonly shards: readonly ShardLease[]
  /** How many relays live, we among them. */
  readonly relays: number
  readonly shardsMax: number
  /** In [0, 1): relays that begin at the same moment begin with different shards. */
  readonly fraction: number
}

export function sharesOf({ owner, ours, shards, relays, shardsMax, fraction }: Standing): Shares {
  const lost = ours.filter((shard) => shards.find((each) => each.shard === shard)?.owner !== owner)
  const kept = ours.filter((shard) => !lost.includes(shard))
  const fair = Math.min(shardsMax, Math.ceil(shards.length / Math.max(1, relays)))
  const free = shards.filter((each) => !kept.includes(each.shard) && (each.isFree || each.owner === owner))
  const start = Math.floor(fraction * free.length)
  const turned = [...free.slice(start), ...free.slice(0, start)].map(({ shard }) => shard)
  return { take: turned.slice(0, Math.max(0, fair - kept.length)), lost, give: kept.slice(fair) }
}

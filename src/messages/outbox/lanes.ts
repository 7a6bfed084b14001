// A lane is what one lock guards: every ordering key belongs to one of them by its hash, and the rows of a lane are in the order of
// their commits. Lanes are many, so that two transactions rarely meet in one by chance. A shard is what one relay works on: an equal
// share of the lanes.

import { hash } from 'node:crypto'

/**
 * With 50 transactions that have added to the outbox and have not ended, a new one meets one of them by chance in 5 % of all cases,
 * and waits for it. A relay that looks for new rows looks at each lane once: 1,024 of them take it 1 to 2 ms.
 */
export const lanesCount = 1_024

/** The same in every process and version: a key that changed its lane would lose its order. */
export function laneOf(orderKey: string): number {
  return hash('sha256', orderKey, 'buffer').readUInt16BE(0) % lanesCount
}

export function shardOf(lane: number, shards: number): number {
  return lane % shards
}

/** The lanes of a shard, in their order. */
export function lanesOf(shard: number, shards: number): readonly number[] {
  return Array.from({ length: lanesCount }, (_, lane) => lane).filter((lane) => shardOf(lane, shards) === shard)
}

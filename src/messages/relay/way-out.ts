// A publisher as one shard has it. One that remembers what it has published is opened anew whenever the shard is taken, and learns which
// rows are marked as sent. Others know nothing of shards.

import type { Outgoing, PlacedRow, ShardPublisher } from '../broker.ts'
import type { RelayContext, ShardState } from './rounds.ts'
import type { RelayRow } from './source.ts'

type Taken = Pick<ShardState, 'shard' | 'epoch' | 'cursors'>

export function openWayOut({ publisher, source }: RelayContext, { shard, epoch, cursors }: Taken): ShardPublisher {
  if (!('openShard' in publisher)) {
    return {
      publish: (rows) => publisher.publish(rows),
      marked: () => {},
      close: async () => {},
    }
  }
  return publisher.openShard({
    shard,
    epoch,
    async unsent(rows) {
      const isBehind = ({ place }: PlacedRow): boolean => {
        const [lane, position] = place.split(' ').map(Number) as [number, number]
        return position <= (cursors.get(lane) ?? 0)
      }
      // What lies behind a cursor is marked as sent, or held.
      const held = await source.heldAmong(rows.filter(isBehind).map(({ id }) => id))
      return rows.filter((row) => !isBehind(row) || held.has(row.id))
    },
  })
}

export function placedOf({ id, topic, key, body, headers, lane, position }: RelayRow): Outgoing & PlacedRow {
  return { id, topic, body, headers, place: `${lane} ${position}`, ...(key !== undefined && { key }) }
}

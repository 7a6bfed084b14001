// The calls of a relay to its outbox, bounded in time. A call that takes longer than the lease is given up: the shard may be another
// relay's by then, and a connection that never answers must not keep it for ever. What the call still does carries an old epoch.

import type { Clock } from '../../core/clock.ts'
import { bounded } from '../../core/timed-call.ts'
import type { RelaySource } from './source.ts'

export function timedSource(source: RelaySource, clock: Clock, timeoutMs: number): RelaySource {
  const calls = { clock, storeName: 'outbox', timeoutMs }
  return {
    attend: (...given) => bounded(calls, () => source.attend(...given)),
    take: (...given) => bounded(calls, () => source.take(...given)),
    give: (given) => bounded(calls, () => source.give(given)),
    leave: (owner) => bounded(calls, () => source.leave(owner)),
    read: (...given) => bounded(calls, () => source.read(...given)),
    blocked: (shard) => bounded(calls, () => source.blocked(shard)),
    heldAmong: (ids) => bounded(calls, () => source.heldAmong(ids)),
    readDue: (...given) => bounded(calls, () => source.readDue(...given)),
    mark: (...given) => bounded(calls, () => source.mark(...given)),
    retain: () => bounded(calls, () => source.retain()),
    status: () => bounded(calls, () => source.status()),
  }
}

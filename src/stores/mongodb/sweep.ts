// Manual expiry. The TTL index removes what has expired, an hour or so late. A sweep does the same at once and takes the contents
// out of tombstones. A sweep reads by an index, in the order in which entries become due.

import { expiresAtMs, forgottenAtMs, stateOf } from '../../core/entry.ts'
import type { Swept } from '../../core/store.ts'
import { read, remove, update } from './requests.ts'
import type { MongodbFilter, MongodbDocument } from '../../clients/mongodb.ts'
import type { MongodbContext } from './requests.ts'
import { entryOf, unchanged } from './entries.ts'
import type { MongodbEntry } from './entries.ts'
import { serverTime } from './fitness.ts'

type Done = 'tombstoned' | 'forgotten' | 'nothing'

// The driver opens 100 connections. This leaves most of them to the claims.
const writesAtOnce = 25

export async function sweep(context: MongodbContext, limit: number): Promise<Swept> {
  const now = await serverTime(context)
  const due = await read(context, [
    { $match: { sweepAt: { $lte: new Date(now) } } },
    { $sort: { sweepAt: 1 } },
    { $limit: limit },
    { $project: { outcome: 0, input: 0 } },
  ])
  const counts = { tombstoned: 0, forgotten: 0, nothing: 0 }
  for (let index = 0; index < due.length; index += writesAtOnce) {
    const some = due.slice(index, index + writesAtOnce)
    for (const done of await Promise.all(some.map((each) => sweepOne(context, each, now)))) counts[done]++
  }
  // Each of them was deleted or put off beyond now, so a sweep that goes on will end.
  return { tombstoned: counts.tombstoned, forgotten: counts.forgotten, more: due.length === limit }
}

async function sweepOne(context: MongodbContext, document: MongodbDocument, now: number): Promise<Done> {
  const entry = entryOf(document)
  const state = stateOf(entry, now)
  const same = sameAs(entry, document)
  if (!state) return (await remove(context, same)) && entry.wrote !== 'forget' ? 'forgotten' : 'nothing'
  if (state !== 'tombstone') {
    // Not expired yet: it was extended, or settled later than it was claimed.
    await update(context, same, { $set: { sweepAt: new Date(expiresAtMs(entry)) } })
    return 'nothing'
  }
  const stripped = await update(context, same, {
    $set: { sweepAt: new Date(forgottenAtMs(entry)), holds: false },
    $unset: { outcome: '', input: '' },
  })
  return stripped && document['holds'] === true ? 'tombstoned' : 'nothing'
}

// Still what was read: a key that is claimed anew meanwhile is left alone, and of two sweeps one does it.
function sameAs(entry: MongodbEntry, document: MongodbDocument): MongodbFilter {
  return { ...unchanged(entry), sweepAt: document['sweepAt'] }
}

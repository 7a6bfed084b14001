// Looking at entries and mending them by hand. The audit record is written before the change it tells of, and taken back when
// the change turns out not to be made: a record without a change is a crash between the two, a change without one cannot be.

import { systemRandom } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { AuditRecord, Entry, EntryFilter, EntryState } from '../../core/store.ts'
import { change, look } from './claims.ts'
import { insert, read, remove } from './client.ts'
import type { MongodbGround } from './client.ts'
import { entryOf, expiresAtMs, forgottenAtMs, idOf, leaseUntilMs, stateOf, timeOf, unchanged } from './entries.ts'
import type { Seen } from './entries.ts'
import { forgetting, opening } from './writes.ts'

// Somebody else has to write between our reading and our writing each time; then it is not the moment to mend anything.
const mendRoundsMax = 10

// A page is read at once, outcomes and all.
const pageEntries = 100

export async function show(ground: MongodbGround, key: Key): Promise<Entry | undefined> {
  const seen = await look(ground, key, 'majority')
  return seen && shown(seen)
}

/** Reads entries in the order of their names, and those of another state, too: a rare state is a long way. */
export async function list(ground: MongodbGround, filter: EntryFilter): Promise<readonly Entry[]> {
  const entries: Entry[] = []
  let after = filter.after && idOf(filter.after)
  for (;;) {
    const found = await read(ground, [
      { $match: { _id: namesOf(filter, after), attempt: { $exists: true } } },
      { $sort: { _id: 1 } },
      { $limit: pageEntries },
      { $addFields: { now: '$$NOW' } },
    ])
    for (const document of found) {
      const entry = shown({ entry: entryOf(document), now: timeOf(document['now']) ?? Number.NaN })
      if (entry && (filter.state === undefined || entry.state === filter.state)) entries.push(entry)
      if (entries.length === filter.limit) return entries
    }
    if (found.length < pageEntries) return entries
    after = String(found.at(-1)!['_id'])
  }
}

// A line break ends the scope, and stands below every character of a key, so this is the order of scope, then id.
function namesOf({ scope }: EntryFilter, after: string | undefined): object {
  return {
    $gt: after ?? '',
    ...(scope !== undefined && { $gte: `${scope}\n`, $lt: `${scope}\v` }),
  }
}

export async function mend(
  ground: MongodbGround,
  key: Key,
  action: 'release' | 'forget',
  reason: string,
): Promise<Entry | undefined> {
  for (let round = 0; round < mendRoundsMax; round++) {
    const seen = await look(ground, key, 'latest')
    const before = seen && shown(seen)
    const isMendable = action === 'forget' || before?.state === 'running' || before?.state === 'abandoned'
    if (!seen || !before || !isMendable) return before
    if (await mendUnchanged(ground, seen, { action, reason, before: before.state })) return before
  }
  throw new OnceError('STORE_UNAVAILABLE', {
    message: `The entry of ${describeKey(key)} was changed by others ${mendRoundsMax} times while it was mended. Nothing was changed by hand. Try again.`,
  })
}

type Mending = Pick<AuditRecord, 'action' | 'reason' | 'before'>

async function mendUnchanged(ground: MongodbGround, { entry, now }: Seen, mending: Mending): Promise<boolean> {
  // 15 digits last until the year 33658, and keep the order of time.
  const _id = `${idOf(entry.key)}\n${String(now).padStart(15, '0')} ${systemRandom.uuid()}`
  await insert(ground, { _id, at: new Date(now), ...mending })
  // An open entry keeps its last token: a delayed claim of the holder that was pushed out still finds that it is over.
  const update = mending.action === 'release' ? opening : forgetting(ground)
  if (await change(ground, unchanged(entry), update)) return true
  await remove(ground, { _id })
  return false
}

export async function audit(ground: MongodbGround, key: Key): Promise<readonly AuditRecord[]> {
  const names = { $gte: `${idOf(key)}\n`, $lt: `${idOf(key)}\v` }
  const found = await read(ground, [{ $match: { _id: names } }, { $sort: { _id: 1 } }])
  return found.map((document) => ({
    key,
    atMs: timeOf(document['at']) ?? Number.NaN,
    action: document['action'] as AuditRecord['action'],
    reason: String(document['reason']),
    before: document['before'] as EntryState,
  }))
}

function shown(seen: Seen): Entry | undefined {
  const { entry } = seen
  const state = stateOf(seen)
  if (!state) return undefined
  return {
    key: entry.key,
    state,
    attempt: entry.attempt,
    fence: entry.fence,
    fingerprint: entry.fingerprint,
    version: entry.version,
    firstClaimedAtMs: entry.firstClaimedAtMs,
    leaseUntilMs: leaseUntilMs(entry),
    expiresAtMs: expiresAtMs(entry),
    forgottenAtMs: forgottenAtMs(entry),
    ...(state === 'settled' && entry.outcome && { outcome: entry.outcome }),
    ...(state !== 'tombstone' && entry.input && { input: entry.input }),
  }
}

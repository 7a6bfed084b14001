// Inspecting entries and mending them manually. The store writes the audit record before its change, and takes the record back
// when the change turns out not to be made. A record without a change is a crash between the two. A change without a record
// cannot be.

import { rounds } from '../../core/backoff.ts'
import { systemRandom } from '../../core/clock.ts'
import { mended, mendingName, shownEntry, stateOf } from '../../core/entry.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { AuditRecord, Entry, EntryFilter, EntryState, Mending } from '../../core/store.ts'
import { change, look } from './claims.ts'
import { insert, read, remove } from './requests.ts'
import type { MongodbContext } from './requests.ts'
import { entryOf, idOf, timeOf, unchanged } from './entries.ts'
import type { SeenEntry } from './entries.ts'
import { checkOutcome, forgetting, opening, settling } from './writes.ts'

// A page is read at once, outcomes and all.
const pageEntries = 100

export async function show(context: MongodbContext, key: Key): Promise<Entry | undefined> {
  const seen = await look(context, key, 'majority')
  return seen && shown(seen)
}

/** Reads entries in the order of their names, and those of another state, too. So a list of a rare state reads many entries. */
export async function list(context: MongodbContext, filter: EntryFilter): Promise<readonly Entry[]> {
  const entries: Entry[] = []
  let after = filter.after && idOf(filter.after)
  for (;;) {
    const found = await read(context, [
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
  context: MongodbContext,
  key: Key,
  action: Mending,
  reason: string,
): Promise<Entry | undefined> {
  if (typeof action !== 'string' && 'resolve' in action) checkOutcome({ key }, action.resolve)
  for (let round = 0; round < rounds.mend; round++) {
    const seen = await look(context, key, 'latest')
    const before = seen && shown(seen)
    const update = seen && before && changeOf(context, seen, action)
    if (!update) return before
    const record = { action: mendingName(action), reason, before: before.state }
    if (await changeUnchanged(context, seen, update, record)) return before
  }
  throw new OnceError('STORE_UNAVAILABLE', {
    message:
      `Other writers changed the entry of ${describeKey(key)} ${rounds.mend} times while it was being mended. ` +
      'Nothing was changed by hand. Try again.',
  })
}

/** The update that makes of the document what `mended` makes of the entry. Undefined when it changes nothing. */
function changeOf(context: MongodbContext, { entry, now }: SeenEntry, action: Mending): object | undefined {
  const at = { state: stateOf(entry, now), nowMs: now, fence: entry.fence + 1 }
  const after = mended(entry, action, at)
  if (!after) return undefined
  if (after === 'forget') return forgetting(context)
  if (action === 'release') return opening
  if (typeof action !== 'string' && 'resolve' in action) {
    return settling(context, action.resolve, action.retention, { fenceMin: after.fence })
  }
  return { $set: { keepMs: after.keepMs } }
}

async function changeUnchanged(
  context: MongodbContext,
  { entry, now }: SeenEntry,
  update: object,
  record: Pick<AuditRecord, 'action' | 'reason' | 'before'>,
): Promise<boolean> {
  // 15 digits last until the year 33658, and keep the order of time.
  const _id = `${idOf(entry.key)}\n${String(now).padStart(15, '0')} ${systemRandom.uuid()}`
  await insert(context, { _id, at: new Date(now), ...record })
  if (await change(context, unchanged(entry), update)) return true
  await remove(context, { _id })
  return false
}

export async function audit(context: MongodbContext, key: Key): Promise<readonly AuditRecord[]> {
  const names = { $gte: `${idOf(key)}\n`, $lt: `${idOf(key)}\v` }
  const found = await read(context, [{ $match: { _id: names } }, { $sort: { _id: 1 } }])
  return found.map((document) => ({
    key,
    atMs: timeOf(document['at']) ?? Number.NaN,
    action: document['action'] as AuditRecord['action'],
    reason: String(document['reason']),
    before: document['before'] as EntryState,
  }))
}

function shown({ entry, now }: SeenEntry): Entry | undefined {
  return shownEntry(entry, now)
}

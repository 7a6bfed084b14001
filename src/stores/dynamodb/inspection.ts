// Inspecting entries and mending them manually. A change and its audit record are one transaction.

import { rounds } from '../../core/backoff.ts'
import { systemRandom } from '../../core/clock.ts'
import { expiresAtMs, fenceAfter, mended, mendingName, shownEntry, stateOf, stripped } from '../../core/entry.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey, keyString } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { AuditRecord, Entry, EntryFilter, EntryState, Mending } from '../../core/store.ts'
import { readEntry, unchangedSince } from './claims.ts'
import { call, namesIn, pages } from './requests.ts'
import type { DynamodbItem } from '../../clients/dynamodb.ts'
import type { DynamodbContext } from './requests.ts'
import { entryOf, entryPart, itemOf, keyOfItem, momentOf, number } from './entries.ts'
import type { DynamodbMoment, DynamodbEntry } from './entries.ts'
import { cancellationOf } from '../../clients/dynamodb.ts'
import { isPassing } from './errors.ts'
import { loadOutcome, storeOutcome } from './outcomes.ts'

const auditPart = 'audit '

export async function show(context: DynamodbContext, key: Key): Promise<Entry | undefined> {
  const entry = await readEntry(context, key)
  return entry && shown(context, entry, momentOf(context))
}

/** Reads the whole table: its keys lie in no order, so that no scope is ever a hot partition. */
export async function list(context: DynamodbContext, filter: EntryFilter): Promise<readonly Entry[]> {
  const moment = momentOf(context)
  let found: DynamodbEntry[] = []
  for await (const items of pages(context, 'scan', scanFor(filter, moment))) {
    const more = items.map(entryOf).filter((entry) => {
      const state = stateOf(entry, moment.sure)
      return state !== undefined && (filter.state === undefined || state === filter.state)
    })
    found = [...found, ...more].sort(byKey).slice(0, filter.limit)
  }
  const entries = await Promise.all(found.map((entry) => shown(context, entry, moment)))
  return entries.filter((entry) => entry !== undefined)
}

type ScanInput = Parameters<typeof pages>[2]

function scanFor({ scope, after }: EntryFilter, moment: DynamodbMoment): ScanInput {
  const conditions = [
    '#part = :entry AND #forgottenAtMs > :sure',
    ...(scope === undefined ? [] : ['begins_with(#key, :scope)']),
    ...(after ? ['#key > :after'] : []),
  ]
  const filter = conditions.join(' AND ')
  return {
    FilterExpression: filter,
    ExpressionAttributeNames: namesIn(filter),
    ExpressionAttributeValues: {
      ':entry': { S: entryPart },
      ':sure': number(moment.sure),
      // A key string ends its scope with a character that no scope has.
      ...(scope !== undefined && { ':scope': { S: keyString({ scope, id: '' }) } }),
      ...(after && { ':after': { S: keyString(after) } }),
    },
  }
}

// As DynamoDB compares: byte by byte. The separator is below every legal character, so this is the order of scope, then id.
function byKey(one: DynamodbEntry, other: DynamodbEntry): number {
  return Buffer.compare(Buffer.from(keyString(one.key)), Buffer.from(keyString(other.key)))
}

export async function mend(
  context: DynamodbContext,
  key: Key,
  action: Mending,
  reason: string,
): Promise<Entry | undefined> {
  for (let round = 0; round < rounds.mend; round++) {
    const moment = momentOf(context)
    const seen = await readEntry(context, key)
    const before = seen && (await shown(context, seen, moment))
    if (!seen || !before) return undefined
    const at = { state: before.state, nowMs: moment.now, fence: fenceAfter(seen.fence, moment.now) }
    const after = mended(seen, action, at)
    if (!after) return before
    const entry = after === 'forget' ? remainsOf(seen, moment) : await withOutcome(context, after, action)
    const record = { action: mendingName(action), reason, before: before.state }
    if (await replaceUnchanged(context, { seen, entry, record }, moment)) return before
  }
  throw new OnceError('STORE_UNAVAILABLE', {
    message:
      `Other writers changed the entry of ${describeKey(key)} ${rounds.mend} times while it was being mended. ` +
      'Nothing was changed by hand. Try again.',
  })
}

/** Nothing but the fence, until TTL or a sweep removes it. */
function remainsOf(seen: DynamodbEntry, { now }: DynamodbMoment): DynamodbEntry {
  const { outcomeApart: _outcomeApart, ...rest } = stripped(seen)
  return { ...rest, wrote: 'forget', leaseUntilMs: now, keepMs: 0, tombstoneMs: 0 }
}

// An outcome that lies apart has its own time to live. It is written before the entry that names it, and lasts as long.
async function withOutcome(context: DynamodbContext, entry: DynamodbEntry, action: Mending): Promise<DynamodbEntry> {
  if (entry.wrote !== 'settle') return entry
  const { outcome: _outcome, outcomeApart: _outcomeApart, ...rest } = entry
  const isResolved = typeof action !== 'string' && 'resolve' in action
  const bytes = isResolved ? action.resolve : await loadOutcome(context, entry)
  return { ...rest, ...(await storeOutcome(context, entry, bytes, expiresAtMs(entry))) }
}

interface Replacement {
  readonly seen: DynamodbEntry
  readonly entry: DynamodbEntry
  readonly record: Pick<AuditRecord, 'action' | 'reason' | 'before'>
}

/** False when another writer has written since. */
async function replaceUnchanged(
  context: DynamodbContext,
  { seen, entry, record }: Replacement,
  moment: DynamodbMoment,
): Promise<boolean> {
  const Item = itemOf({ ...entry, revision: seen.revision + 1 }, moment)
  const items = [
    { Put: { TableName: context.table, Item: auditItem(seen.key, record, moment) } },
    { Put: { TableName: context.table, Item, ...unchangedSince(seen) } },
  ]
  try {
    await call(context, (options) => context.client.transactWriteItems({ TransactItems: items }, options))
    return true
  } catch (error) {
    const reasons = cancellationOf(error)
    if (reasons?.every((reason) => reason.Code === 'ConditionalCheckFailed' || isPassing(reason))) return false
    throw error
  }
}

function auditItem(
  key: Key,
  record: Pick<AuditRecord, 'action' | 'reason' | 'before'>,
  { now }: DynamodbMoment,
): DynamodbItem {
  // 15 digits last until the year 33658, and keep the order of time.
  const part = `${auditPart}${String(now).padStart(15, '0')} ${systemRandom.uuid()}`
  return {
    ...keyOfItem(key, part),
    atMs: number(now),
    action: { S: record.action },
    reason: { S: record.reason },
    before: { S: record.before },
  }
}

export async function audit(context: DynamodbContext, key: Key): Promise<readonly AuditRecord[]> {
  const condition = '#key = :key AND begins_with(#part, :audit)'
  const records: AuditRecord[] = []
  const input = {
    KeyConditionExpression: condition,
    ExpressionAttributeNames: namesIn(condition),
    ExpressionAttributeValues: { ':key': { S: keyString(key) }, ':audit': { S: auditPart } },
  }
  for await (const items of pages(context, 'query', input)) {
    for (const item of items) {
      records.push({
        key,
        atMs: Number(item['atMs']?.N),
        action: item['action']?.S as AuditRecord['action'],
        reason: item['reason']?.S ?? '',
        before: item['before']?.S as EntryState,
      })
    }
  }
  return records
}

async function shown(
  context: DynamodbContext,
  entry: DynamodbEntry,
  moment: DynamodbMoment,
): Promise<Entry | undefined> {
  const outcome = stateOf(entry, moment.sure) === 'settled' ? await loadOutcome(context, entry) : undefined
  return shownEntry({ ...entry, ...(outcome && { outcome }) }, moment.sure)
}

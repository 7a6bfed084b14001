// Looking at entries and mending them by hand. The audit record and the change it tells of are written in one transaction.

import { systemRandom } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey, keyString } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { AuditRecord, Entry, EntryFilter, EntryState } from '../../core/store.ts'
import { readEntry, unchangedSince } from './claims.ts'
import { call, namesIn, pages } from '../../clients/dynamodb.ts'
import type { DynamodbGround, Item } from '../../clients/dynamodb.ts'
import { entryOf, entryPart, expiresAtMs, forgottenAtMs, keyOfItem, momentOf, number, stateOf } from './entries.ts'
import type { Moment, StoredEntry } from './entries.ts'
import { cancellationOf, isPassing } from './errors.ts'
import { loadOutcome } from './outcomes.ts'
import { forgetting, opening, updateOf } from './updates.ts'

const auditPart = 'audit '

// Somebody else has to write between our reading and our writing each time; then it is not the moment to mend anything.
const mendRoundsMax = 10

export async function show(ground: DynamodbGround, key: Key): Promise<Entry | undefined> {
  const entry = await readEntry(ground, key)
  return entry && shown(ground, entry, momentOf(ground))
}

/** Reads the whole table: its keys lie in no order, so that no scope is ever a hot partition. */
export async function list(ground: DynamodbGround, filter: EntryFilter): Promise<readonly Entry[]> {
  const moment = momentOf(ground)
  let found: StoredEntry[] = []
  for await (const items of pages(ground, 'scan', scanFor(filter, moment))) {
    const more = items.map(entryOf).filter((entry) => {
      const state = stateOf(entry, moment)
      return state !== undefined && (filter.state === undefined || state === filter.state)
    })
    found = [...found, ...more].sort(byKey).slice(0, filter.limit)
  }
  const entries = await Promise.all(found.map((entry) => shown(ground, entry, moment)))
  return entries.filter((entry) => entry !== undefined)
}

type ScanInput = Parameters<typeof pages>[2]

function scanFor({ scope, after }: EntryFilter, moment: Moment): ScanInput {
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
function byKey(one: StoredEntry, other: StoredEntry): number {
  return Buffer.compare(Buffer.from(keyString(one.key)), Buffer.from(keyString(other.key)))
}

export async function mend(
  ground: DynamodbGround,
  key: Key,
  action: 'release' | 'forget',
  reason: string,
): Promise<Entry | undefined> {
  for (let round = 0; round < mendRoundsMax; round++) {
    const moment = momentOf(ground)
    const seen = await readEntry(ground, key)
    const before = seen && (await shown(ground, seen, moment))
    const isMendable = action === 'forget' || before?.state === 'running' || before?.state === 'abandoned'
    if (!seen || !before || !isMendable) return before
    if (await mendUnchanged(ground, seen, { action, reason, before: before.state }, moment)) return before
  }
  throw new OnceError('STORE_UNAVAILABLE', {
    message: `The entry of ${describeKey(key)} was changed by others ${mendRoundsMax} times while it was mended. Nothing was changed by hand. Try again.`,
  })
}

async function mendUnchanged(
  ground: DynamodbGround,
  seen: StoredEntry,
  record: Pick<AuditRecord, 'action' | 'reason' | 'before'>,
  moment: Moment,
): Promise<boolean> {
  const { ConditionExpression: condition, ExpressionAttributeValues: values = {} } = unchangedSince(seen)
  // An open entry keeps its last token: a delayed claim of the holder that was pushed out still finds that it is over.
  const change = record.action === 'release' ? opening(moment) : forgetting(moment)
  const items = [
    { Put: { TableName: ground.table, Item: auditItem(seen.key, record, moment) } },
    { Update: updateOf(ground.table, seen.key, change, { condition, values }) },
  ]
  try {
    await call(ground, (options) => ground.client.transactWriteItems({ TransactItems: items }, options))
    return true
  } catch (error) {
    const reasons = cancellationOf(error)
    if (reasons?.every((reason) => reason.Code === 'ConditionalCheckFailed' || isPassing(reason))) return false
    throw error
  }
}

function auditItem(key: Key, record: Pick<AuditRecord, 'action' | 'reason' | 'before'>, { now }: Moment): Item {
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

export async function audit(ground: DynamodbGround, key: Key): Promise<readonly AuditRecord[]> {
  const condition = '#key = :key AND begins_with(#part, :audit)'
  const records: AuditRecord[] = []
  const input = {
    KeyConditionExpression: condition,
    ExpressionAttributeNames: namesIn(condition),
    ExpressionAttributeValues: { ':key': { S: keyString(key) }, ':audit': { S: auditPart } },
  }
  for await (const items of pages(ground, 'query', input)) {
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

async function shown(ground: DynamodbGround, entry: StoredEntry, moment: Moment): Promise<Entry | undefined> {
  const state = stateOf(entry, moment)
  if (!state) return undefined
  const outcome = state === 'settled' ? await loadOutcome(ground, entry) : undefined
  return {
    key: entry.key,
    state,
    attempt: entry.attempt,
    fence: entry.fence,
    fingerprint: entry.fingerprint,
    version: entry.version,
    firstClaimedAtMs: entry.firstClaimedAtMs,
    leaseUntilMs: entry.leaseUntilMs,
    expiresAtMs: expiresAtMs(entry),
    forgottenAtMs: forgottenAtMs(entry),
    ...(outcome && { outcome }),
    ...(state !== 'tombstone' && entry.input && { input: entry.input }),
  }
}

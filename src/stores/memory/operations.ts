// Operations in the memory store: a map of records beside the entries. Every function decides and writes in one go, so that a
// record is there just when the decision about its entry was.

import { keyString } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Advanced, Change, Claim, Fenced, Recoverable, StepLedger, WrittenRecord } from '../../core/store.ts'
import { copyOf } from './entries.ts'
import type { MemoryData, MemoryDecisions } from './entries.ts'

export interface MemoryOperation {
  readonly key: Key
  /** Of the first claim of this life: a claim that is only repeated must not clear what was recorded since. */
  readonly lifeFence: number
  readonly records: ReadonlyMap<string, WrittenRecord>
  /** Undefined when it is parked or settled. */
  readonly dueAtMs: number | undefined
  readonly settled: boolean
  readonly cancelReason: string | undefined
}

export function operationsIn(data: MemoryData, decisions: MemoryDecisions): StepLedger & Recoverable {
  const { operations } = data
  const find = (key: Key): MemoryOperation | undefined => operations.get(keyString(key))
  const put = (operation: MemoryOperation): void => void operations.set(keyString(operation.key), operation)
  return {
    async enlist(key, request) {
      const verdict = decisions.claim(key, request)
      if (verdict.is !== 'granted') return verdict
      const { fence } = verdict.claim
      const known = find(key)
      const before = verdict.how !== 'fresh' || known?.lifeFence === fence ? known : undefined
      const isParked = before && !before.settled && before.dueAtMs === undefined
      const dueAtMs = isParked ? undefined : data.now() + request.leaseMs
      const { lifeFence = fence, records = new Map(), cancelReason } = before ?? {}
      put({ key, lifeFence, records, cancelReason, dueAtMs, settled: false })
      return verdict
    },
    async ledger(key) {
      const operation = find(key)
      if (!operation || !data.entries.has(keyString(key))) return undefined
      const { records, dueAtMs, cancelReason } = operation
      return { records: [...records.values()].map(copied), dueAtMs, cancelReason }
    },
    advance: async (claim, change) => advance(data, decisions, claim, change),
    async due(scope, { limit, holdMs }) {
      const now = data.now()
      const heldUntilMs = now + holdMs
      const found = [...operations.values()]
        .filter(({ key, dueAtMs }) => key.scope === scope && dueAtMs !== undefined && dueAtMs <= now)
        .sort((a, b) => a.dueAtMs! - b.dueAtMs!)
        .slice(0, limit)
      for (const operation of found) put({ ...operation, dueAtMs: heldUntilMs })
      return found.map(({ key }) => ({ key, heldUntilMs }))
    },
    async dismiss({ key, heldUntilMs }) {
      const operation = find(key)
      if (operation?.dueAtMs !== heldUntilMs) return
      if (data.entries.has(keyString(key))) put({ ...operation, dueAtMs: undefined, settled: true })
      else operations.delete(keyString(key))
    },
    async requestCancel(key, cancelReason) {
      const operation = find(key)
      if (!operation || operation.settled) return false
      put({ ...operation, cancelReason, dueAtMs: data.now() })
      return true
    },
    async unfinished(scope, { after, limit }) {
      return [...operations.values()]
        .filter(({ key, settled }) => !settled && key.scope === scope && (after === undefined || key.id > after))
        .sort((a, b) => (a.key.id < b.key.id ? -1 : 1))
        .slice(0, limit)
        .map(({ key }) => key)
    },
  }
}

function advance(data: MemoryData, decisions: MemoryDecisions, claim: Claim, change: Change): Advanced {
  const operation = data.operations.get(keyString(claim.key))
  if (!operation || moved(decisions, claim, change.becomes) === 'lost') return 'lost'
  const { becomes } = change
  const now = data.now()
  const dueAtMs =
    becomes.to === 'running'
      ? operation.dueAtMs
      : becomes.to === 'open' && becomes.afterMs !== undefined
        ? now + becomes.afterMs
        : undefined
  data.operations.set(keyString(claim.key), {
    ...operation,
    records: withRecords(operation.records, change.records, now),
    dueAtMs,
    settled: becomes.to === 'settled',
  })
  return operation.cancelReason === undefined ? 'done' : 'cancelled'
}

function moved(decisions: MemoryDecisions, claim: Claim, becomes: Change['becomes']): Fenced {
  if (becomes.to === 'running') return decisions.extend(claim, becomes.leaseMs)
  if (becomes.to === 'settled') return decisions.settle(claim, becomes.outcome, becomes.retention)
  return decisions.release(claim, 'open')
}

// A copy, as the simulation compares what was before with what is after. It makes a step cost a little more with every step before it.
function withRecords(
  before: MemoryOperation['records'],
  records: Change['records'],
  now: number,
): MemoryOperation['records'] {
  const after = new Map(before)
  for (const { name, revision, content } of records) {
    if ((before.get(name)?.revision ?? 0) >= revision) continue
    after.set(name, { name, revision, content: copyOf(content), atMs: now })
  }
  return after
}

function copied(record: WrittenRecord): WrittenRecord {
  return { ...record, content: copyOf(record.content) }
}

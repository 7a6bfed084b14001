// What the audit trail of a store's rows must show, each change by itself. Only the holder of a key writes it. No holder is
// pushed out while its lease lives. What is settled stays as it is, and nothing that is still needed is removed.

import type { History, HistoryRow, RowChange, StoreOperation } from './history.ts'
import type { Violation } from './violation.ts'

type Report = (assertion: Violation['assertion'], message: string) => void

export function checkAudit(history: History, report: (violation: Violation) => void): void {
  const lastFences = new Map<string, number>()
  for (const change of history.changes) {
    const by = change.by === undefined ? undefined : history.operations[change.by]
    const reportHere: Report = (assertion, message) =>
      report({ assertion, key: change.key, message: `${message} (at ${change.atMs} ms, by ${describe(by)})` })
    if (!change.after) checkRemoval(change, by, reportHere)
    else if (!change.before || isGrant(change, by)) {
      checkGrant(change, change.after, by, reportHere)
      if (change.untold) continue
      const last = lastFences.get(change.key) ?? -Infinity
      if (change.after.fence <= last) reportHere('fence-grows', `fence ${change.after.fence} was given after ${last}`)
      lastFences.set(change.key, change.after.fence)
    } else checkWrite(change, change.before, change.after, by, reportHere)
  }
}

/** Was the key granted? A claim that is delivered once more long after its entry has expired is a claim like any other. */
export function isGrant({ before, after, atMs }: RowChange, by: StoreOperation | undefined): boolean {
  if (before?.token !== after?.token) return true
  const phase = phaseOf(before, atMs)
  return by?.call === 'claim' && (phase === 'absent' || phase === 'tombstone')
}

export type Phase = 'absent' | 'running' | 'abandoned' | 'open' | 'settled' | 'tombstone'

export function phaseOf(row: HistoryRow | undefined, atMs: number): Phase {
  if (!row || atMs >= row.leaseUntilMs + row.keepMs + row.tombstoneMs) return 'absent'
  if (atMs >= row.leaseUntilMs + row.keepMs) return 'tombstone'
  if (row.wrote === 'settle') return 'settled'
  if (row.wrote === 'release') return 'open'
  return atMs < row.leaseUntilMs ? 'running' : 'abandoned'
}

function checkRemoval({ before, atMs }: RowChange, by: StoreOperation | undefined, report: Report): void {
  const phase = phaseOf(before, atMs)
  if (!before || phase === 'absent' || (by?.call === 'mend' && by.action === 'forget')) return
  const isOwnRelease = by?.call === 'release' && by.how === 'forget' && by.token === before.token
  if (isOwnRelease && before.attempt === 1 && (phase === 'running' || phase === 'abandoned')) return
  report('live-kept', `a ${phase} entry was removed`)
}

/** The row has another token than before: the store granted the key. */
function checkGrant(
  { before, atMs }: RowChange,
  after: HistoryRow,
  by: StoreOperation | undefined,
  report: Report,
): void {
  const phase = phaseOf(before, atMs)
  if (phase === 'running') report('one-holder', `the key was given away under a lease until ${before!.leaseUntilMs} ms`)
  if (phase === 'settled') report('settled-is-final', 'a settled key was given away')
  // A transaction was granted its key before it committed, and the entry may have expired in between.
  const inTransaction = by?.call === 'commit'
  const isFresh = phase === 'absent' || phase === 'tombstone' || (inTransaction && after.attempt === 1)
  const expected = isFresh && !(inTransaction && after.attempt > 1) ? 1 : before!.attempt + 1
  if (after.attempt !== expected) report('attempts-grow', `attempt ${after.attempt} came where ${expected} should have`)
  if (!isFresh && after.fingerprint !== before?.fingerprint) {
    report('one-fingerprint', 'a key was given to another request than it belonged to')
  }
  if (after.wrote !== 'claim' && !inTransaction) report('holder-writes', `a ${after.wrote} brought in a new token`)
}

function checkWrite(
  { atMs }: RowChange,
  before: HistoryRow,
  after: HistoryRow,
  by: StoreOperation | undefined,
  report: Report,
): void {
  const phase = phaseOf(before, atMs)
  if (by?.call === 'mend' && typeof by.action === 'object') return checkMending(phase, before, after, report)
  const same = (['attempt', 'fence', 'fingerprint'] as const).every((name) => before[name] === after[name])
  if (!same) report('holder-writes', 'a write changed the attempt, the fence or the fingerprint of an entry')
  const isStrip = phase === 'tombstone' && after.outcome === undefined && before.wrote === after.wrote
  if (isStrip || by?.call === 'sweep') {
    if (!isStrip) report('live-kept', `a sweep changed a ${phase} entry`)
    return
  }
  if (phase === 'settled') return report('settled-is-final', 'a settled entry was written again')
  if (phase !== 'running' && phase !== 'abandoned') return report('holder-writes', `a ${phase} entry was written`)
  if (by && by.call !== 'mend' && tokenOf(by) !== before.token) {
    report('holder-writes', `it was written by ${tokenOf(by)?.slice(0, 8)}, and held by ${before.token.slice(0, 8)}`)
  }
  if (by && 'fence' in by && by.fence && by.fence !== before.fence) {
    report('holder-writes', `it was written under fence ${by.fence} of an earlier life, and held under ${before.fence}`)
  }
}

/** Resolve settles what is not settled, under another fence. Keep changes nothing but the expiry, which never comes earlier. */
function checkMending(phase: Phase, before: HistoryRow, after: HistoryRow, report: Report): void {
  const same = (['attempt', 'token', 'fingerprint'] as const).every((name) => before[name] === after[name])
  if (!same) report('holder-writes', 'a mending changed the attempt, the token or the fingerprint of an entry')
  const isResolved = before.wrote !== 'settle' && after.wrote === 'settle'
  if (isResolved) {
    if (phase === 'tombstone' || phase === 'absent') report('live-kept', `a ${phase} entry was resolved`)
    if (after.fence <= before.fence) report('fence-grows', `fence ${after.fence} was given after ${before.fence}`)
    return
  }
  if (after.wrote !== before.wrote || after.fence !== before.fence || after.leaseUntilMs !== before.leaseUntilMs) {
    report('holder-writes', `a ${phase} entry was changed by a keep`)
  }
  if (after.keepMs < before.keepMs) report('live-kept', `a keep made a ${phase} entry expire earlier`)
}

export function tokenOf(operation: StoreOperation): string | undefined {
  if (operation.call === 'claim' || operation.call === 'begin') return operation.request.token
  return 'token' in operation ? operation.token : undefined
}

function describe(operation: StoreOperation | undefined): string {
  return operation ? `the ${operation.call} of ${operation.process}` : 'nobody that can be told'
}

// The two ends of the scripts as seen from here: calls are written as text, replies are read from it. The bytes of an outcome
// or an input are never looked at.

import assert from 'node:assert/strict'
import { decide, mendingName, shownEntry, stateOf } from '../../core/entry.ts'
import type { EntryRecord, HowGranted } from '../../core/entry.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { AuditRecord, Claim, ClaimRequest, Entry, Mending, Retention, Verdict } from '../../core/store.ts'
import { quarantined } from './data-loss.ts'
import {
  auditPlaces,
  claimWords,
  durationPlaces,
  entryLength,
  entryPlaces,
  fitted,
  inspectWords,
  mendingPlaces,
  numberAt,
  textAt,
  writeWords,
  writerOf,
} from './places.ts'

/** One call of a script. See the scripts for what the words, durations and bytes of each are. */
export interface ScriptCall {
  /** For errors: what the store was asked to do. */
  readonly what: 'claim' | 'extend' | 'settle' | 'release' | 'show' | 'mend'
  /** Of the entry. */
  readonly name: string
  readonly words: string
  readonly durations: string
  readonly bytes: Uint8Array | undefined
}

const claimText = writerOf(claimWords)
const writeText = writerOf(writeWords)
const inspectText = writerOf(inspectWords)
const durationsText = writerOf(durationPlaces)
const mendingText = writerOf(mendingPlaces)

/** A claim's token, fingerprint and version stand in the script's words as they will stand in the entry. */
export function claimCall(name: string, request: ClaimRequest): ScriptCall {
  const { token, fingerprint, version, input } = request
  const words = claimText({ token, fingerprint, version })
  return { what: 'claim', name, words, durations: claimDurations(request), bytes: input && copyOf(input) }
}

export function extendCall(name: string, { fence, token }: Claim, leaseMs: number): ScriptCall {
  const words = writeText({ verb: 'e', fence, token })
  return { what: 'extend', name, words, durations: fitted(leaseMs, durationPlaces.lease), bytes: undefined }
}

export function settleCall(
  name: string,
  { fence, token }: Claim,
  outcome: Uint8Array,
  retention: Retention,
): ScriptCall {
  const words = writeText({ verb: 's', fence, token })
  return { what: 'settle', name, words, durations: settleDurations(retention), bytes: copyOf(outcome) }
}

export function releaseCall(name: string, { fence, token }: Claim, how: 'open' | 'forget'): ScriptCall {
  const words = writeText({ verb: how[0]!, fence, token })
  return { what: 'release', name, words, durations: '', bytes: undefined }
}

export function lookCall(name: string): ScriptCall {
  return { what: 'show', name, words: inspectText({ action: 'look' }), durations: '', bytes: undefined }
}

export interface RedisMending {
  readonly action: Mending
  readonly reason: string
  /** How long and how many audit records of the key are kept. */
  readonly auditKeepMs: number
  readonly auditRecords: number
}

export function mendCall(name: string, { action, reason, auditKeepMs, auditRecords }: RedisMending): ScriptCall {
  const reasonBytes = Buffer.from(reason)
  const isResolve = typeof action === 'object' && 'resolve' in action
  const { keepMs, tombstoneMs } = isResolve
    ? action.retention
    : { keepMs: typeof action === 'object' ? action.keepMs : 0, tombstoneMs: 0 }
  const durations = mendingText({
    auditKeep: auditKeepMs,
    auditRecords,
    reason: reasonBytes.length,
    keep: keepMs,
    tombstone: tombstoneMs,
  })
  const bytes = isResolve ? Buffer.concat([reasonBytes, action.resolve]) : reasonBytes
  return { what: 'mend', name, words: inspectText({ action: mendingName(action) }), durations, bytes }
}

// A client may send it later, and the caller may have changed it by then.
function copyOf(bytes: Uint8Array): Uint8Array {
  return Uint8Array.prototype.slice.call(bytes)
}

/** What a script replied to a claim or an inspection, and the server's time at which it did. */
export interface EntryReply {
  readonly bytes: Buffer
  readonly nowMs: number
}

/** Undefined when the claim arrived after its time, and nothing was done. */
export function readVerdict(key: Key, request: ClaimRequest, reply: EntryReply): Verdict | undefined {
  const { bytes } = reply
  // No state of an entry begins with these letters.
  switch (bytes[0]) {
    case letter('g'): {
      // Everything has the place that it has in the entry.
      const text = bytes.toString('latin1')
      const claim = {
        key,
        token: request.token,
        attempt: numberAt(text, entryPlaces.attempt),
        fence: numberAt(text, entryPlaces.fence),
      }
      return {
        is: 'granted',
        how: textAt(text, entryPlaces.how).trimEnd() as HowGranted,
        claim,
      }
    }
    case letter('l'):
      return undefined
    case letter('q'):
      throw quarantined(key)
    default:
      return refusal(key, request, reply)
  }
}

/** Why an entry that is there was not granted: `decide` says it of the entry at the server's time, as the script did. */
function refusal(key: Key, request: ClaimRequest, { bytes, nowMs }: EntryReply): Verdict {
  const decision = decide(recordIn(key, bytes), request, nowMs)
  if (decision.is === 'refused') return decision.verdict
  assert(decision.is === 'replayed', `Bug! Redis did not grant ${describeKey(key)}, which is to be ${decision.is}.`)
  const { outcome, version, attempt } = decision.entry
  if (!outcome) throw unreadable(key)
  return { is: 'settled', outcome, version, attempt }
}

/** Undefined when there is none. */
export function readEntry(key: Key, { bytes, nowMs }: EntryReply): Entry | undefined {
  return bytes.equals(absent) ? undefined : shownEntry(recordIn(key, bytes), nowMs)
}

const absent = Buffer.from('absent')

export function readAudit(key: Key, bytes: Buffer): AuditRecord {
  const text = bytes.toString()
  const atMs = numberAt(text, auditPlaces.at)
  const before = Buffer.from(textAt(text, auditPlaces.before))
  return {
    key,
    atMs,
    action: textAt(text, auditPlaces.action).trimEnd() as AuditRecord['action'],
    before: stateOf(recordIn(key, before), atMs)!,
    reason: text.slice(auditPlaces.before.to + 1),
  }
}

// As `shape` of the scripts, and stricter: this one costs nothing.
const digits = ({ width }: { readonly width: number }): string => `\\d{${width}}`
const shape = new RegExp(
  `^${[
    '(running|settled|open   )',
    '(fresh     |reopened  |taken-over)',
    ...(['lease', 'expires', 'forgotten', 'attempt', 'fence', 'first'] as const).map((name) =>
      digits(entryPlaces[name]),
    ),
    `.{${entryPlaces.token.width}}`,
    `.{${entryPlaces.fingerprint.width}}`,
    digits(entryPlaces.version),
  ].join(' ')}$`,
)

const wrote = { running: 'claim', open: 'release', settled: 'settle' } as const

/** Everything that an entry says. A settled one whose outcome is gone has none. */
function recordIn(key: Key, bytes: Buffer): EntryRecord {
  const text = bytes.toString('latin1', 0, entryLength)
  if (!shape.test(text)) throw unreadable(key)
  const state = textAt(text, entryPlaces.state).trimEnd() as keyof typeof wrote
  const rest = bytes.length > entryLength ? bytes.subarray(entryLength + 1) : undefined
  const leaseUntilMs = numberAt(text, entryPlaces.lease)
  const expiresAtMs = numberAt(text, entryPlaces.expires)
  return {
    key,
    wrote: wrote[state],
    how: textAt(text, entryPlaces.how).trimEnd() as HowGranted,
    token: textAt(text, entryPlaces.token),
    attempt: numberAt(text, entryPlaces.attempt),
    fence: numberAt(text, entryPlaces.fence),
    fingerprint: textAt(text, entryPlaces.fingerprint),
    version: numberAt(text, entryPlaces.version),
    firstClaimedAtMs: numberAt(text, entryPlaces.first),
    leaseUntilMs,
    keepMs: expiresAtMs - leaseUntilMs,
    tombstoneMs: numberAt(text, entryPlaces.forgotten) - expiresAtMs,
    ...(rest && { [state === 'settled' ? 'outcome' : 'input']: rest }),
  }
}

function letter(text: string): number {
  return text.charCodeAt(0)
}

/** Nearly always the same as the last time: the text is not made again. */
function claimDurationsText(): (request: ClaimRequest) => string {
  let last: Pick<ClaimRequest, 'leaseMs' | 'retention' | 'onTakeover' | 'onExpired'> | undefined
  let text = ''
  return (request) => {
    const { leaseMs, retention, onTakeover, onExpired } = request
    const isLast =
      leaseMs === last?.leaseMs &&
      isSame(retention, last.retention) &&
      onTakeover === last.onTakeover &&
      onExpired === last.onExpired
    if (isLast) return text
    last = { leaseMs, retention: { ...retention }, onTakeover, onExpired }
    const { keepMs: keep, tombstoneMs: tombstone } = retention
    text = durationsText({ lease: leaseMs, keep, tombstone, onTakeover, onExpired })
    return text
  }
}

function settleDurationsText(): (retention: Retention) => string {
  let last: Retention | undefined
  let text = ''
  return (retention) => {
    if (last && isSame(retention, last)) return text
    last = { ...retention }
    text = durationsText({ lease: 0, keep: retention.keepMs, tombstone: retention.tombstoneMs })
    return text
  }
}

function isSame(a: Retention, b: Retention): boolean {
  return a.keepMs === b.keepMs && a.tombstoneMs === b.tombstoneMs
}

const claimDurations = claimDurationsText()
const settleDurations = settleDurationsText()

export function unreadable(key: Key): OnceError {
  return new OnceError('OUTCOME_UNREADABLE', {
    executed: 'unknown',
    message:
      `What Redis has stored for ${describeKey(key)} is damaged or incomplete, so the effect is not run again. Look at it ` +
      `(onceonly keys show), find out what became of the effect, then remove the entry (onceonly keys forget --reason …).`,
  })
}

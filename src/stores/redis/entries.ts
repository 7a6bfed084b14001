// The two ends of the scripts as seen from here: calls are written as text, replies are read from it. The bytes of an outcome
// or an input are never looked at.

import assert from 'node:assert/strict'
import { isUtf8 } from 'node:buffer'
import type { RedisArgument } from '../../clients/redis.ts'
import { decide, mendingName, shownEntry, stateOf } from '../../core/entry.ts'
import type { EntryRecord, HowGranted } from '../../core/entry.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type {
  AuditRecord,
  Claim,
  ClaimRequest,
  Entry,
  Mending,
  MendingName,
  Retention,
  Verdict,
} from '../../core/store.ts'
import { quarantined } from './data-loss.ts'
import { damagedText, inlineBytesMax } from './decisions.lua.ts'
import {
  auditPlaces,
  claimWords,
  durationPlaces,
  entryLength,
  entryPlaces,
  firstDigit,
  fitted,
  inspectWords,
  mendingPlaces,
  numberAt,
  textAt,
  writeWords,
  writerOf,
} from './places.ts'
import type { Place } from './places.ts'

/** One call of a script. See the scripts for what the words, durations and bytes of each are. */
export interface ScriptCall {
  /** For errors: what the store was asked to do. */
  readonly what: 'claim' | 'extend' | 'settle' | 'show' | MendingName
  /** Of the entry. */
  readonly name: string
  readonly words: string
  readonly durations: string
  readonly bytes: Uint8Array | undefined
  /** What a native command needs to know beside it. Without it only the script will do. */
  readonly native?: NativeClaim | NativeSettle | undefined
}

export interface NativeClaim {
  readonly is: 'claim'
  readonly leaseMs: number
  readonly retention: Retention
}

export interface NativeSettle {
  readonly is: 'settle'
  readonly held: HeldClaim
  readonly retention: Retention
  /** As text where it is text: a client writes each buffer by itself. */
  readonly outcome: RedisArgument
}

/** An entry as a native command wrote it, in pieces: `running fresh`, the times, and what a settle does not change. */
export interface WrittenEntry {
  /** Under which it was written. */
  readonly name: string
  readonly times: string
  /** From the attempt to the version. */
  readonly rest: string
  readonly expiresAtMs: number
}

/**
 * A claim that was granted by a native command. It remembers the entry as it was written, which a native settle has to name. A
 * heartbeat changes the entry, so from the first one on the script settles: it asks for token and fence only.
 */
export class HeldClaim implements Claim {
  readonly key: Key
  readonly token: string
  readonly attempt = 1
  readonly fence: number
  #written: WrittenEntry | undefined

  constructor(key: Key, token: string, fence: number, written: WrittenEntry | undefined) {
    this.key = key
    this.token = token
    this.fence = fence
    this.#written = written
  }

  static writtenOf(held: HeldClaim): WrittenEntry | undefined {
    return held.#written
  }

  static extend(held: HeldClaim): void {
    held.#written = undefined
  }
}

/** The name of its entry, where the claim remembers it: to make it again costs as much as half a command. */
export function rememberedName(held: Claim): string | undefined {
  return held instanceof HeldClaim ? HeldClaim.writtenOf(held)?.name : undefined
}

const writeText = writerOf(writeWords)
const inspectText = writerOf(inspectWords)
const durationsText = writerOf(durationPlaces)
const mendingText = writerOf(mendingPlaces)

/** The words of a claim by hand, as every call writes them. `writerOf` does it for the others. */
function claimText(token: string, fingerprint: string, version: number): string {
  if (version !== lastVersion.version) lastVersion = { version, text: fitted(version, claimWords.version) }
  return `${fitted(token, claimWords.token)} ${fitted(fingerprint, claimWords.fingerprint)} ${lastVersion.text}`
}

let lastVersion = { version: -1, text: '' }

/** A claim's token, fingerprint and version stand in the script's words as they will stand in the entry. */
export function claimCall(name: string, request: ClaimRequest): ScriptCall {
  const { token, fingerprint, version, input, leaseMs, retention } = request
  return {
    what: 'claim',
    name,
    words: claimText(token, fingerprint, version),
    durations: claimDurations(request),
    bytes: input && copyOf(input),
    // An entry with an input would have to be sent once more with every native write.
    native: input ? undefined : { is: 'claim', leaseMs, retention },
  }
}

export function extendCall(name: string, held: Claim, leaseMs: number): ScriptCall {
  if (held instanceof HeldClaim) HeldClaim.extend(held)
  const words = writeText({ verb: 'e', fence: held.fence, token: held.token })
  return { what: 'extend', name, words, durations: fitted(leaseMs, durationPlaces.lease), bytes: undefined }
}

export function settleCall(name: string, held: Claim, outcome: Uint8Array, retention: Retention): ScriptCall {
  const words = writeText({ verb: 's', fence: held.fence, token: held.token })
  return { what: 'settle', name, words, durations: settleDurations(retention), bytes: copyOf(outcome) }
}

/** The same for a native command. Undefined where that will not do. */
export function nativeSettleCall(held: Claim, outcome: Uint8Array, retention: Retention): ScriptCall | undefined {
  const written = held instanceof HeldClaim ? HeldClaim.writtenOf(held) : undefined
  // A large outcome has a name of its own, and two names need a script.
  if (outcome.length > inlineBytesMax) return undefined
  return written && new NativeSettleCall(held as HeldClaim, written.name, outcome, retention)
}

/** What only the script needs is made when the script is asked. */
class NativeSettleCall implements ScriptCall, NativeSettle {
  readonly what = 'settle'
  readonly is = 'settle'
  readonly name: string
  readonly held: HeldClaim
  readonly retention: Retention
  readonly outcome: RedisArgument

  constructor(held: HeldClaim, name: string, outcome: Uint8Array, retention: Retention) {
    const buffer = Buffer.from(outcome.buffer, outcome.byteOffset, outcome.byteLength)
    this.name = name
    this.held = held
    this.retention = retention
    // A copy in both cases: a client may send it later, and the caller may have changed it by then.
    this.outcome = isUtf8(buffer) ? buffer.toString() : Buffer.from(buffer)
  }

  get native(): NativeSettle {
    return this
  }

  get words(): string {
    return writeText({ verb: 's', fence: this.held.fence, token: this.held.token })
  }

  get durations(): string {
    return settleDurations(this.retention)
  }

  get bytes(): Uint8Array {
    return typeof this.outcome === 'string' ? Buffer.from(this.outcome) : this.outcome
  }
}

export function releaseCall(name: string, held: Claim, how: 'open' | 'forget'): ScriptCall {
  const { fence, token } = held
  const words = writeText({ verb: how[0]!, fence, token })
  return { what: 'release', name, words, durations: '', bytes: undefined }
}

/** Takes a claim back that this call was granted. */
export function releaseOf({ name, words }: ScriptCall, fence: number): ScriptCall {
  const token = textAt(words, claimWords.token)
  return { what: 'release', name, words: writeText({ verb: 'f', fence, token }), durations: '', bytes: undefined }
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
  return { what: mendingName(action), name, words: inspectText({ action: mendingName(action) }), durations, bytes }
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

/** A native command wrote the entry of a claim. */
export interface NativeGrant {
  readonly fence: number
  readonly written: WrittenEntry | undefined
}

/** Undefined when the claim arrived after its time, and nothing was done. */
export function readVerdict(key: Key, request: ClaimRequest, reply: EntryReply | NativeGrant): Verdict | undefined {
  if ('fence' in reply) {
    return { is: 'granted', how: 'fresh', claim: new HeldClaim(key, request.token, reply.fence, reply.written) }
  }
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
  if (bytes.equals(absent)) return undefined
  return shownEntry(bytes.equals(damaged) ? damagedRecord(key, nowMs) : recordIn(key, bytes), nowMs)
}

const absent = Buffer.from('absent')
const damaged = Buffer.from(damagedText)

/** What is known of an entry that cannot be read: an attempt began, and what became of it is in doubt. */
function damagedRecord(key: Key, nowMs: number): EntryRecord {
  const times = { firstClaimedAtMs: 0, leaseUntilMs: 0, keepMs: nowMs + 1, tombstoneMs: 0 }
  return { key, wrote: 'claim', how: 'fresh', token: '', attempt: 1, fence: 0, fingerprint: '', version: 0, ...times }
}

export function readAudit(key: Key, bytes: Buffer): AuditRecord {
  const text = bytes.toString()
  const atMs = numberAt(text, auditPlaces.at)
  const before = textAt(text, auditPlaces.before)
  const record = before.trimEnd() === damagedText ? damagedRecord(key, atMs) : recordIn(key, Buffer.from(before))
  return {
    key,
    atMs,
    action: textAt(text, auditPlaces.action).trimEnd() as AuditRecord['action'],
    before: stateOf(record, atMs)!,
    reason: text.slice(auditPlaces.before.to + 1),
  }
}

// As `shape` of the scripts, and stricter: this one costs nothing.
const digits = (place: Place): string => `${firstDigit(place)}\\d{${place.width - 1}}`
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

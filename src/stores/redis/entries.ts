// The two ends of the script as seen from here: calls are written as text, answers are read from it. The bytes of an outcome
// or an input are never looked at.

import assert from 'node:assert/strict'
import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { AuditRecord, Claim, ClaimRequest, Entry, EntryState, Retention, Verdict } from '../../core/store.ts'
import type { ScriptCall } from './batches.ts'
import { entryLength, fields } from './decisions.lua.ts'
import type { Field } from './decisions.lua.ts'

/** A claim's token, fingerprint and version stand in the script's words as they will stand in the entry. */
export function claimCall(name: string, request: ClaimRequest): ScriptCall {
  const { token, fingerprint, leaseMs, retention, version, onTakeover, onExpired, input } = request
  const words = `${fitting(token, 36)} ${fitting(fingerprint, 43)} ${digits(version, 10)}`
  const policies = ` ${onTakeover.padEnd(6)} ${onExpired}`
  return { name, words, durations: claimDurations(leaseMs, retention, policies), bytes: input && copyOf(input) }
}

export function extendCall(name: string, held: Claim, leaseMs: number): ScriptCall {
  return { name, words: `e ${holder(held)}`, durations: digits(leaseMs), bytes: undefined }
}

export function settleCall(name: string, held: Claim, outcome: Uint8Array, retention: Retention): ScriptCall {
  return { name, words: `s ${holder(held)}`, durations: settleDurations(0, retention, ''), bytes: copyOf(outcome) }
}

export function releaseCall(name: string, held: Claim, how: 'open' | 'forget'): ScriptCall {
  return { name, words: `${how[0]} ${holder(held)}`, durations: '', bytes: undefined }
}

function holder({ fence, token }: Claim): string {
  return `${digits(fence)} ${fitting(token, 36)}`
}

export function lookCall(name: string): ScriptCall {
  return { name, words: 'look   ', durations: '', bytes: undefined }
}

export interface Mending {
  readonly action: 'release' | 'forget'
  readonly reason: string
  /** How long and how many records of the key are kept. */
  readonly keepMs: number
  readonly records: number
}

export function mendCall(name: string, { action, reason, keepMs, records }: Mending): ScriptCall {
  const durations = `${digits(keepMs)} ${digits(records, 5)}`
  return { name, words: action.padEnd(7), durations, bytes: Buffer.from(reason) }
}

// A client may send it later, and the caller may have changed it by then.
function copyOf(bytes: Uint8Array): Uint8Array {
  return Uint8Array.prototype.slice.call(bytes)
}

/** What the script answered to a claim or an inspection, and the server's time at which it did. */
export interface Answer {
  readonly bytes: Buffer
  readonly nowMs: number
}

/** Undefined when the claim arrived after its time, and nothing was done. */
export function readVerdict(key: Key, request: ClaimRequest, answer: Answer): Verdict | undefined {
  const { bytes } = answer
  // No state of an entry begins with these letters.
  switch (bytes[0]) {
    case letter('g'): {
      // Everything has the place that it has in the entry.
      const text = bytes.toString('latin1')
      const claim = { key, token: request.token, attempt: numberIn(text, 'attempt'), fence: numberIn(text, 'fence') }
      return { is: 'granted', how: wordIn(text, 'how').trimEnd() as 'fresh' | 'reopened' | 'taken-over', claim }
    }
    case letter('l'):
      return undefined
    case letter('q'):
      throw quarantined(key)
    default:
      return refusal(key, request, answer)
  }
}

/** Why an entry that is there was not granted, in the order of the table in DESIGN: what is over, who asks, what it is. */
function refusal(key: Key, request: ClaimRequest, { bytes, nowMs }: Answer): Verdict {
  const text = readText(key, bytes)
  const state = stateIn(text, nowMs)
  if (state === 'tombstone') return { is: 'expired' }
  if (wordIn(text, 'fingerprint') !== request.fingerprint) return { is: 'mismatch' }
  if (state === 'settled') {
    if (bytes.length === entryLength) throw unreadable(key)
    const outcome = bytes.subarray(entryLength + 1)
    return { is: 'settled', outcome, version: numberIn(text, 'version'), attempt: numberIn(text, 'attempt') }
  }
  if (state === 'abandoned') return { is: 'doubt', attempt: numberIn(text, 'attempt') }
  return { is: 'busy', retryAfterMs: state === 'open' ? 0 : numberIn(text, 'lease') - nowMs }
}

/** Undefined when there is none. */
export function readEntry(key: Key, answer: Answer): Entry | undefined {
  return answer.bytes.equals(absent) ? undefined : readStored(key, answer)
}

const absent = Buffer.from('absent')

export function readAudit(key: Key, bytes: Buffer): AuditRecord {
  const text = bytes.toString()
  const atMs = Number(text.slice(0, 16))
  const before = Buffer.from(text.slice(25, 25 + entryLength))
  return {
    key,
    atMs,
    action: text.slice(17, 24).trimEnd() as AuditRecord['action'],
    before: readStored(key, { bytes: before, nowMs: atMs }).state,
    reason: text.slice(26 + entryLength),
  }
}

const shape = new RegExp(
  '^(running|settled|open   ) (fresh     |reopened  |taken-over) \\d{16} \\d{16} \\d{16} \\d{10} \\d{16} \\d{16} .{36} .{43} \\d{10}$',
)

/** An entry without what follows the line feed. */
function readText(key: Key, bytes: Buffer): string {
  const text = bytes.toString('latin1', 0, entryLength)
  if (!shape.test(text)) throw unreadable(key)
  return text
}

function wordIn(text: string, name: Field): string {
  return text.slice(fields[name][0] - 1, fields[name][1])
}

function numberIn(text: string, name: Field): number {
  return Number(wordIn(text, name))
}

function readStored(key: Key, { bytes, nowMs }: Answer): Entry {
  const text = readText(key, bytes)
  const state = stateIn(text, nowMs)
  const rest = bytes.length > entryLength && state !== 'tombstone' ? bytes.subarray(entryLength + 1) : undefined
  return {
    key,
    state,
    attempt: numberIn(text, 'attempt'),
    fence: numberIn(text, 'fence'),
    fingerprint: wordIn(text, 'fingerprint'),
    version: numberIn(text, 'version'),
    firstClaimedAtMs: numberIn(text, 'first'),
    leaseUntilMs: numberIn(text, 'lease'),
    expiresAtMs: numberIn(text, 'expires'),
    forgottenAtMs: numberIn(text, 'forgotten'),
    ...(rest && { [state === 'settled' ? 'outcome' : 'input']: rest }),
  }
}

function stateIn(text: string, nowMs: number): EntryState {
  if (nowMs >= numberIn(text, 'expires')) return 'tombstone'
  if (text.startsWith('settled')) return 'settled'
  if (text.startsWith('open')) return 'open'
  return nowMs < numberIn(text, 'lease') ? 'running' : 'abandoned'
}

function letter(text: string): number {
  return text.charCodeAt(0)
}

// Sixteen digits hold any exact integer; a hundred years of milliseconds have thirteen.
function digits(value: number, width = 16): string {
  return `${value}`.padStart(width, '0')
}

/** Nearly always the same as the last time: the text is not made again. */
function durationsText(): (leaseMs: number, retention: Retention, policies: string) => string {
  let last = { leaseMs: -1, keepMs: -1, tombstoneMs: -1, policies: '', text: '' }
  return (leaseMs, { keepMs, tombstoneMs }, policies) => {
    const isLast = leaseMs === last.leaseMs && keepMs === last.keepMs && tombstoneMs === last.tombstoneMs
    if (isLast && policies === last.policies) return last.text
    const text = `${digits(leaseMs)} ${digits(keepMs)} ${digits(tombstoneMs)}${policies}`
    last = { leaseMs, keepMs, tombstoneMs, policies, text }
    return text
  }
}

const claimDurations = durationsText()
const settleDurations = durationsText()

// Anything else would shift what follows, and the entry would be another one.
function fitting(text: string, length: number): string {
  assert(
    text.length === length && Buffer.byteLength(text) === length,
    `Bug! Expected ${length} characters of ASCII, got "${text}".`,
  )
  return text
}

function quarantined(key: Key): OnceError {
  return new OnceError('STORE_UNAVAILABLE', {
    message:
      `Redis has lost data, so ${describeKey(key)} was not claimed: it may have run before. New claims are refused until ` +
      `endQuarantine(reason) is called or quarantineMs is over; settled keys are replayed as before.`,
  })
}

export function unreadable(key: Key): OnceError {
  return new OnceError('OUTCOME_UNREADABLE', {
    executed: 'unknown',
    message:
      `What Redis has stored for ${describeKey(key)} is damaged or incomplete, and the effect is not run again. ` +
      `Look at it with show(), and release the key with mend(key, 'forget', reason) when you know what became of it.`,
  })
}

// The two ends of the script as seen from here: calls are written as text, answers are read from it. The bytes of an outcome
// or an input stand after a line feed and are never looked at.

import assert from 'node:assert/strict'
import { OnceError } from '../core/errors.ts'
import { describeKey } from '../core/key.ts'
import type { Key } from '../core/key.ts'
import type { AuditRecord, ClaimRequest, Entry, EntryState, Fenced, Retention, Verdict } from '../core/store.ts'
import type { ScriptCall } from './redis-calls.ts'
import type { RedisArgument } from './redis-client.ts'
import type { EntryNames } from './redis-names.ts'
import { entryLength, fields } from './redis-script.ts'
import type { Field } from './redis-script.ts'

export function claimCall({ entry, outcome }: EntryNames, request: ClaimRequest): ScriptCall {
  const { token, fingerprint, leaseMs, retention, version, onTakeover, onExpired, input } = request
  const durations = `${digits(leaseMs)} ${kept(retention)} ${onTakeover.padEnd(6)} ${onExpired}`
  const rest = `${fitting(token, 36)} ${fitting(fingerprint, 43)} ${digits(version, 10)}`
  return { keys: [entry, outcome], values: [durations, withBytes(rest, input)] }
}

export function extendCall({ entry, outcome }: EntryNames, token: string, leaseMs: number): ScriptCall {
  return { keys: [entry, outcome], values: [`extend  ${fitting(token, 36)} ${digits(leaseMs)}`, ''] }
}

export function settleCall(names: EntryNames, token: string, outcome: Uint8Array, retention: Retention): ScriptCall {
  // Copied: a client may send it later, and the caller may have changed it by then.
  const values = [`settle  ${fitting(token, 36)} ${digits(0)} ${kept(retention)}`, Buffer.from(outcome)]
  return { keys: [names.entry, names.outcome], values }
}

export function releaseCall({ entry, outcome }: EntryNames, token: string, how: 'open' | 'forget'): ScriptCall {
  return { keys: [entry, outcome], values: [`release ${fitting(token, 36)} ${how}`, ''] }
}

export function lookCall({ entry, outcome, audit }: EntryNames): ScriptCall {
  return { keys: [entry, outcome, audit], values: ['look   '] }
}

export interface Mending {
  readonly action: 'release' | 'forget'
  readonly reason: string
  /** How long and how many records of the key are kept. */
  readonly keepMs: number
  readonly records: number
}

export function mendCall({ entry, outcome, audit }: EntryNames, mending: Mending): ScriptCall {
  const { action, reason, keepMs, records } = mending
  const text = `${action.padEnd(7)} ${digits(keepMs)} ${digits(records, 5)} ${reason}`
  return { keys: [entry, outcome, audit], values: [Buffer.from(text)] }
}

/** What the script answered, and the server's time at which it did. */
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
      const [, how, attempt, fence] = bytes.toString('latin1').split(/ +/)
      const claim = { key, token: request.token, attempt: Number(attempt), fence: Number(fence) }
      return { is: 'granted', how: how as 'fresh' | 'reopened' | 'taken-over', claim }
    }
    case letter('l'):
      return undefined
    case letter('q'):
      throw quarantined(key)
    default:
      return refusal(readStored(key, answer), request, answer.nowMs)
  }
}

/** Why an entry that is there was not granted, in the order of the table in DESIGN: what is over, who asks, what it is. */
function refusal(entry: Entry, request: ClaimRequest, nowMs: number): Verdict {
  if (entry.state === 'tombstone') return { is: 'expired' }
  if (entry.fingerprint !== request.fingerprint) return { is: 'mismatch' }
  if (entry.state === 'settled') {
    if (!entry.outcome) throw unreadable(entry.key)
    return { is: 'settled', outcome: entry.outcome, version: entry.version, attempt: entry.attempt }
  }
  if (entry.state === 'abandoned') return { is: 'doubt', attempt: entry.attempt }
  return { is: 'busy', retryAfterMs: entry.state === 'open' ? 0 : entry.leaseUntilMs - nowMs }
}

export function readFenced({ bytes }: Answer): Fenced {
  return bytes.toString() === 'done' ? 'done' : 'lost'
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

function readStored(key: Key, { bytes, nowMs }: Answer): Entry {
  const text = bytes.toString('latin1', 0, entryLength)
  if (!shape.test(text)) throw unreadable(key)
  const word = (name: Field): string => text.slice(fields[name][0] - 1, fields[name][1])
  const leaseUntilMs = Number(word('lease'))
  const expiresAtMs = Number(word('expires'))
  const state = stateAt(nowMs, word('state').trimEnd(), leaseUntilMs, expiresAtMs)
  const rest = bytes.length > entryLength && state !== 'tombstone' ? bytes.subarray(entryLength + 1) : undefined
  return {
    key,
    state,
    attempt: Number(word('attempt')),
    fence: Number(word('fence')),
    fingerprint: word('fingerprint'),
    version: Number(word('version')),
    firstClaimedAtMs: Number(word('first')),
    leaseUntilMs,
    expiresAtMs,
    forgottenAtMs: Number(word('forgotten')),
    ...(rest && { [state === 'settled' ? 'outcome' : 'input']: rest }),
  }
}

function stateAt(nowMs: number, wrote: string, leaseUntilMs: number, expiresAtMs: number): EntryState {
  if (nowMs >= expiresAtMs) return 'tombstone'
  if (wrote !== 'running') return wrote as 'settled' | 'open'
  return nowMs < leaseUntilMs ? 'running' : 'abandoned'
}

function letter(text: string): number {
  return text.charCodeAt(0)
}

// Sixteen digits hold any exact integer; a hundred years of milliseconds have thirteen.
function digits(value: number, width = 16): string {
  return `${value}`.padStart(width, '0')
}

function kept({ keepMs, tombstoneMs }: Retention): string {
  return `${digits(keepMs)} ${digits(tombstoneMs)}`
}

function withBytes(text: string, bytes: Uint8Array | undefined): RedisArgument {
  return bytes === undefined ? text : Buffer.concat([Buffer.from(`${text}\n`), bytes])
}

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

// The life of an entry, to the millisecond. Stores that decide on their server are held against the same by the contract.

import { describe, expect, test } from 'vitest'
import {
  attemptOf,
  canMend,
  decide,
  expiresAtMs,
  fenceAfter,
  forgottenAtMs,
  grantedAtMs,
  grantOf,
  isHeldBy,
  isOf,
  mended,
  mendingName,
  released,
  settled,
  shownEntry,
  stateOf,
  stripped,
} from './entry.ts'
import type { EntryRecord } from './entry.ts'
import { key } from './key.ts'
import type { Claim, ClaimRequest, EntryState, Mending } from './store.ts'

const subject = key('payments', '42')
const request: ClaimRequest = {
  token: 'new',
  fingerprint: 'f',
  leaseMs: 100,
  retention: { keepMs: 1_000, tombstoneMs: 10_000 },
  version: 3,
  onTakeover: 'run',
  onExpired: 'refuse',
}
const entry: EntryRecord = {
  key: subject,
  wrote: 'claim',
  how: 'fresh',
  token: 'old',
  attempt: 2,
  fence: 7,
  fingerprint: 'f',
  version: 3,
  firstClaimedAtMs: 50,
  leaseUntilMs: 100,
  keepMs: 1_000,
  tombstoneMs: 10_000,
}
const claim: Claim = { key: subject, token: 'old', attempt: 2, fence: 7 }
const outcome = Buffer.from('j1')
const input = Buffer.from('j2')

describe('the state of an entry', () => {
  test.each<[wrote: EntryRecord['wrote'], states: (EntryState | undefined)[]]>([
    ['claim', ['running', 'abandoned', 'abandoned', 'tombstone', 'tombstone', undefined]],
    ['settle', ['settled', 'settled', 'settled', 'tombstone', 'tombstone', undefined]],
    ['release', ['open', 'open', 'open', 'tombstone', 'tombstone', undefined]],
    ['forget', [undefined, undefined, undefined, undefined, undefined, undefined]],
  ])('follows from its times alone, after a %s', (wrote, states) => {
    expect([99, 100, 1_099, 1_100, 11_099, 11_100].map((nowMs) => stateOf({ ...entry, wrote }, nowMs))).toEqual(states)
  })

  test('is none without an entry, and its end is its lease, what it is kept and its tombstone', () => {
    expect(stateOf(undefined, 0)).toBeUndefined()
    expect([expiresAtMs(entry), forgottenAtMs(entry)]).toEqual([1_100, 11_100])
  })
})

describe('a claim', () => {
  const decided = (change: Partial<EntryRecord>, nowMs: number, asked: Partial<ClaimRequest> = {}): unknown => {
    const { is, ...rest } = decide({ ...entry, ...change }, { ...request, ...asked }, nowMs) as {
      is: string
      verdict?: object
      how?: string
      before?: EntryRecord
    }
    return is === 'refused' ? rest.verdict : [is, rest.how, rest.before?.attempt]
  }
  const fresh = ['granted', 'fresh', undefined]

  test('of a key without an entry, or with one that is forgotten, begins a fresh life', () => {
    expect(decide(undefined, request, 0)).toEqual({ is: 'granted', how: 'fresh', before: undefined })
    expect(decided({}, 11_100)).toEqual(fresh)
    expect(decided({ wrote: 'forget' }, 0)).toEqual(fresh)
    // Its own token, but not forgotten by it.
    expect(decided({}, 11_100, { token: 'old' })).toEqual(fresh)
  })

  test('that forgot the key itself has returned: it would not run the effect', () => {
    expect(decided({ wrote: 'forget' }, 0, { token: 'old' })).toEqual({ is: 'busy', retryAfterMs: 0 })
  })

  test.each<[what: string, change: Partial<EntryRecord>, nowMs: number, asked: Partial<ClaimRequest>, is: unknown]>([
    ['running', {}, 99, {}, { is: 'busy', retryAfterMs: 1 }],
    ['running, by the same claim', {}, 99, { token: 'old' }, ['repeated', undefined, undefined]],
    ['abandoned', {}, 100, {}, ['granted', 'taken-over', 2]],
    ['abandoned, refused', {}, 100, { onTakeover: 'refuse' }, { is: 'doubt', attempt: 2 }],
    ['abandoned, by the same claim', {}, 100, { token: 'old' }, ['repeated', undefined, undefined]],
    ['open', { wrote: 'release' }, 99, {}, ['granted', 'reopened', 2]],
    ['open, by the same claim', { wrote: 'release' }, 99, { token: 'old' }, { is: 'busy', retryAfterMs: 0 }],
    ['settled', { wrote: 'settle' }, 99, {}, ['replayed', undefined, undefined]],
    ['settled, by the same claim', { wrote: 'settle' }, 99, { token: 'old' }, ['replayed', undefined, undefined]],
    ['settled, by another request', { wrote: 'settle' }, 99, { fingerprint: 'g' }, { is: 'mismatch' }],
    ['running, by another request', {}, 99, { fingerprint: 'g' }, { is: 'mismatch' }],
    ['expired', { wrote: 'settle' }, 1_100, {}, { is: 'expired' }],
    ['expired, by another request', { wrote: 'settle' }, 1_100, { fingerprint: 'g' }, { is: 'expired' }],
    ['expired, to be run', { wrote: 'settle' }, 1_100, { onExpired: 'run' }, fresh],
  ])('of an entry that is %s', (_, change, nowMs, asked, is) => {
    expect(decided(change, nowMs, asked)).toEqual(is)
  })

  test('that is granted has the times of its own, and goes on from the attempt before', () => {
    const at = { nowMs: 500, fence: 9 }
    const { keepMs, tombstoneMs } = request.retention
    const first = attemptOf(subject, { how: 'fresh', before: undefined }, request, at)
    expect(first).toEqual({
      key: subject,
      wrote: 'claim',
      how: 'fresh',
      token: 'new',
      attempt: 1,
      fence: 9,
      fingerprint: 'f',
      version: 3,
      firstClaimedAtMs: 500,
      leaseUntilMs: 600,
      keepMs,
      tombstoneMs,
    })
    const next = attemptOf(subject, { how: 'taken-over', before: { ...entry, input } }, request, at)
    expect(next).toEqual({ ...first, how: 'taken-over', attempt: 3, firstClaimedAtMs: 50, input })
    const own = Buffer.from('own')
    expect(
      attemptOf(subject, { how: 'taken-over', before: { ...entry, input } }, { ...request, input: own }, at),
    ).toEqual({ ...next, input: own })
    expect(grantOf(first)).toEqual({
      is: 'granted',
      claim: { key: subject, token: 'new', attempt: 1, fence: 9 },
      how: 'fresh',
    })
  })

  test('has a fence of the clock in microseconds, and above the last one', () => {
    expect([fenceAfter(7, 0), fenceAfter(7, 1_000), fenceAfter(2_000_000, 1_000)]).toEqual([8, 1_000_000, 2_000_001])
    expect([grantedAtMs({ fence: 1_000_000 }), grantedAtMs({ fence: 1_000_999 })]).toEqual([1_000, 1_000])
  })
})

describe('the holder of an entry', () => {
  const others: [what: string, claim: Claim][] = [
    ['another token', { ...claim, token: 'new' }],
    ['another fence', { ...claim, fence: 8 }],
  ]

  test('is known by token and fence, and holds it also when its lease has ended', () => {
    expect(isOf(entry, claim)).toBe(true)
    expect(isOf(undefined, claim)).toBe(false)
    expect([99, 100, 1_099, 1_100].map((nowMs) => isHeldBy(entry, claim, nowMs))).toEqual([true, true, true, false])
    expect(isHeldBy({ ...entry, wrote: 'settle' }, claim, 50)).toBe(false)
    expect(isHeldBy({ ...entry, wrote: 'release' }, claim, 50)).toBe(false)
    for (const [, other] of others) expect([isOf(entry, other), isHeldBy(entry, other, 50)]).toEqual([false, false])
  })

  test('settles it, for the retention that it gives, and once', () => {
    const written = { outcome, retention: { keepMs: 5, tombstoneMs: 6 } }
    const after = settled(entry, claim, written, 80)
    expect(after).toEqual({ ...entry, wrote: 'settle', outcome, leaseUntilMs: 80, keepMs: 5, tombstoneMs: 6 })
    expect(settled(after as EntryRecord, claim, written, 84)).toBe('done')
    expect(settled(after as EntryRecord, claim, written, 85)).toBe('lost')
    expect(settled({ ...entry, wrote: 'release' }, claim, written, 80)).toBe('lost')
    expect(settled(undefined, claim, written, 80)).toBe('lost')
    for (const [, other] of others) {
      expect(settled(entry, other, written, 80)).toBe('lost')
      expect(settled(after as EntryRecord, other, written, 80)).toBe('lost')
    }
  })

  test('gives it back as open, or forgets a first attempt', () => {
    const open = { ...entry, wrote: 'release', leaseUntilMs: 80 }
    expect(released(entry, claim, 'open', 80)).toEqual(open)
    // The attempts before a later one did begin.
    expect(released(entry, claim, 'forget', 80)).toEqual(open)
    expect(released({ ...entry, attempt: 1 }, claim, 'forget', 80)).toBe('forget')
    expect(released({ ...entry, attempt: 1 }, claim, 'open', 80)).toEqual({ ...open, attempt: 1 })
    expect(released(open as EntryRecord, claim, 'open', 90)).toBe('done')
    expect(released({ ...entry, wrote: 'settle' }, claim, 'open', 80)).toBe('lost')
    expect(released(undefined, claim, 'forget', 80)).toBe('done')
    expect(released(undefined, claim, 'open', 80)).toBe('lost')
    expect(released(entry, claim, 'forget', 11_100)).toBe('done')
    expect(released(entry, claim, 'open', 11_100)).toBe('lost')
    for (const [, other] of others) {
      expect(released(entry, other, 'forget', 80)).toBe('lost')
      expect(released(open as EntryRecord, other, 'open', 80)).toBe('lost')
    }
  })

  test('that never heard of its claim gives back whatever its token holds', () => {
    expect(released({ ...entry, attempt: 1 }, { ...claim, fence: 0 }, 'forget', 80)).toBe('forget')
    expect(released({ ...entry, wrote: 'release' }, { ...claim, fence: 0 }, 'forget', 80)).toBe('done')
    expect(released(entry, { ...claim, token: 'new', fence: 0 }, 'forget', 80)).toBe('lost')
  })
})

describe('an entry as people see it', () => {
  const whole: EntryRecord = { ...entry, wrote: 'settle', outcome, input }

  test('has its state and its times, and what it holds until it has expired', () => {
    expect(shownEntry(whole, 80)).toEqual({
      key: subject,
      state: 'settled',
      attempt: 2,
      fence: 7,
      fingerprint: 'f',
      version: 3,
      firstClaimedAtMs: 50,
      leaseUntilMs: 100,
      expiresAtMs: 1_100,
      forgottenAtMs: 11_100,
      outcome,
      input,
    })
    const expired = shownEntry(whole, 1_100)!
    expect(expired.state).toBe('tombstone')
    for (const shown of [expired, shownEntry(entry, 80)!]) {
      expect(Object.keys(shown)).not.toContain('outcome')
      expect(Object.keys(shown)).not.toContain('input')
    }
    expect([shownEntry(undefined, 80), shownEntry(whole, 11_100)]).toEqual([undefined, undefined])
  })

  test('that expired is stripped of what it held, and of nothing else', () => {
    expect(stripped(whole)).toEqual({ ...entry, wrote: 'settle' })
  })
})

describe('a manual change', () => {
  const retention = { keepMs: 5, tombstoneMs: 6 }
  const changes: readonly [Mending, string, readonly EntryState[]][] = [
    ['release', 'release', ['running', 'abandoned']],
    ['forget', 'forget', ['running', 'abandoned', 'open', 'settled', 'tombstone']],
    [{ resolve: outcome, retention }, 'resolve', ['running', 'abandoned', 'open']],
    [{ keepMs: 5 }, 'keep', ['settled', 'open', 'abandoned']],
  ]
  const states: readonly EntryState[] = ['running', 'abandoned', 'open', 'settled', 'tombstone']

  test.each(changes)('%j works in its own states only', (action, name, mendable) => {
    expect(mendingName(action)).toBe(name)
    expect(states.filter((state) => canMend(mendingName(action), state)).toSorted()).toEqual(mendable.toSorted())
    for (const state of states) {
      expect(mended(entry, action, { state, nowMs: 80, fence: 9 }) !== undefined).toBe(mendable.includes(state))
    }
    expect(mended(undefined, action, { state: 'running', nowMs: 80, fence: 9 })).toBeUndefined()
    expect(mended(entry, action, { state: undefined, nowMs: 80, fence: 9 })).toBeUndefined()
  })

  test('writes what it says, and keeps no entry for a shorter time than before', () => {
    const at = { state: 'abandoned', nowMs: 500, fence: 9 } as const
    expect(mended(entry, 'forget', at)).toBe('forget')
    expect(mended(entry, 'release', at)).toEqual({ ...entry, wrote: 'release', leaseUntilMs: 500 })
    expect(mended(entry, { resolve: outcome, retention }, at)).toEqual({
      ...entry,
      wrote: 'settle',
      outcome,
      fence: 9,
      leaseUntilMs: 500,
      ...retention,
    })
    expect(mended(entry, { keepMs: 2_000 }, at)).toEqual({ ...entry, keepMs: 2_400 })
    expect(mended(entry, { keepMs: 100 }, at)).toEqual(entry)
  })
})

// The life of an entry as pure functions, for every store that decides in TypeScript. PostgreSQL, MySQL and Redis decide the same
// on the server, and the judge of histories has its own reading. The table of states stands at the top of store.ts.

import type { Key } from './key.ts'
import type {
  Claim,
  ClaimRequest,
  Entry,
  EntryState,
  Fenced,
  Mending,
  MendingName,
  Retention,
  Verdict,
} from './store.ts'

/** How the attempt that holds, or last held, the key was granted. */
export type HowGranted = 'fresh' | 'reopened' | 'taken-over'

/** Everything that decides what an entry is. Its state follows from these times, whether or not a sweep has been there. */
export interface EntryTimes extends Retention {
  /** The last write. 'forget' leaves remains, in stores that keep them so that fences grow across lives. */
  readonly wrote: 'claim' | 'release' | 'settle' | 'forget'
  /** When the lease ends, or, once settled or released, when it ended. */
  readonly leaseUntilMs: number
}

/** An entry as a store keeps it. */
export interface EntryRecord extends EntryTimes {
  readonly key: Key
  readonly how: HowGranted
  readonly token: string
  readonly attempt: number
  readonly fence: number
  readonly fingerprint: string
  readonly version: number
  readonly firstClaimedAtMs: number
  readonly outcome?: Uint8Array
  readonly input?: Uint8Array
}

export function expiresAtMs(entry: EntryTimes): number {
  return entry.leaseUntilMs + entry.keepMs
}

export function forgottenAtMs(entry: EntryTimes): number {
  return expiresAtMs(entry) + entry.tombstoneMs
}

/**
 * The state of an entry at this moment. Undefined when the entry is absent, as if it had never been.
 *
 * @example
 * ```ts
 * import { stateOf } from 'onceonly/store'
 *
 * const times = { wrote: 'claim', leaseUntilMs: 30_000, keepMs: 1_000, tombstoneMs: 1_000 } as const
 * stateOf(times, 0) // 'running'
 * stateOf(times, 30_000) // 'abandoned'
 * ```
 */
export function stateOf(entry: EntryTimes | undefined, nowMs: number): EntryState | undefined {
  if (!entry || entry.wrote === 'forget' || nowMs >= forgottenAtMs(entry)) return undefined
  if (nowMs >= expiresAtMs(entry)) return 'tombstone'
  if (entry.wrote === 'settle') return 'settled'
  if (entry.wrote === 'release') return 'open'
  return nowMs < entry.leaseUntilMs ? 'running' : 'abandoned'
}

/** What a store does with a claim. */
export type ClaimDecision<Stored extends EntryRecord = EntryRecord> =
  | { readonly is: 'refused'; readonly verdict: Verdict }
  | { readonly is: 'replayed'; readonly entry: Stored }
  /** The same claim once more: it gets its lease anew. */
  | { readonly is: 'repeated'; readonly entry: Stored }
  /** `before` is the attempt that this one follows. A fresh life follows none. */
  | { readonly is: 'granted'; readonly how: HowGranted; readonly before: Stored | undefined }

/**
 * What a store does with a claim: refuse it, replay the outcome, or grant it.
 *
 * @example
 * ```ts
 * import { decide } from 'onceonly/store'
 * import type { ClaimRequest } from 'onceonly/store'
 *
 * const request: ClaimRequest = {
 *   token: 'a', fingerprint: 'f', leaseMs: 30_000, retention: { keepMs: 1, tombstoneMs: 1 }, version: 0,
 *   onTakeover: 'run', onExpired: 'refuse',
 * }
 * decide(undefined, request, 0) // { is: 'granted', how: 'fresh', before: undefined }
 * ```
 */
export function decide<Stored extends EntryRecord>(
  entry: Stored | undefined,
  request: ClaimRequest,
  nowMs: number,
): ClaimDecision<Stored> {
  const state = stateOf(entry, nowMs)
  const isOwn = entry?.token === request.token
  if (!entry || !state) {
    // The claim that forgot the key with this token has returned: it would not run the effect.
    return entry?.wrote === 'forget' && isOwn ? refused({ is: 'busy', retryAfterMs: 0 }) : granted('fresh')
  }
  if (state === 'tombstone') return request.onExpired === 'run' ? granted('fresh') : refused({ is: 'expired' })
  if (entry.fingerprint !== request.fingerprint) return refused({ is: 'mismatch' })
  if (state === 'settled') return { is: 'replayed', entry }
  if (isOwn) return state === 'open' ? refused({ is: 'busy', retryAfterMs: 0 }) : { is: 'repeated', entry }
  if (state === 'running') return refused({ is: 'busy', retryAfterMs: entry.leaseUntilMs - nowMs })
  if (state === 'open') return granted('reopened', entry)
  return request.onTakeover === 'refuse'
    ? refused({ is: 'doubt', attempt: entry.attempt })
    : granted('taken-over', entry)
}

function refused(verdict: Verdict): { readonly is: 'refused'; readonly verdict: Verdict } {
  return { is: 'refused', verdict }
}

function granted<Stored extends EntryRecord>(how: HowGranted, before?: Stored): ClaimDecision<Stored> {
  return { is: 'granted', how, before }
}

/**
 * The entry of an attempt that was granted.
 *
 * @example
 * ```ts
 * import { attemptOf } from 'onceonly/store'
 * import type { ClaimRequest } from 'onceonly/store'
 *
 * const request: ClaimRequest = {
 *   token: 'a', fingerprint: 'f', leaseMs: 30_000, retention: { keepMs: 1, tombstoneMs: 1 }, version: 0,
 *   onTakeover: 'run', onExpired: 'refuse',
 * }
 * const entry = attemptOf({ scope: 's', id: 'i' }, { how: 'fresh', before: undefined }, request, { nowMs: 0, fence: 1 })
 * entry.attempt // 1
 * ```
 */
export function attemptOf(
  key: Key,
  { how, before }: { readonly how: HowGranted; readonly before: EntryRecord | undefined },
  request: ClaimRequest,
  at: { readonly nowMs: number; readonly fence: number },
): EntryRecord & { readonly wrote: 'claim' } {
  // An attempt that was given no input leaves the one that is there: a worker needs it to resume the operation.
  const input = request.input ?? before?.input
  return {
    key,
    wrote: 'claim',
    how,
    token: request.token,
    attempt: (before?.attempt ?? 0) + 1,
    fence: at.fence,
    fingerprint: request.fingerprint,
    version: request.version,
    firstClaimedAtMs: before?.firstClaimedAtMs ?? at.nowMs,
    leaseUntilMs: at.nowMs + request.leaseMs,
    keepMs: request.retention.keepMs,
    tombstoneMs: request.retention.tombstoneMs,
    ...(input && { input }),
  }
}

/**
 * The fence of the next attempt: the store's clock in microseconds, and at least one more than the last. Also above that of a
 * life that has ended, as its holder may still write.
 *
 * @example
 * ```ts
 * import { fenceAfter } from 'onceonly/store'
 *
 * fenceAfter(7, 0) // 8
 * fenceAfter(7, 1_000) // 1000000
 * ```
 */
export function fenceAfter(last: number, nowMs: number): number {
  return Math.max(nowMs * 1_000, last + 1)
}

/** When the attempt with this fence was granted, on the store's clock. */
export function grantedAtMs({ fence }: { readonly fence: number }): number {
  return Math.floor(fence / 1_000)
}

/**
 * The verdict that tells the claimer that it holds the key.
 *
 * @example
 * ```ts
 * import { attemptOf, grantOf } from 'onceonly/store'
 * import type { ClaimRequest } from 'onceonly/store'
 *
 * const request: ClaimRequest = {
 *   token: 'a', fingerprint: 'f', leaseMs: 30_000, retention: { keepMs: 1, tombstoneMs: 1 }, version: 0,
 *   onTakeover: 'run', onExpired: 'refuse',
 * }
 * const entry = attemptOf({ scope: 's', id: 'i' }, { how: 'fresh', before: undefined }, request, { nowMs: 0, fence: 1 })
 * grantOf(entry).is // 'granted'
 * ```
 */
export function grantOf({ key, token, attempt, fence, how }: EntryRecord): Verdict {
  return { is: 'granted', claim: { key, token, attempt, fence }, how }
}

/** The same token in the same life. A release with fence 0 means whatever its token holds. */
export function isOf(entry: EntryRecord | undefined, claim: Claim): entry is EntryRecord {
  return entry?.token === claim.token && entry.fence === claim.fence
}

/**
 * The lease decides when others may try. Token and fence decide who may write. Hence an abandoned entry is held, too.
 *
 * @example
 * ```ts
 * import { attemptOf, isHeldBy } from 'onceonly/store'
 * import type { ClaimRequest } from 'onceonly/store'
 *
 * const request: ClaimRequest = {
 *   token: 'a', fingerprint: 'f', leaseMs: 30_000, retention: { keepMs: 1, tombstoneMs: 1 }, version: 0,
 *   onTakeover: 'run', onExpired: 'refuse',
 * }
 * const entry = attemptOf({ scope: 's', id: 'i' }, { how: 'fresh', before: undefined }, request, { nowMs: 0, fence: 1 })
 * const claim = { key: entry.key, token: 'a', attempt: 1, fence: 1 }
 * isHeldBy(entry, claim, 5) // true
 * ```
 */
export function isHeldBy(entry: EntryRecord | undefined, claim: Claim, nowMs: number): entry is EntryRecord {
  const state = stateOf(entry, nowMs)
  return isOf(entry, claim) && (state === 'running' || state === 'abandoned')
}

/**
 * What a settle makes of the entry, unless it was this settle that ended it or the claim is lost.
 *
 * @example
 * ```ts
 * import { attemptOf, settled } from 'onceonly/store'
 * import type { ClaimRequest } from 'onceonly/store'
 *
 * const request: ClaimRequest = {
 *   token: 'a', fingerprint: 'f', leaseMs: 30_000, retention: { keepMs: 1, tombstoneMs: 1 }, version: 0,
 *   onTakeover: 'run', onExpired: 'refuse',
 * }
 * const entry = attemptOf({ scope: 's', id: 'i' }, { how: 'fresh', before: undefined }, request, { nowMs: 0, fence: 1 })
 * const claim = { key: entry.key, token: 'a', attempt: 1, fence: 1 }
 * settled(entry, claim, { outcome: new Uint8Array(), retention: request.retention }, 5) // the entry to write
 * ```
 */
export function settled<Stored extends EntryRecord>(
  entry: Stored | undefined,
  claim: Claim,
  { outcome, retention }: { readonly outcome: Uint8Array; readonly retention: Retention },
  nowMs: number,
): Fenced | Stored {
  if (isOf(entry, claim) && stateOf(entry, nowMs) === 'settled') return 'done'
  if (!isHeldBy(entry, claim, nowMs)) return 'lost'
  const { keepMs, tombstoneMs } = retention
  return { ...entry, wrote: 'settle', outcome, leaseUntilMs: nowMs, keepMs, tombstoneMs }
}

/**
 * What a release makes of the entry: 'forget' deletes it.
 *
 * @example
 * ```ts
 * import { attemptOf, released } from 'onceonly/store'
 * import type { ClaimRequest } from 'onceonly/store'
 *
 * const request: ClaimRequest = {
 *   token: 'a', fingerprint: 'f', leaseMs: 30_000, retention: { keepMs: 1, tombstoneMs: 1 }, version: 0,
 *   onTakeover: 'run', onExpired: 'refuse',
 * }
 * const entry = attemptOf({ scope: 's', id: 'i' }, { how: 'fresh', before: undefined }, request, { nowMs: 0, fence: 1 })
 * const claim = { key: entry.key, token: 'a', attempt: 1, fence: 1 }
 * released(entry, claim, 'forget', 5) // 'forget'
 * ```
 */
export function released<Stored extends EntryRecord>(
  entry: Stored | undefined,
  claim: Claim,
  how: 'open' | 'forget',
  nowMs: number,
): Fenced | 'forget' | Stored {
  const state = stateOf(entry, nowMs)
  // There is no trace of the claim: it was released before, or it never arrived.
  if (!entry || !state) return how === 'forget' ? 'done' : 'lost'
  const holder = claim.fence === 0 ? { ...claim, fence: entry.fence } : claim
  if (state === 'open' && isOf(entry, holder)) return 'done'
  if (!isHeldBy(entry, holder, nowMs)) return 'lost'
  // The attempts before a later one did begin, so their entry stays.
  if (how === 'forget' && entry.attempt === 1) return 'forget'
  return { ...entry, wrote: 'release', leaseUntilMs: nowMs }
}

/** What is left of an entry that expired. */
export function stripped<Stored extends EntryRecord>(entry: Stored): Stored {
  const { outcome: _outcome, input: _input, ...rest } = entry
  return rest as Stored
}

/**
 * The entry as people see it. Undefined when it is absent.
 *
 * @example
 * ```ts
 * import { attemptOf, shownEntry } from 'onceonly/store'
 * import type { ClaimRequest } from 'onceonly/store'
 *
 * const request: ClaimRequest = {
 *   token: 'a', fingerprint: 'f', leaseMs: 30_000, retention: { keepMs: 1, tombstoneMs: 1 }, version: 0,
 *   onTakeover: 'run', onExpired: 'refuse',
 * }
 * const entry = attemptOf({ scope: 's', id: 'i' }, { how: 'fresh', before: undefined }, request, { nowMs: 0, fence: 1 })
 * shownEntry(entry, 5)?.state // 'running'
 * ```
 */
export function shownEntry(entry: EntryRecord | undefined, nowMs: number): Entry | undefined {
  const state = stateOf(entry, nowMs)
  if (!entry || !state) return undefined
  const { key, attempt, fence, fingerprint, version, firstClaimedAtMs, leaseUntilMs } = entry
  const { outcome, input } = state === 'tombstone' ? stripped(entry) : entry
  return {
    key,
    state,
    attempt,
    fence,
    fingerprint,
    version,
    firstClaimedAtMs,
    leaseUntilMs,
    expiresAtMs: expiresAtMs(entry),
    forgottenAtMs: forgottenAtMs(entry),
    ...(outcome && { outcome }),
    ...(input && { input }),
  }
}

/** The states in which each manual change has an effect. In any other it changes nothing. */
const mendable: Readonly<Record<MendingName, readonly EntryState[]>> = {
  release: ['running', 'abandoned'],
  forget: ['running', 'abandoned', 'open', 'settled', 'tombstone'],
  resolve: ['running', 'abandoned', 'open'],
  keep: ['settled', 'open', 'abandoned'],
}

export function canMend(action: MendingName, state: EntryState): boolean {
  return mendable[action].includes(state)
}

/**
 * What a manual change makes of the entry: 'forget' deletes it, undefined changes nothing.
 *
 * @example
 * ```ts
 * import { attemptOf, mended } from 'onceonly/store'
 * import type { ClaimRequest } from 'onceonly/store'
 *
 * const request: ClaimRequest = {
 *   token: 'a', fingerprint: 'f', leaseMs: 30_000, retention: { keepMs: 1, tombstoneMs: 1 }, version: 0,
 *   onTakeover: 'run', onExpired: 'refuse',
 * }
 * const entry = attemptOf({ scope: 's', id: 'i' }, { how: 'fresh', before: undefined }, request, { nowMs: 0, fence: 1 })
 * mended(entry, 'forget', { state: 'running', nowMs: 5, fence: 2 }) // 'forget'
 * ```
 */
export function mended<Stored extends EntryRecord>(
  entry: Stored | undefined,
  action: Mending,
  at: { readonly state: EntryState | undefined; readonly nowMs: number; readonly fence: number },
): Stored | 'forget' | undefined {
  const { state } = at
  if (!entry || !state || !canMend(mendingName(action), state)) return undefined
  if (action === 'forget') return 'forget'
  // An open entry keeps its last token: a delayed claim of the holder that was pushed out still finds that its attempt has ended.
  if (action === 'release') return { ...entry, wrote: 'release', leaseUntilMs: at.nowMs }
  if ('resolve' in action) {
    const { keepMs, tombstoneMs } = action.retention
    const outcome = action.resolve
    // Another fence: to the holder that is pushed out, this must not look like its own settle.
    return { ...entry, wrote: 'settle', outcome, fence: at.fence, leaseUntilMs: at.nowMs, keepMs, tombstoneMs }
  }
  return { ...entry, keepMs: Math.max(entry.keepMs, at.nowMs + action.keepMs - entry.leaseUntilMs) }
}

export function mendingName(action: Mending): MendingName {
  if (typeof action === 'string') return action
  return 'resolve' in action ? 'resolve' : 'keep'
}

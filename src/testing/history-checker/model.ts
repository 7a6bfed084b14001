// The contract of core/store.ts as a model: which answers an operation may be given, and what becomes of the entry. It is written
// from the contract's text and shares no code with any store. When something was decided may be known only as a span of time.
// What cannot be excluded is allowed, so that the model never accuses a correct store.

import type { ClaimRequest, Mending, Verdict } from '../../core/store.ts'
import type { StoreOperation } from './history.ts'

/** A time that is known to be no earlier and no later. */
export interface Span {
  readonly fromMs: number
  readonly toMs: number
}

export interface ModelEntry {
  readonly token: string
  /** Undefined when no caller has got it. */
  readonly fence: number | undefined
  readonly attempt: number
  readonly fingerprint: string
  readonly wrote: 'claim' | 'release' | 'settle'
  /** When the lease ends, or ended. */
  readonly lease: Span
  readonly keepMs: number
  /** The entry may be kept for this much longer: a keep of an abandoned entry counts from a lease that is known as a span. */
  readonly longerMs?: number
  readonly tombstoneMs: number
  readonly outcome: Uint8Array | undefined
}

export interface ModelState {
  readonly entry: ModelEntry | undefined
  /** The token of an open transaction, and the entry as it is inside. */
  readonly open: { readonly token: string; readonly entry: ModelEntry } | undefined
  /** Nothing that comes later can have been decided before this. */
  readonly nowMs: number
}

export const beginning: ModelState = { entry: undefined, open: undefined, nowMs: -Infinity }

type Phase = 'absent' | 'running' | 'abandoned' | 'open' | 'settled' | 'tombstone'

interface Moment {
  readonly phase: Phase
  readonly at: Span
}

/** The states in which this operation, decided within the span with its answer (any, if that is unknown), can leave the key. */
export function possibleNext(state: ModelState, operation: StoreOperation, at: Span): ModelState[] {
  const span = { fromMs: Math.max(at.fromMs, state.nowMs), toMs: at.toMs }
  if (span.fromMs > span.toMs) return []
  if (isWithoutTrace(operation)) return [state]
  if (operation.call === 'rollback') return [{ ...state, open: undefined, nowMs: span.fromMs }]
  if (operation.call === 'commit') return committed(state, operation, span)
  if (state.open) {
    // Other claims can only get `busy`. Other writes wait.
    const told = operation.call === 'claim' || operation.call === 'begin' ? operation.answer : undefined
    return told === undefined || told.is === 'busy' ? [{ ...state, nowMs: span.fromMs }] : []
  }
  return momentsOf(state.entry, span).flatMap((moment) => decided(state.entry, operation, moment))
}

function isWithoutTrace({ call }: StoreOperation): boolean {
  return call === 'sweep' || call === 'look' || call === 'effect' || call === 'undo'
}

function decided(entry: ModelEntry | undefined, operation: StoreOperation, moment: Moment): ModelState[] {
  const { at } = moment
  const next = (after: ModelEntry | undefined): ModelState => ({ entry: after, open: undefined, nowMs: at.fromMs })
  if (operation.call === 'claim' || operation.call === 'begin') {
    const { verdict, after } = claimed(entry, operation.request, moment, fenceOf(operation.answer))
    if (operation.answer && !isSameVerdict(operation.answer, verdict)) return []
    if (operation.call === 'claim' || after === entry) return [next(after)]
    return [{ entry, open: { token: operation.request.token, entry: after! }, nowMs: at.fromMs }]
  }
  if (operation.call === 'mend') return [next(mended(entry, operation.action, moment))]
  if (operation.call === 'extend' || operation.call === 'settle' || operation.call === 'release') {
    return whose(entry, operation).flatMap((who) => {
      const { fenced, after } = written(entry, operation, moment, who)
      return operation.answer && operation.answer !== fenced ? [] : [next(after)]
    })
  }
  return []
}

/** What the entry can be at some time of the span, and when. */
function momentsOf(entry: ModelEntry | undefined, at: Span): Moment[] {
  if (!entry) return [{ phase: 'absent', at }]
  const { lease, keepMs, longerMs = 0, tombstoneMs } = entry
  const alive: Phase = entry.wrote === 'settle' ? 'settled' : entry.wrote === 'release' ? 'open' : 'running'
  const tombstone = { fromMs: lease.fromMs + keepMs, toMs: lease.toMs + keepMs + longerMs }
  const absent = { fromMs: tombstone.fromMs + tombstoneMs, toMs: tombstone.toMs + tombstoneMs }
  // The end of its lease makes a running entry abandoned. A settled or open entry has ended its lease already.
  const steps: [Phase, Span][] =
    alive === 'running'
      ? [
          ['running', { fromMs: -Infinity, toMs: lease.toMs }],
          ['abandoned', { fromMs: lease.fromMs, toMs: tombstone.toMs }],
        ]
      : [[alive, { fromMs: -Infinity, toMs: tombstone.toMs }]]
  steps.push(['tombstone', { fromMs: tombstone.fromMs, toMs: absent.toMs }])
  steps.push(['absent', { fromMs: absent.fromMs, toMs: Infinity }])
  return steps.flatMap(([phase, when]) => {
    const moment = { fromMs: Math.max(at.fromMs, when.fromMs), toMs: Math.min(at.toMs, when.toMs) }
    // Each phase ends just before its last millisecond: a lease that ends at 30 has ended at 30.
    const possible = moment.fromMs <= moment.toMs && moment.fromMs < when.toMs
    return possible ? [{ phase, at: moment }] : []
  })
}

interface Claimed {
  /** A repeated claim may get any `how`: the contract does not say whether the store keeps that of the first. */
  readonly verdict:
    | Verdict
    | { readonly is: 'granted-again'; readonly attempt: number; readonly fence: number | undefined }
  readonly after: ModelEntry | undefined
}

function fenceOf(told: Verdict | undefined): number | undefined {
  return told?.is === 'granted' ? told.claim.fence : undefined
}

/** `fence` is that of the answer, if it is a grant: the model itself gives out none. */
function claimed(
  entry: ModelEntry | undefined,
  request: ClaimRequest,
  { phase, at }: Moment,
  fence: number | undefined,
): Claimed {
  const lease = later(at, request.leaseMs)
  const grant = (how: 'fresh' | 'reopened' | 'taken-over', attempt: number): Claimed => {
    const { token, fingerprint, retention } = request
    const claim = { key: { scope: '', id: '' }, token, attempt, fence: fence ?? 0 }
    const after = {
      token,
      fence,
      attempt,
      fingerprint,
      wrote: 'claim',
      lease,
      ...retention,
      outcome: undefined,
    } as const
    return { verdict: { is: 'granted', claim, how }, after }
  }
  const told = (verdict: Verdict): Claimed => ({ verdict, after: entry })
  if (!entry || phase === 'absent') return grant('fresh', 1)
  if (phase === 'tombstone') return request.onExpired === 'run' ? grant('fresh', 1) : told({ is: 'expired' })
  if (entry.fingerprint !== request.fingerprint) return told({ is: 'mismatch' })
  const { attempt } = entry
  if (phase === 'settled') return told({ is: 'settled', outcome: entry.outcome!, version: 0, attempt })
  if (entry.token === request.token) {
    if (phase === 'open') return told({ is: 'busy', retryAfterMs: 0 })
    const known = entry.fence ?? fence
    return { verdict: { is: 'granted-again', attempt, fence: known }, after: { ...entry, fence: known, lease } }
  }
  if (phase === 'running') return told({ is: 'busy', retryAfterMs: 0 })
  if (phase === 'open') return grant('reopened', attempt + 1)
  if (request.onTakeover === 'refuse') return told({ is: 'doubt', attempt })
  return grant('taken-over', attempt + 1)
}

type Write = StoreOperation & { call: 'extend' | 'settle' | 'release' }

/** Whether the entry is the writer's own: both, where it is not known which life of the token the entry is. */
function whose(entry: ModelEntry | undefined, operation: Write): ('own' | 'not own')[] {
  if (entry?.token !== operation.token) return ['not own']
  const { fence } = operation
  if (fence === undefined || (operation.call === 'release' && fence === 0)) return ['own']
  if (entry.fence === undefined) return ['own', 'not own']
  return fence === entry.fence ? ['own'] : ['not own']
}

function written(
  entry: ModelEntry | undefined,
  operation: Write,
  { phase, at }: Moment,
  who: 'own' | 'not own',
): { fenced: 'done' | 'lost'; after: ModelEntry | undefined } {
  const mine = who === 'own'
  const lost = { fenced: 'lost', after: entry } as const
  const again = { fenced: 'done', after: entry } as const
  if (operation.call === 'release' && phase === 'absent') return operation.how === 'forget' ? again : lost
  if (operation.call === 'release' && phase === 'open' && mine) return again
  if (operation.call === 'settle' && phase === 'settled' && mine) return again
  if (!entry || !mine || (phase !== 'running' && phase !== 'abandoned')) return lost
  if (operation.call === 'extend') return { fenced: 'done', after: { ...entry, lease: later(at, operation.leaseMs) } }
  if (operation.call === 'settle') {
    const { outcome, retention } = operation
    return { fenced: 'done', after: { ...entry, wrote: 'settle', lease: at, outcome, ...retention, longerMs: 0 } }
  }
  const keeps = operation.how === 'open' || entry.attempt > 1
  return { fenced: 'done', after: keeps ? { ...entry, wrote: 'release', lease: at } : undefined }
}

function mended(entry: ModelEntry | undefined, action: Mending, { phase, at }: Moment): ModelEntry | undefined {
  if (action === 'forget' || !entry) return undefined
  const isHeld = phase === 'running' || phase === 'abandoned'
  if (action === 'release') return isHeld ? { ...entry, wrote: 'release', lease: at } : entry
  if ('resolve' in action) {
    if (!isHeld && phase !== 'open') return entry
    const { resolve: outcome, retention } = action
    return { ...entry, fence: nobodysFence, wrote: 'settle', lease: at, outcome, ...retention, longerMs: 0 }
  }
  return phase === 'settled' || phase === 'open' || phase === 'abandoned' ? kept(entry, action.keepMs, at) : entry
}

/** No holder has it: what was resolved manually is not the settle of the holder that was pushed out. */
const nobodysFence = -1

/** The same entry, which expires `keepMs` after this moment at the earliest. */
function kept(entry: ModelEntry, keepMs: number, at: Span): ModelEntry {
  const { lease, longerMs = 0 } = entry
  // The entry is kept for longer anyway, and its lease ended when it did.
  if (at.toMs + keepMs <= lease.fromMs + entry.keepMs) return entry
  if (entry.wrote === 'claim') {
    // The holder can still extend the lease, and the time that the keep has added goes along.
    const fromMs = Math.max(entry.keepMs, at.fromMs + keepMs - lease.toMs)
    const toMs = Math.max(entry.keepMs + longerMs, at.toMs + keepMs - lease.fromMs)
    return { ...entry, keepMs: fromMs, longerMs: toMs - fromMs }
  }
  // When the lease ended decides nothing else now.
  const earlierMs = keepMs - entry.keepMs
  const fromMs = Math.max(at.fromMs, lease.fromMs - earlierMs)
  return {
    ...entry,
    keepMs,
    lease: { fromMs, toMs: Math.max(at.toMs, lease.toMs - earlierMs + longerMs) },
    longerMs: 0,
  }
}

function committed(state: ModelState, operation: StoreOperation & { call: 'commit' }, at: Span): ModelState[] {
  const rolledBack = { ...state, open: undefined, nowMs: at.fromMs }
  if (state.open?.token !== operation.token) return operation.answer === 'done' ? [] : [rolledBack]
  const inside = state.open.entry
  const { outcome, retention } = operation
  const done = { entry: { ...inside, wrote: 'settle' as const, lease: at, outcome, ...retention }, open: undefined }
  const over = momentsOf(inside, at).some(({ phase }) => phase === 'tombstone' || phase === 'absent')
  const alive = momentsOf(inside, at).some(({ phase }) => phase === 'running' || phase === 'abandoned')
  return [
    ...(alive && operation.answer !== 'lost' ? [{ ...done, nowMs: at.fromMs }] : []),
    ...(over && operation.answer !== 'done' ? [rolledBack] : []),
  ]
}

// When to ask a busy key again, and the version of an outcome, decide nothing.
function isSameVerdict(told: Verdict, expected: Claimed['verdict']): boolean {
  if (expected.is === 'granted-again') {
    return told.is === 'granted' && told.claim.attempt === expected.attempt && told.claim.fence === expected.fence
  }
  if (told.is === 'granted' && expected.is === 'granted') {
    const { claim } = expected
    return told.how === expected.how && told.claim.attempt === claim.attempt && told.claim.token === claim.token
  }
  if (told.is === 'settled' && expected.is === 'settled') {
    return told.attempt === expected.attempt && Buffer.compare(told.outcome, expected.outcome) === 0
  }
  if (told.is === 'doubt' && expected.is === 'doubt') return told.attempt === expected.attempt
  return told.is === expected.is
}

function later({ fromMs, toMs }: Span, byMs: number): Span {
  return { fromMs: fromMs + byMs, toMs: toMs + byMs }
}

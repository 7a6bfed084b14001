// Keys in doubt, of `once.run` and of HTTP, and deciding about them in bulk. A decision is about the attempt that was seen: before it is
// written, the key is claimed in one atomic step, so a retry that took the key over meanwhile is never overruled.

import type { RunContext } from '../call.ts'
import { tenantOf } from '../doubt.ts'
import type { Doubt } from '../doubt.ts'
import { mendingName } from '../entry.ts'
import { invalidArgument } from '../errors.ts'
import { publish } from '../events.ts'
import type { Key } from '../key.ts'
import { aReason, checkOptions, optional, positiveInteger, positiveMs } from '../options.ts'
import type { Entry, Inspectable, Mending, StepLedger, Store } from '../store.ts'
import { callStore } from '../timed-call.ts'
import type { FoundOutcome } from './by-hand.ts'

/** What to do about a key in doubt. `undefined` leaves it as it is. */
export type DoubtDecision = FoundOutcome | { readonly keepMs: number } | 'release' | undefined

export interface KeyReconcileOptions {
  /** For the audit trail of every key that is changed. */
  readonly reason: string
  /** How many keys are asked about at the most. Default 1,000. */
  readonly limit?: number
  /** How many are asked about at the same time. Default 8. */
  readonly concurrency?: number
}

export interface KeyReconciliation {
  /** Given their true result. */
  readonly resolved: number
  readonly released: number
  readonly kept: number
  /** Left in doubt, as the function decided. */
  readonly left: number
  /** Not in doubt any more when the decision came: a retry took the key over, or it was changed or expired. */
  readonly passed: number
  /** The function threw, or what it returned cannot be done. The key is still in doubt. */
  readonly failed: readonly { readonly doubt: Doubt; readonly error: unknown }[]
  /** There are more keys in doubt than `limit`. */
  readonly more: boolean
}

const pageLimit = 100

/** Of this scope, and of the scopes of its tenants. The store must be able to list, or there are none to be shown. */
export async function* keysInDoubt(context: RunContext, scope: string): AsyncGenerator<Doubt> {
  if (!('list' in context.store)) return
  const store = context.store as Store & Inspectable
  yield* doubtsIn(context, store, { service: scope, scope })
  yield* doubtsIn(context, store, { service: scope })
}

/** Without a scope: every scope below the service, which follow each other in the order of the store. */
async function* doubtsIn(
  { storeCalls }: RunContext,
  store: Store & Inspectable & Partial<StepLedger>,
  { service, scope }: { readonly service: string; readonly scope?: string },
): AsyncGenerator<Doubt> {
  // A full stop is the character before the slash. What lies between the two is not below the service, and is passed over.
  let after: Key | undefined = scope === undefined ? { scope: `${service}.`, id: '~' } : undefined
  for (;;) {
    const filter = { state: 'abandoned', limit: pageLimit, ...(scope && { scope }), ...(after && { after }) } as const
    const page: readonly Entry[] = await callStore(storeCalls, 'inspect', undefined, () => store.list(filter))
    for (const { key, attempt, leaseUntilMs } of page) {
      const tenant = tenantOf(service, key.scope)
      if (scope === undefined && tenant === undefined) {
        if (isBeyond(service, key.scope)) return
        continue
      }
      // Operations have scopes below the service, too. Their records tell them apart.
      if (key.scope.startsWith(`${service}/operations/`) && (await hasRecords(store, key))) continue
      yield { key, ...(tenant !== undefined && { tenant }), attempt, sinceAtMs: leaseUntilMs, parked: false }
    }
    after = page.at(-1)?.key
    if (page.length < pageLimit) return
  }
}

function isBeyond(service: string, scope: string): boolean {
  return !scope.startsWith(service) || scope.charAt(service.length) > '/'
}

async function hasRecords(store: Partial<StepLedger>, key: Key): Promise<boolean> {
  return (await store.ledger?.(key)) !== undefined
}

interface ReconcileContext {
  readonly context: RunContext
  readonly store: Inspectable
  readonly scope: string
  /** The bytes of a result, as the codec of this `createOnce` writes them. */
  readonly encoded: (found: FoundOutcome) => Uint8Array
}

const rules = { reason: aReason, limit: optional(positiveInteger), concurrency: optional(positiveInteger) }

export async function reconcileKeys(
  given: ReconcileContext,
  decide: (doubt: Doubt) => Promise<DoubtDecision>,
  options: KeyReconcileOptions,
): Promise<KeyReconciliation> {
  checkOptions('reconcileKeys', options, rules)
  const { reason, limit = 1_000, concurrency = 8 } = options
  const tally = { resolved: 0, released: 0, kept: 0, left: 0, passed: 0 }
  const failed: { doubt: Doubt; error: unknown }[] = []
  // All of them first: a key that is decided about while the store is being walked could come up again.
  const found: Doubt[] = []
  for await (const doubt of keysInDoubt(given.context, given.scope)) if (found.push(doubt) > limit) break
  const queue = found.slice(0, limit)
  const work = async (): Promise<void> => {
    for (let doubt = queue.shift(); doubt; doubt = queue.shift()) {
      try {
        tally[await carryOut(given, doubt, await decide(doubt), reason)]++
      } catch (error) {
        failed.push({ doubt, error })
      }
    }
  }
  await Promise.all(Array.from({ length: Math.min(concurrency, queue.length) }, work))
  return { ...tally, failed, more: found.length > limit }
}

type Ended = 'resolved' | 'released' | 'kept' | 'left' | 'passed'

async function carryOut(
  given: ReconcileContext,
  doubt: Doubt,
  decision: DoubtDecision,
  reason: string,
): Promise<Ended> {
  if (decision === undefined) return 'left'
  const { context, store } = given
  const { key } = doubt
  const entry = await callStore(context.storeCalls, 'inspect', key, () => store.show(key))
  if (entry?.state !== 'abandoned' || entry.attempt !== doubt.attempt) return 'passed'
  const mending = mendingOf(given, decision, entry)
  const name = mendingName(mending)
  // Nothing is fenced off by keeping a key, so nothing has to be held for it.
  if (name !== 'keep' && !(await holds(context, entry))) return 'passed'
  await callStore(context.storeCalls, 'mend', key, () => store.mend(key, mending, reason))
  publish('mended', key, { action: name })
  return ends[name]
}

const ends = { resolve: 'resolved', release: 'released', keep: 'kept', forget: 'released' } as const

function mendingOf({ encoded }: ReconcileContext, decision: NonNullable<DoubtDecision>, entry: Entry): Mending {
  if (decision === 'release') return 'release'
  if (typeof decision !== 'object') {
    throw invalidArgument(
      `reconcileKeys: expected { value }, { failure }, { keepMs }, 'release' or undefined, got ${JSON.stringify(decision)}`,
    )
  }
  if (!('keepMs' in decision)) return { resolve: encoded(decision), retention: retentionOf(entry) }
  const expected = positiveMs(decision.keepMs)
  if (expected === undefined) return { keepMs: decision.keepMs }
  throw invalidArgument(`reconcileKeys: expected keepMs to be ${expected}, got ${String(decision.keepMs)}`)
}

function retentionOf(entry: Entry): { keepMs: number; tombstoneMs: number } {
  return {
    keepMs: entry.expiresAtMs - entry.leaseUntilMs,
    tombstoneMs: entry.forgottenAtMs - entry.expiresAtMs,
  }
}

// Longer than the manual change that follows takes on a slow store. A process that dies between the two leaves the key in doubt.
const holdMs = 30_000

/**
 * Claims the key as the attempt after the one that is in doubt. False when another attempt came in between, or the key is not in doubt
 * any more: then it is left as it was found, or to the lease, after which it is in doubt again.
 */
async function holds({ store, storeCalls, random }: RunContext, entry: Entry): Promise<boolean> {
  const { key, fingerprint, version, attempt } = entry
  const request = {
    token: random.uuid(),
    fingerprint,
    leaseMs: holdMs,
    retention: retentionOf(entry),
    version,
    onTakeover: 'run',
    onExpired: 'refuse',
  } as const
  const verdict = await callStore(storeCalls, 'claim', key, () => store.claim(key, request))
  if (verdict.is !== 'granted') return false
  const { how, claim } = verdict
  if (how === 'taken-over') return claim.attempt === attempt + 1
  await callStore(storeCalls, 'release', key, () => store.release(claim, 'forget'))
  return false
}

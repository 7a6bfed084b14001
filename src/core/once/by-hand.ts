// Reads single entries, changes them manually, and reconciles those in doubt. Every change carries a reason, which the store audits.

import { keyFrom } from '../call.ts'
import type { RunContext } from '../call.ts'
import type { Doubt } from '../doubt.ts'
import { canMend, mendingName } from '../entry.ts'
import { invalidArgument, OnceError } from '../errors.ts'
import type { FinalError } from '../errors.ts'
import { publish } from '../events.ts'
import type { Key } from '../key.ts'
import { aReason, positiveMs } from '../options.ts'
import { asResolved, decodeOutcome, encodeOutcome, failureOf } from '../outcome.ts'
import type { Codec, Outcome } from '../outcome.ts'
import { callStore } from '../timed-call.ts'
import type { OnceOptions, Settings } from '../settings.ts'
import type { Entry, Inspectable, Mending, Store } from '../store.ts'
import { keysInDoubt, reconcileKeys } from './reconcile.ts'
import type { DoubtDecision, KeyReconcileOptions, KeyReconciliation } from './reconcile.ts'
import type { Storable, ValueKind } from '../stored.ts'

/** An entry as `get` shows it: the stored outcome is decoded. */
export type ShownEntry = Omit<Entry, 'outcome'> & { readonly outcome?: Outcome }

/** What a person found out about an effect: it took place and returned this, or it failed for good. */
export type FoundOutcome<T = unknown> = { readonly value: T } | { readonly failure: FinalError | Error }

export interface OnceByHand<Kind extends ValueKind = 'json'> {
  /** The entry of this key as the store has it now, or undefined. */
  get(id: string | Key): Promise<ShownEntry | undefined>
  /** Open a running or abandoned entry: its holder is fenced off and the next request runs. Audited. */
  release(id: string | Key, reason: string): Promise<ShownEntry | undefined>
  /**
   * Give a running, abandoned or open entry its true result, which every retry then gets. Its holder is fenced off. Audited.
   *
   * @example
   * import { createOnce } from 'onceonly'
   * import { memoryStore } from 'onceonly/memory'
   *
   * const once = createOnce({ store: memoryStore(), scope: 'payments' })
   * await once.resolve('order-42', { value: { receipt: 'r1' } }, 'the bank confirmed the charge')
   */
  resolve<T>(
    id: string | Key,
    found: FoundOutcome<T> & Storable<T, Kind>,
    reason: string,
  ): Promise<ShownEntry | undefined>
  /** Keep a settled, open or abandoned entry for at least this long from now. Never shortens. Audited. */
  keep(id: string | Key, forMs: number, reason: string): Promise<ShownEntry | undefined>
  /** Delete an entry: the next request runs as new. Audited. */
  forget(id: string | Key, reason: string): Promise<ShownEntry | undefined>
  /**
   * Lists what began and never reported: keys of `run`, keys of HTTP requests with their tenant, and steps of the operations that are
   * defined here.
   *
   * @example
   * ```ts
   * import { createOnce } from 'onceonly'
   * import { memoryStore } from 'onceonly/memory'
   *
   * const once = createOnce({ store: memoryStore(), scope: 'payments' })
   * for await (const { key, tenant } of once.inDoubt()) console.log(key.id, tenant)
   * ```
   */
  inDoubt(): AsyncIterable<Doubt>
  /**
   * Asks about each key of `run` or of HTTP that is in doubt, and does what the function decides: gives the key its true result,
   * releases it, keeps it longer, or leaves it. Audited with the reason. A key that a retry took over meanwhile is passed over.
   *
   * @example
   * ```ts
   * import { createOnce } from 'onceonly'
   * import { memoryStore } from 'onceonly/memory'
   *
   * const bank = { find: async (id: string) => (id === 'order-42' ? { receipt: 'r1' } : undefined) }
   * const once = createOnce({ store: memoryStore(), scope: 'payments' })
   * const report = await once.reconcileKeys(
   *   async ({ key }) => {
   *     const charge = await bank.find(key.id)
   *     return charge ? { value: charge } : 'release'
   *   },
   *   { reason: 'nightly, with the bank' },
   * )
   * ```
   */
  reconcileKeys(
    decide: (doubt: Doubt) => Promise<DoubtDecision>,
    options: KeyReconcileOptions,
  ): Promise<KeyReconciliation>
}

export function createByHand(
  context: RunContext,
  { scope, codec }: Pick<OnceOptions, 'scope' | 'codec'>,
  settings: Settings,
  stepsInDoubt: () => AsyncGenerator<Doubt>,
): OnceByHand<'codec'> {
  const { store, storeCalls } = context

  async function inspect(
    what: string,
    id: string | Key,
    look: (store: Inspectable, key: Key) => Promise<Entry | undefined>,
    during: 'inspect' | 'mend' = 'inspect',
  ): Promise<ShownEntry | undefined> {
    const subject = keyFrom(scope, id)
    const entry = await callStore(storeCalls, during, subject, () => look(inspectable(store, what), subject))
    return entry && shown(entry, codec)
  }

  async function mend(id: string | Key, action: Mending, reason: string): Promise<ShownEntry | undefined> {
    const name = mendingName(action)
    const expected = aReason(reason)
    if (expected !== undefined) {
      throw invalidArgument(`${name}: expected ${expected}, got ${JSON.stringify(reason)}`)
    }
    const entry = await inspect(name, id, (inspected, subject) => inspected.mend(subject, action, reason), 'mend')
    if (entry && canMend(name, entry.state)) publish('mended', entry.key, { action: name })
    return entry
  }

  function encoded(found: FoundOutcome): Uint8Array {
    const { bytes, outcome } = encodeOutcome(outcomeOf(found), codec)
    if (outcome.kind === 'not-stored') throw invalidArgument(`resolve: the value cannot be stored: ${outcome.reason}`)
    return asResolved(bytes, settings.version)
  }

  function resolution(found: FoundOutcome): Mending {
    const { keepMs, tombstoneMs } = settings
    return { resolve: encoded(found), retention: { keepMs, tombstoneMs } }
  }

  return {
    get: (id) => inspect('get', id, (inspected, subject) => inspected.show(subject)),
    release: (id, reason) => mend(id, 'release', reason),
    resolve: async (id, found, reason) => mend(id, resolution(found), reason),
    async keep(id, forMs, reason) {
      const expected = positiveMs(forMs)
      if (expected !== undefined) throw invalidArgument(`keep: expected forMs to be ${expected}, got ${String(forMs)}`)
      return mend(id, { keepMs: forMs }, reason)
    },
    forget: (id, reason) => mend(id, 'forget', reason),
    async *inDoubt() {
      yield* stepsInDoubt()
      yield* keysInDoubt(context, scope)
    },
    reconcileKeys: async (decide, options) =>
      reconcileKeys({ context, store: inspectable(store, 'reconcileKeys'), scope, encoded }, decide, options),
  }
}

function outcomeOf(found: FoundOutcome): Outcome {
  const isObject = typeof found === 'object' && found !== null
  if (isObject && 'failure' in found) return { kind: 'failure', error: failureOf(found.failure) }
  if (isObject && 'value' in found) return { kind: 'value', value: found.value }
  throw invalidArgument('resolve: expected { value } or { failure }, the result that every retry will get')
}

function shown(entry: Entry, codec: Codec | undefined): ShownEntry {
  const { outcome, ...rest } = entry
  return outcome ? { ...rest, outcome: decodeOutcome(outcome, codec, entry.key) } : rest
}

function inspectable(store: Store, what: string): Inspectable {
  if ('show' in store && 'mend' in store) return store as Store & Inspectable
  throw new OnceError('UNSUPPORTED', {
    message: `${what}: the ${store.name} store cannot show or mend single entries.`,
  })
}

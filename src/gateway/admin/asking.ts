// How the views of messages, sessions and webhooks ask a store: in bounded time, and a store that keeps nothing of the kind is no failure.
// The view says so, and nothing is logged.

import { systemClock } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { checkKey } from '../../core/key.ts'
import type { Once } from '../../core/once.ts'
import type { Inspectable, Store } from '../../core/store.ts'
import { callStore } from '../../core/timed-call.ts'
import { pageRows } from './entries.ts'

/** Why there is nothing to show. */
export interface NothingKept {
  readonly missing: string
}

export interface AskedStore {
  /** For a person, who is told whether it may have been made. */
  change<T>(change: () => Promise<T>): Promise<T>
  where<T extends object | undefined>(question: () => Promise<T>): Promise<T | NothingKept>
}

export type InspectedStore = Store & Partial<Inspectable>

/** `none` is said of a store that keeps nothing of the kind, `tables` of one whose tables are missing. */
export function askingOf(
  once: Once,
  { name }: Store,
  { none, tables }: { readonly none: string; readonly tables: string },
): AskedStore {
  const calls = { clock: systemClock, storeName: name, timeoutMs: once.settings.storeTimeoutMs }
  const orNothing = (error: unknown): NothingKept => {
    if (error instanceof OnceError && error.code === 'UNSUPPORTED') return { missing: none }
    if (error instanceof OnceError && error.code === 'SCHEMA_MISSING') return { missing: tables }
    throw error
  }
  return {
    change: (change) => callStore(calls, 'mend', undefined, change),
    // Inside of the call, which would report missing tables as a failure of the store.
    where: (question) => callStore(calls, 'inspect', undefined, () => (async () => question())().catch(orNothing)),
  }
}

export function thereOf<T extends object | undefined>(found: T | NothingKept): T {
  if (found && 'missing' in found) throw new OnceError('UNSUPPORTED', { message: found.missing })
  return found
}

/** What came from a page goes to the database as a value. Of a form that no key has, it can name nothing, and databases refuse it. */
export function checkFilter(filter: Readonly<Record<string, string>>): void {
  for (const id of Object.values(filter)) checkKey({ scope: 'any', id })
}

/** Of one row more than a page has. */
export function pageOf<Found, Row>(
  found: readonly Found[],
  row: (each: Found) => Row,
): { readonly rows: readonly Row[]; readonly more: boolean } {
  return { rows: found.slice(0, pageRows).map(row), more: found.length > pageRows }
}

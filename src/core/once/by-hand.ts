// Looking at single entries and changing them by hand. Every change carries a reason, which the store audits.

import type { RunContext } from './attempt.ts'
import { keyFrom } from './call.ts'
import { invalidArgument, OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import type { Key } from '../key.ts'
import { decodeOutcome } from '../outcome.ts'
import type { Codec, Outcome } from '../outcome.ts'
import { callStore } from '../store-call.ts'
import type { Entry, Inspectable, Store } from '../store.ts'

/** An entry as `get` shows it: the stored outcome is decoded. */
export type ShownEntry = Omit<Entry, 'outcome'> & { readonly outcome?: Outcome }

export interface ByHand {
  /** The entry of this key as the store has it now, or undefined. */
  get(id: string | Key): Promise<ShownEntry | undefined>
  /** Open a running or abandoned entry: its holder is fenced off and the next request runs. Audited. */
  release(id: string | Key, reason: string): Promise<ShownEntry | undefined>
  /** Delete an entry: the next request runs as new. Audited. */
  forget(id: string | Key, reason: string): Promise<ShownEntry | undefined>
}

export function createByHand(context: RunContext, scope: string, codec: Codec | undefined): ByHand {
  const { store, storeCalls } = context

  async function inspect(
    what: string,
    id: string | Key,
    look: (store: Inspectable, key: Key) => Promise<Entry | undefined>,
  ): Promise<ShownEntry | undefined> {
    const subject = keyFrom(scope, id)
    const entry = await callStore(storeCalls, 'inspect', subject, () => look(inspectable(store, what), subject))
    return entry && shown(entry, codec)
  }

  async function mend(id: string | Key, action: 'release' | 'forget', reason: string): Promise<ShownEntry | undefined> {
    if (typeof reason !== 'string' || reason.trim() === '') {
      throw invalidArgument(`${action}: expected a reason, for the audit trail, got ${JSON.stringify(reason)}`)
    }
    const entry = await inspect(action, id, (inspected, subject) => inspected.mend(subject, action, reason))
    if (entry) publish('mended', entry.key, { action })
    return entry
  }

  return {
    get: (id) => inspect('get', id, (inspected, subject) => inspected.show(subject)),
    release: (id, reason) => mend(id, 'release', reason),
    forget: (id, reason) => mend(id, 'forget', reason),
  }
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

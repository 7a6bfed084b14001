// The life of an entry as pure functions.

import { OnceError } from './errors.ts'
import type { Mending, MendingName } from './store.ts'

export function mendingName(action: Mending): MendingName {
  if (typeof action === 'string') return action
  return 'resolve' in action ? 'resolve' : 'keep'
}

/** For a store that cannot resolve and keep yet. */
export function releaseOrForget(action: Mending): 'release' | 'forget' {
  if (typeof action === 'string') return action
  throw new OnceError('UNSUPPORTED', { message: `this store cannot ${mendingName(action)} an entry` })
}

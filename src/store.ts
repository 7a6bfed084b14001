// The store contract, for people who write their own store: the interfaces, the errors that a store throws, and the life of an
// entry as pure functions, by which our own stores decide. docs/writing-a-store.md begins here.

export { systemClock, systemRandom } from './core/clock.ts'
export type { Clock, Random } from './core/clock.ts'
export {
  attemptOf,
  decide,
  fenceAfter,
  grantOf,
  isHeldBy,
  mended,
  released,
  settled,
  shownEntry,
  stateOf,
} from './core/entry.ts'
export type { ClaimDecision, EntryRecord, EntryTimes, HowGranted } from './core/entry.ts'
export { OnceError } from './core/errors.ts'
export type { ErrorCode, Executed, OnceErrorDetails } from './core/errors.ts'
export type { Key } from './core/key.ts'
export type * from './core/store.ts'

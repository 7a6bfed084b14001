// The options of createOnce and of single calls, their defaults and their checks.

import { systemClock, systemRandom } from './clock.ts'
import type { Clock, Random } from './clock.ts'
import { key } from './key.ts'
import {
  aFunction,
  checkGiven,
  checkOptions,
  nonNegativeMs,
  oneOf,
  optional,
  positiveMs,
  versionNumber,
  withMethods,
} from './options.ts'
import type { Rule } from './options.ts'
import type { Codec } from './outcome.ts'
import type { Store } from './store.ts'

/** What can be said for all calls and again for each one. */
export interface CallOptions {
  /** How long a claim keeps others away. While the effect runs, a heartbeat extends it at a third of this time. Default 30 s. */
  readonly leaseMs?: number
  /** How long an outcome is replayed, counted from completion. Default 24 h. */
  readonly keepMs?: number
  /** How long after that a late retry still finds the key expired. Default 7 days. */
  readonly tombstoneMs?: number
  /** How long a duplicate waits for the running effect before it gets IN_FLIGHT. 0 asks not to wait. Default 5 s. */
  readonly waitMs?: number
  /**
   * The deadline of one attempt: its signal aborts and its heartbeat stops. Default 20 leases, of the call's own lease if that is the
   * longer one. A deadline given to `createOnce` holds for every call that gives none.
   */
  readonly attemptMs?: number
  /** A retry that comes after keepMs: `refuse` refuses it (EXPIRED), `run` runs it as new. Default refuse. */
  readonly onExpired?: 'refuse' | 'run'
  /** An attempt whose lease has ended: `run` takes it over, `refuse` says IN_DOUBT. Default run. */
  readonly onTakeover?: 'run' | 'refuse'
  /** A throw that is none of our errors: `release` the key, `store` it as the answer, or leave it in `doubt`. Default release. */
  readonly onThrow?: 'release' | 'store' | 'doubt'
}

export interface RunOptions extends CallOptions {
  /** What is asked: bytes, a string or any JSON value. The same key with another fingerprint is a MISMATCH. */
  readonly fingerprint?: unknown
}

export interface OnceOptions<S extends Store = Store> extends CallOptions {
  readonly store: S
  /** Whose keys these are: service, tenant, operation. Ids given as plain strings are in this scope. */
  readonly scope: string
  /** The time limit of each call to the store. Default 5 s. */
  readonly storeTimeoutMs?: number
  /** The version of the code that writes outcomes. Default 0. */
  readonly version?: number
  /** Brings a value that another version wrote up to date before it is replayed. Without `upgrade` the value is replayed as it was. */
  readonly upgrade?: (value: unknown, version: number) => unknown
  readonly codec?: Codec
  /**
   * How often expired entries are removed in the background. `false`: never, run `onceonly sweep` instead. Default: every minute, every
   * 5 minutes while there is nothing to remove, and not on a store that removes them itself (Redis, DynamoDB).
   */
  readonly sweepEveryMs?: number | false
  readonly clock?: Clock
  readonly random?: Random
}

export interface Settings extends Required<CallOptions> {
  readonly storeTimeoutMs: number
  readonly version: number
}

const callRules: Readonly<Record<keyof CallOptions, Rule>> = {
  leaseMs: optional(positiveMs),
  keepMs: optional(positiveMs),
  tombstoneMs: optional(nonNegativeMs),
  waitMs: optional(nonNegativeMs),
  attemptMs: optional(positiveMs),
  onExpired: optional(oneOf('refuse', 'run')),
  onTakeover: optional(oneOf('run', 'refuse')),
  onThrow: optional(oneOf('release', 'store', 'doubt')),
}

const onceRules: Readonly<Record<keyof OnceOptions, Rule>> = {
  ...callRules,
  store: withMethods('claim', 'extend', 'settle', 'release'),
  scope: () => undefined, // checked as part of a key
  storeTimeoutMs: optional(positiveMs),
  version: optional(versionNumber),
  upgrade: optional(aFunction),
  codec: optional(withMethods('encode', 'decode')),
  sweepEveryMs: optional((value) =>
    value === false ? undefined : positiveMs(value) && `${positiveMs(value)}, or false`,
  ),
  clock: optional(withMethods('now', 'elapsed', 'schedule')),
  random: optional(withMethods('uuid', 'fraction', 'bytes')),
}

/** An attempt that outlives twenty leases hangs rather than works. Without a deadline its heartbeat would wedge the key. */
const leasesPerAttempt = 20

const defaults: Omit<Settings, 'attemptMs'> = {
  leaseMs: 30_000,
  keepMs: 24 * 3_600_000,
  tombstoneMs: 7 * 24 * 3_600_000,
  // Two calls at once give two equal results, not an error.
  waitMs: 5_000,
  onExpired: 'refuse',
  onTakeover: 'run',
  onThrow: 'release',
  storeTimeoutMs: 5_000,
  version: 0,
}

const settingNames = [...Object.keys(callRules), 'storeTimeoutMs', 'version'] as readonly (keyof Settings)[]

export function readOnceOptions(options: OnceOptions): { settings: Settings; clock: Clock; random: Random } {
  checkOptions('createOnce', options, onceRules)
  key(options.scope, 'any')
  const attemptMs = (options.leaseMs ?? defaults.leaseMs) * leasesPerAttempt
  const settings = { ...defaults, attemptMs, ...given(options, settingNames) }
  return { settings, clock: options.clock ?? systemClock, random: options.random ?? systemRandom }
}

const runRules: Readonly<Record<keyof RunOptions, Rule>> = { ...callRules, fingerprint: () => undefined }
const callNames = Object.keys(callRules) as readonly (keyof CallOptions)[]

export function readRunOptions(
  what: string,
  once: { readonly options: OnceOptions; readonly settings: Settings },
  options: RunOptions,
): Settings {
  const { settings } = once
  if (changesNothing(options, settings)) return settings
  checkGiven(what, options, runRules)
  // The default deadline fits the lease of the call. One that the user chose is not moved by a longer lease.
  const fitting = Math.max(settings.attemptMs, (options.leaseMs ?? 0) * leasesPerAttempt)
  const attemptMs = once.options.attemptMs ?? fitting
  return { ...settings, attemptMs, ...given(options, callNames) }
}

/** Nearly every call gives a fingerprint and nothing else, or what holds anyway. */
function changesNothing(options: RunOptions, settings: Settings): boolean {
  if (typeof options !== 'object' || options === null || Array.isArray(options)) return false
  for (const name in options) {
    if (name === 'fingerprint') continue
    const value = options[name as keyof CallOptions]
    if (!Object.hasOwn(callRules, name) || (value !== undefined && value !== settings[name as keyof CallOptions]))
      return false
  }
  return true
}

/** Undefined always means "not given": it must not hide a default. */
function given<Options extends object, Name extends keyof Options>(
  options: Options,
  names: readonly Name[],
): { [Each in Name]?: NonNullable<Options[Each]> } {
  const found: { [Each in Name]?: NonNullable<Options[Each]> } = {}
  for (const name of names) {
    const value = options[name]
    if (value !== undefined && value !== null) found[name] = value
  }
  return found
}

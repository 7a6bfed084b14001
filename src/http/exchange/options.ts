// The options of every adapter, checked when the adapter is made: a misspelt or missing tenant must fail at the start of
// the server, not leak one tenant's response to another in production.

import { invalidArgument } from '../../core/errors.ts'
import { hasTransactions } from '../../core/once.ts'
import type { Once } from '../../core/once.ts'
import { checkOptions, optional } from '../../core/options.ts'
import { fingerprintTable, httpTable } from './option-table.ts'
import type { OptionTable } from './option-table.ts'
import type { HttpSessions } from './sessions.ts'
import type { Answer } from './stored-response.ts'

/** `Asked` is the framework's own request: Express `req`, Hono `c`, Koa `ctx`, `Request`, … */
export interface HttpOptions<Asked = unknown, InTransaction extends boolean = boolean> {
  /**
   * Returns the tenant of a request: the account its credentials belong to. Two tenants never share a key or a response.
   * `'shared'`: all callers share one space of keys.
   */
  readonly tenant: 'shared' | TenantOf<Asked>
  /** The request header that carries the key, such as `X-Idempotency-Key` or `PayPal-Request-Id`. Default Idempotency-Key. */
  readonly header?: string
  /** `tenant`: a key names one request of the tenant, whatever its path. `route`: of the tenant on that method and path. */
  readonly keysPer?: 'tenant' | 'route'
  /** Refuse a protected method without a key (400). Default false. */
  readonly required?: boolean
  /** Default POST and PATCH. GET and HEAD never. */
  readonly methods?: readonly string[]
  /** How long a duplicate waits for the running request before the duplicate gets 409. Default 5000. */
  readonly waitMs?: number
  readonly leaseMs?: number
  readonly keepMs?: number
  readonly tombstoneMs?: number
  readonly attemptMs?: number
  readonly onTakeover?: 'run' | 'refuse'
  readonly onExpired?: 'refuse' | 'run'
  /** `strict` takes only the quoted form that the IETF draft asks for. Default lenient: bare keys, too. */
  readonly parse?: 'lenient' | 'strict'
  readonly profile?: 'draft' | 'stripe'
  /** Which answers are stored: see docs/http.md. Default release-5xx. */
  readonly errorPolicy?: ErrorPolicy
  readonly fingerprint?: FingerprintOptions
  /** Request headers that are part of the request: the same key with another value is a mismatch. Default none. */
  readonly headers?: readonly string[]
  /** The largest request body that is read before the claim. Default 1 MiB. */
  readonly bodyBytesMax?: number
  /** The largest response body that is stored. Default 1 MiB. */
  readonly storedBytesMax?: number
  /** Server-sent events: let them through unstored, or hold them back to the end and store them. Default not-stored. */
  readonly stream?: 'not-stored' | 'record'
  /** The version of the code that writes responses. It is stored with each of them. Default 0. */
  readonly version?: number
  /** Brings a stored response of an older version up to date before it is replayed. Without it, it is replayed as it was. */
  readonly upgrade?: (response: Answer, version: number) => Answer | Promise<Answer>
  /** A stored response of an older version: replay it (through `upgrade`), or refuse it as expired (410). Default replay. */
  readonly onOlderVersion?: 'replay' | 'refuse'
  /** Run the handler in a transaction of the store. Default false. */
  readonly transaction?: InTransaction
  /** The store is down: refuse (503), or run unprotected and say so in a header. Default refuse. */
  readonly onStoreDown?: 'refuse' | 'run'
  /** The header that marks a replay. Default Idempotent-Replayed. */
  readonly replayHeader?: string
  readonly replaySetCookie?: boolean
  /** The `type` of a problem is this and its code. Default: the published rules of this server. */
  readonly problemBase?: string
  readonly keyFormat?: 'any' | 'uuid' | ((key: string) => boolean)
  readonly keyLengthMax?: number
  /** The store is given only a digest of tenant and key. */
  readonly hashKeys?: boolean
  /** What `createSessions` of `onceonly/sessions` returned: clients may number their requests instead of sending keys. */
  readonly sessions?: HttpSessions
}

export type TenantOf<Asked> = (request: Asked) => string | undefined | null | Promise<string | undefined | null>
export type ErrorPolicy = 'release-5xx' | 'began' | 'success-only'

export interface FingerprintOptions {
  /**
   * `bytes`: as they came. `jcs`: JSON in its canonical form, so that the order of members does not matter. A function: its
   * result (bytes, a string, or any JSON value) stands for the body.
   */
  readonly body?: 'bytes' | 'jcs' | ((body: Uint8Array, request: FingerprintedRequest) => unknown)
  /** With `jcs`: JSON Pointers of members that a retry may change, such as `/sentAt`. */
  readonly omit?: readonly string[]
  /** `canonical`: the order of the parameters does not matter. Default canonical. */
  readonly query?: 'canonical' | 'bytes'
}

export interface FingerprintedRequest {
  readonly method: string
  /** Path and query as the client sent them. */
  readonly target: string
  header(name: string): string | undefined
}

/** The options with their defaults. */
export interface HttpSettings<Asked> extends Required<
  Omit<
    HttpOptions<Asked>,
    | 'leaseMs'
    | 'keepMs'
    | 'tombstoneMs'
    | 'attemptMs'
    | 'onTakeover'
    | 'onExpired'
    | 'fingerprint'
    | 'methods'
    | 'upgrade'
    | 'sessions'
  >
> {
  readonly sessions: HttpSessions | undefined
  readonly upgrade: HttpOptions['upgrade'] | undefined
  readonly methods: ReadonlySet<string>
  /** `header` in lower case. */
  readonly keyHeader: string
  readonly fingerprint: Required<FingerprintOptions>
  /** What is left to `createOnce` when it is not given here. */
  readonly call: Pick<
    HttpOptions,
    'waitMs' | 'leaseMs' | 'keepMs' | 'tombstoneMs' | 'attemptMs' | 'onTakeover' | 'onExpired'
  >
  readonly windowSeconds: number
}

/** Where the rules are published, and where problem types point unless `problemBase` says otherwise. */
export const rulesPath = '/.well-known/idempotency'

export function readHttpOptions<Asked>(once: Once, options: HttpOptions<Asked>): HttpSettings<Asked> {
  if (typeof once?.run !== 'function') {
    throw invalidArgument('idempotency: expected the first argument to be what createOnce() returned')
  }
  checkOptions('idempotency', options, rulesOf(httpTable))
  checkOptions('idempotency: fingerprint', options.fingerprint ?? {}, rulesOf(fingerprintTable))
  if (options.fingerprint?.omit?.length && options.fingerprint.body !== 'jcs') {
    throw invalidArgument('idempotency: fingerprint.omit needs fingerprint.body to be "jcs"')
  }
  if (options.transaction && !hasTransactions(once.store)) {
    throw invalidArgument(`idempotency: transaction: true needs a store with transactions, got ${once.store.name}`)
  }
  if (options.sessions) checkSessions(once, options, options.sessions)
  return withDefaults(once, options)
}

/** What a key would be given, and a number cannot be, is refused at the start. */
function checkSessions(once: Once, options: HttpOptions<never>, sessions: HttpSessions): void {
  if (!options.transaction) {
    if ((options.onTakeover ?? once.settings.onTakeover) !== 'refuse') return
    throw invalidArgument(
      "idempotency: sessions run an attempt that crashed again, so onTakeover: 'refuse' cannot hold for them. Use keys, or transaction: true.",
    )
  }
  if (sessions.guarantee === 'one-transaction' && sessions.store === once.store) return
  throw invalidArgument(
    `idempotency: transaction: true needs sessions on the store of createOnce, got sessions on ${sessions.store === once.store ? `a ${sessions.store.name} store, which has no transactions for them` : `another ${sessions.store.name} store`}`,
  )
}

function rulesOf(table: OptionTable): Parameters<typeof checkOptions>[2] {
  return Object.fromEntries(
    Object.entries(table).map(([name, { rule, required }]) => [name, required ? rule : optional(rule)]),
  )
}

/** The given value, or the default of the table. */
function settled<Given extends object>(table: OptionTable, given: Given): Required<Given> {
  const all = Object.entries(table).map(([name, { fallback }]) => [name, given[name as keyof Given] ?? fallback])
  return Object.fromEntries(all) as Required<Given>
}

function withDefaults<Asked>(once: Once, options: HttpOptions<Asked>): HttpSettings<Asked> {
  const all = settled(httpTable, options)
  const { waitMs, leaseMs, keepMs, tombstoneMs, attemptMs, onTakeover, onExpired } = all
  return {
    ...all,
    // A handler that runs in the transaction of its key has no transaction without a key.
    required: all.required || all.transaction,
    keyHeader: all.header.toLowerCase(),
    methods: new Set(all.methods),
    fingerprint: settled(fingerprintTable, options.fingerprint ?? {}),
    headers: [...new Set(all.headers.map((name) => name.toLowerCase()))].sort(),
    problemBase: all.problemBase.replace(/\/$/, ''),
    call: given({ waitMs, leaseMs, keepMs, tombstoneMs, attemptMs, onTakeover, onExpired }),
    // The window is published, so it must be the window that is really kept.
    windowSeconds: Math.floor((options.keepMs ?? once.settings.keepMs) / 1000),
  }
}

function given<T extends object>(options: T): { [Name in keyof T]?: Exclude<T[Name], undefined> } {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as never
}

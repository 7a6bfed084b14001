// The options of every adapter, checked when the adapter is made: a misspelt or missing tenant must fail at the start of
// the server, not leak one tenant's response to another in production.

import type { Once } from '../../core/once.ts'
import {
  aFunction,
  checkOptions,
  nonNegativeMs,
  oneOf,
  optional,
  positiveInteger,
  positiveMs,
} from '../../core/options.ts'
import { invalidArgument } from '../../core/errors.ts'
import { keyPartBytesMax } from '../../core/key.ts'
import type { Rule } from '../../core/options.ts'

/** `Asked` is the framework's own request: Express `req`, Hono `c`, Koa `ctx`, `Request`, … */
export interface HttpOptions<Asked = unknown> {
  /**
   * Returns the tenant of a request: the account its credentials belong to. Two tenants never share a key or a response.
   * `'shared'`: all callers share one space of keys.
   */
  readonly tenant: 'shared' | TenantOf<Asked>
  /** `tenant`: a key names one request of the tenant, whatever its path. `route`: of the tenant on that method and path. */
  readonly keysPer?: 'tenant' | 'route'
  /** Refuse a protected method without a key (400). Default false. */
  readonly required?: boolean
  /** Default POST and PATCH. GET and HEAD never. */
  readonly methods?: readonly string[]
  /** How long a duplicate waits for the running one before it is told 409. Default 5000. */
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
  /** Run the handler in a transaction of the store. Default false. */
  readonly transaction?: boolean
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
}

export type TenantOf<Asked> = (request: Asked) => string | undefined | null | Promise<string | undefined | null>
export type ErrorPolicy = 'release-5xx' | 'began' | 'success-only'

export interface FingerprintOptions {
  /**
   * `bytes`: as they came. `jcs`: JSON in its canonical form, so that the order of members does not matter. A function: what
   * it answers (bytes, a string, or any JSON value) stands for the body.
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
    'leaseMs' | 'keepMs' | 'tombstoneMs' | 'attemptMs' | 'onTakeover' | 'onExpired' | 'fingerprint' | 'methods'
  >
> {
  readonly methods: ReadonlySet<string>
  readonly fingerprint: Required<FingerprintOptions>
  /** What is left to `createOnce` when it is not given here. */
  readonly call: Pick<
    HttpOptions,
    'waitMs' | 'leaseMs' | 'keepMs' | 'tombstoneMs' | 'attemptMs' | 'onTakeover' | 'onExpired'
  >
  readonly windowSeconds: number
}

/** A request or answer of 1 MiB fits a row of most stores and a thousand of them fit the memory of a small server. */
const bytesMaxDefault = 1_048_576

/** Where the rules are published, and where problem types point unless `problemBase` says otherwise. */
export const rulesPath = '/.well-known/idempotency'

const aBoolean: Rule = (value) => (typeof value === 'boolean' ? undefined : 'true or false')
// A method or a header name is a token (RFC 9110, 5.6.2).
const token = /^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$/
const aToken: Rule = (value) => (typeof value === 'string' && token.test(value) ? undefined : 'the name of a header')
const listOf =
  (what: string, test: (each: unknown) => boolean, lengthMin = 0): Rule =>
  (value) =>
    Array.isArray(value) && value.length >= lengthMin && value.every(test) ? undefined : what
const neverProtected = new Set(['GET', 'HEAD', 'OPTIONS', 'TRACE', 'CONNECT'])

const rules: Readonly<Record<keyof HttpOptions, Rule>> = {
  tenant: (value) =>
    value === 'shared' || typeof value === 'function'
      ? undefined
      : 'a function that returns the tenant of a request, or "shared" if all callers may share keys and responses',
  keysPer: optional(oneOf('tenant', 'route')),
  required: optional(aBoolean),
  methods: optional(
    listOf(
      'a list of method names in capitals, at least one, without GET, HEAD, OPTIONS, TRACE and CONNECT',
      (each) =>
        typeof each === 'string' && token.test(each) && each === each.toUpperCase() && !neverProtected.has(each),
      1,
    ),
  ),
  waitMs: optional(nonNegativeMs),
  leaseMs: optional(positiveMs),
  keepMs: optional(positiveMs),
  tombstoneMs: optional(nonNegativeMs),
  attemptMs: optional(positiveMs),
  onTakeover: optional(oneOf('run', 'refuse')),
  onExpired: optional(oneOf('refuse', 'run')),
  parse: optional(oneOf('lenient', 'strict')),
  profile: optional(oneOf('draft', 'stripe')),
  errorPolicy: optional(oneOf('release-5xx', 'began', 'success-only')),
  fingerprint: () => undefined, // an object of its own, checked below
  headers: optional(listOf('a list of header names', (each) => typeof each === 'string' && aToken(each) === undefined)),
  bodyBytesMax: optional(positiveInteger),
  storedBytesMax: optional(positiveInteger),
  stream: optional(oneOf('not-stored', 'record')),
  transaction: optional(aBoolean),
  onStoreDown: optional(oneOf('refuse', 'run')),
  replayHeader: optional(aToken),
  replaySetCookie: optional(aBoolean),
  problemBase: optional((value) =>
    typeof value === 'string' && /^[\x21-\x7e]+$/.test(value) && !/["<>\\^`{|}]/.test(value)
      ? undefined
      : 'an absolute URI',
  ),
  keyFormat: optional((value) =>
    typeof value === 'function' ? undefined : oneOf('any', 'uuid')(value) && '"any", "uuid" or a function',
  ),
  keyLengthMax: optional((value) =>
    positiveInteger(value) === undefined && (value as number) <= keyPartBytesMax
      ? undefined
      : `an integer from 1 to ${keyPartBytesMax}`,
  ),
  hashKeys: optional(aBoolean),
}

const fingerprintRules: Readonly<Record<keyof FingerprintOptions, Rule>> = {
  body: optional((value) =>
    aFunction(value) === undefined ? undefined : oneOf('bytes', 'jcs')(value) && '"bytes", "jcs" or a function',
  ),
  omit: optional(
    listOf(
      'a list of JSON Pointers such as "/sentAt"',
      (each) => typeof each === 'string' && /^(\/([^~/]|~[01])*)+$/.test(each),
    ),
  ),
  query: optional(oneOf('canonical', 'bytes')),
}

export function readHttpOptions<Asked>(once: Once, options: HttpOptions<Asked>): HttpSettings<Asked> {
  if (typeof once?.run !== 'function') {
    throw invalidArgument('idempotency: expected the first argument to be what createOnce() answered')
  }
  checkOptions('idempotency', options, rules)
  checkOptions('idempotency: fingerprint', options.fingerprint ?? {}, fingerprintRules)
  if (options.fingerprint?.omit && options.fingerprint.body !== 'jcs') {
    throw invalidArgument('idempotency: fingerprint.omit needs fingerprint.body to be "jcs"')
  }
  if (options.transaction && !('begin' in once.store)) {
    throw invalidArgument(`idempotency: transaction: true needs a store with transactions, got ${once.store.name}`)
  }
  return withDefaults(once, options)
}

function withDefaults<Asked>(once: Once, options: HttpOptions<Asked>): HttpSettings<Asked> {
  const { waitMs = 5_000, leaseMs, keepMs, tombstoneMs, attemptMs, onTakeover, onExpired } = options
  return {
    tenant: options.tenant,
    keysPer: options.keysPer ?? 'tenant',
    required: options.required ?? false,
    methods: new Set(options.methods ?? ['POST', 'PATCH']),
    waitMs,
    parse: options.parse ?? 'lenient',
    profile: options.profile ?? 'draft',
    errorPolicy: options.errorPolicy ?? 'release-5xx',
    fingerprint: { body: 'bytes', omit: [], query: 'canonical', ...options.fingerprint },
    headers: [...new Set(options.headers?.map((name) => name.toLowerCase()))].sort(),
    bodyBytesMax: options.bodyBytesMax ?? bytesMaxDefault,
    storedBytesMax: options.storedBytesMax ?? bytesMaxDefault,
    stream: options.stream ?? 'not-stored',
    transaction: options.transaction ?? false,
    onStoreDown: options.onStoreDown ?? 'refuse',
    replayHeader: options.replayHeader ?? 'Idempotent-Replayed',
    replaySetCookie: options.replaySetCookie ?? false,
    problemBase: (options.problemBase ?? `${rulesPath}/problems`).replace(/\/$/, ''),
    keyFormat: options.keyFormat ?? 'any',
    keyLengthMax: options.keyLengthMax ?? keyPartBytesMax,
    hashKeys: options.hashKeys ?? false,
    call: given({ waitMs, leaseMs, keepMs, tombstoneMs, attemptMs, onTakeover, onExpired }),
    // It is published, so it must be the one that is really kept.
    windowSeconds: Math.floor((keepMs ?? once.settings.keepMs) / 1000),
  }
}

function given<T extends object>(options: T): { [Name in keyof T]?: Exclude<T[Name], undefined> } {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as never
}

// Every option of the HTTP adapters, once: its rule, its default, how the gateway reads it and the line that explains it. The
// checks of the adapters, the flags, the help and the file of the gateway, its JSON Schema and the tables of docs/http.md and
// docs/gateway.md are made from this table. The interface HttpOptions is written manually, for the person who hovers.

import { keyPartBytesMax } from '../../core/key.ts'
import {
  aFunction,
  nonNegativeMs,
  oneOf,
  positiveInteger,
  positiveMs,
  versionNumber,
  withMethods,
} from '../../core/options.ts'
import type { Rule } from '../../core/options.ts'
import type { FingerprintOptions, HttpOptions } from './options.ts'

/** How the gateway reads an option from a text or from its file. */
export type ReadAs = 'yes-no' | 'duration' | 'bytes' | 'count' | 'count-or-zero' | 'text' | 'list' | readonly string[]

export interface HttpOption {
  readonly rule: Rule
  readonly required: boolean
  /** Undefined: the setting of createOnce. */
  readonly fallback: unknown
  /** Undefined: not an option of the gateway, which runs no handler and calls no function of yours. */
  readonly gateway: { readonly name: string; readonly as: ReadAs } | undefined
  /** One or two sentences, for help, schema and docs. */
  readonly describe: string
}

export type OptionTable = Readonly<Record<string, HttpOption>>

interface Declared {
  /** The name in the file of the gateway, if it is another one. */
  readonly name?: string
  readonly fallback?: unknown
  readonly describe: string
}

type Entry = (own: string) => HttpOption

function entry(rule: Rule, as: ReadAs, { name, fallback, describe }: Declared): Entry {
  return (own) => ({ rule, required: false, fallback, gateway: { name: name ?? own, as }, describe })
}

function inProgramOnly(rule: Rule, { fallback, describe }: Declared, required = false): Entry {
  return () => ({ rule, required, fallback, gateway: undefined, describe })
}

const choice = (of: readonly string[], declared: Declared): Entry => entry(oneOf(...of), of, declared)
const yesNo = (declared: Declared): Entry =>
  entry((value) => (typeof value === 'boolean' ? undefined : 'true or false'), 'yes-no', {
    fallback: false,
    ...declared,
  })
const duration = (declared: Declared): Entry => entry(positiveMs, 'duration', declared)
const durationOrZero = (declared: Declared): Entry => entry(nonNegativeMs, 'duration', declared)
const size = (declared: Declared): Entry => entry(positiveInteger, 'bytes', declared)

// A method or a header name is a token (RFC 9110, 5.6.2).
const token = /^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$/
const isToken = (value: unknown): boolean => typeof value === 'string' && token.test(value)
/** For the gateway, too. */
export const headerName: Rule = (value) => (isToken(value) ? undefined : 'the name of a header')

function listOf(what: string, test: (each: unknown) => boolean, lengthMin = 0): Rule {
  return (value) => (Array.isArray(value) && value.length >= lengthMin && value.every(test) ? undefined : what)
}

/** A choice, or a function that only a program can give. */
function orFunction(of: readonly string[]): Rule {
  const named = of.map((each) => `"${each}"`).join(', ')
  return (value) => (typeof value === 'function' || of.includes(value as string) ? undefined : `${named} or a function`)
}

const neverProtected = new Set(['GET', 'HEAD', 'OPTIONS', 'TRACE', 'CONNECT'])
const isProtectable = (each: unknown): boolean =>
  isToken(each) && each === (each as string).toUpperCase() && !neverProtected.has(each as string)

/** A request or response of 1 MiB fits a row of most stores, and a thousand of them fit the memory of a small server. */
const bytesMax = 1_048_576

const entries: Readonly<Record<keyof HttpOptions, Entry>> = {
  tenant: inProgramOnly(
    (value) =>
      value === 'shared' || typeof value === 'function'
        ? undefined
        : 'a function that returns the tenant of a request, or "shared" if all callers may share keys and responses',
    {
      describe:
        "Returns the tenant of a request, from its credentials (may be async). Nothing returned is 400, anything but a string is an error. `'shared'`: all callers share keys and responses.",
    },
    true,
  ),
  header: entry(headerName, 'text', {
    name: 'keyHeader',
    fallback: 'Idempotency-Key',
    describe: 'The request header that carries the key, such as `X-Idempotency-Key` or `PayPal-Request-Id`.',
  }),
  keysPer: choice(['tenant', 'route'], {
    fallback: 'tenant',
    describe: '`route`: a key is for one method and path, and may be used again on another (Stripe v2).',
  }),
  required: yesNo({ describe: 'Refuse a protected method without a key (400).' }),
  methods: entry(
    listOf(
      'a list of method names in capitals, at least one, without GET, HEAD, OPTIONS, TRACE and CONNECT',
      isProtectable,
      1,
    ),
    'list',
    { fallback: ['POST', 'PATCH'], describe: 'The methods that are protected. GET and HEAD never are.' },
  ),
  waitMs: durationOrZero({
    name: 'wait',
    fallback: 5_000,
    describe: 'How long a duplicate waits for the running request before it is 409. 0 does not wait.',
  }),
  leaseMs: duration({
    name: 'lease',
    describe: 'How long a claim keeps others away. It is extended while the request runs.',
  }),
  keepMs: duration({ name: 'keep', describe: 'How long a response is replayed, from its completion.' }),
  tombstoneMs: durationOrZero({
    name: 'tombstone',
    describe: 'How long after that a late retry is still known to be one.',
  }),
  attemptMs: duration({
    name: 'attempt',
    describe:
      'The deadline of one attempt: its signal aborts, and its lease is no longer extended. Unless it is set, it grows to 20 leases with a longer lease.',
  }),
  onTakeover: choice(['run', 'refuse'], {
    describe:
      'An attempt that crashed or lost its answer: run the request again when its lease ends, or refuse it (409).',
  }),
  onExpired: choice(['refuse', 'run'], {
    describe: 'A retry that comes after `keep`: refuse it (410), or run it as a new request.',
  }),
  parse: choice(['lenient', 'strict'], {
    fallback: 'lenient',
    describe: '`strict` takes only keys in double quotes, as the IETF draft writes them.',
  }),
  keyFormat: entry(orFunction(['any', 'uuid']), ['any', 'uuid'], {
    fallback: 'any',
    describe: '`uuid` takes only UUIDs. In a program, also a function that returns whether a key is valid.',
  }),
  keyLengthMax: entry(
    (value) =>
      positiveInteger(value) === undefined && (value as number) <= keyPartBytesMax
        ? undefined
        : `an integer from 1 to ${keyPartBytesMax}`,
    'count',
    { name: 'maxKeyLength', fallback: keyPartBytesMax, describe: 'The longest key in characters.' },
  ),
  hashKeys: yesNo({ describe: 'The store is given only digests of tenant and key.' }),
  fingerprint: inProgramOnly(() => undefined, {
    fallback: {},
    describe: 'What makes two requests the same. Its members `body`, `omit` and `query` are below.',
  }),
  headers: entry(listOf('a list of header names', isToken), 'list', {
    name: 'fingerprintHeaders',
    fallback: [],
    describe: 'Request headers that are part of the request: the same key with another value is 422.',
  }),
  errorPolicy: choice(['release-5xx', 'began', 'success-only'], {
    fallback: 'release-5xx',
    describe: 'Which responses are stored, see "What is stored" in docs/http.md.',
  }),
  bodyBytesMax: size({
    name: 'maxBody',
    fallback: bytesMax,
    describe: 'The largest request body that is read before the claim. A larger one needs a `Content-Digest`.',
  }),
  storedBytesMax: size({
    name: 'maxStored',
    fallback: bytesMax,
    describe: 'The largest response body that is stored.',
  }),
  stream: choice(['not-stored', 'record'], {
    fallback: 'not-stored',
    describe: 'Server-sent events: pass them unstored, or hold them back to their end and store them (`record`).',
  }),
  version: entry(versionNumber, 'count-or-zero', {
    name: 'responseVersion',
    fallback: 0,
    describe: 'The version of the code that writes responses. It is stored with each of them.',
  }),
  upgrade: inProgramOnly(aFunction, {
    describe:
      'Brings a stored response of an older `version` up to date before it is replayed: `(response, version) => response`.',
  }),
  onOlderVersion: choice(['replay', 'refuse'], {
    fallback: 'replay',
    describe: 'A stored response of an older `version`: replay it (through `upgrade`), or refuse it as expired (410).',
  }),
  transaction: inProgramOnly((value) => (typeof value === 'boolean' ? undefined : 'true or false'), {
    fallback: false,
    describe:
      'Run the handler in a transaction of the store. A request without a key is then refused, as with `required`.',
  }),
  onStoreDown: choice(['refuse', 'run'], {
    fallback: 'refuse',
    describe:
      'The store is down: refuse (503), or run the request unprotected. Its response then carries `Idempotency-Status: unprotected`.',
  }),
  profile: choice(['draft', 'stripe'], {
    fallback: 'draft',
    describe: '`stripe`: 400 instead of 422, an `error` member, and `Stripe-Should-Retry`.',
  }),
  replayHeader: entry(headerName, 'text', {
    fallback: 'Idempotent-Replayed',
    describe: 'The response header that marks a replay.',
  }),
  replaySetCookie: yesNo({ describe: 'Store and replay `Set-Cookie`, too.' }),
  problemBase: entry(
    (value) =>
      typeof value === 'string' && /^[\x21-\x7e]+$/.test(value) && !/["<>\\^`{|}]/.test(value)
        ? undefined
        : 'an absolute URI',
    'text',
    {
      fallback: '/.well-known/idempotency/problems',
      describe: 'The `type` of a problem is this and its code. Set your own absolute URI.',
    },
  ),
  sessions: inProgramOnly(withMethods('register', 'apply', 'keepAlive', 'close', 'show'), {
    describe:
      'What `createSessions` returned: clients may number their requests instead of sending keys, see "Over HTTP" in docs/sessions.md.',
  }),
}

const fingerprintEntries: Readonly<Record<keyof FingerprintOptions, Entry>> = {
  body: entry(orFunction(['bytes', 'jcs']), ['bytes', 'jcs'], {
    name: 'fingerprintBody',
    fallback: 'bytes',
    describe:
      '`jcs`: the order of JSON members does not matter. In a program, also a function that returns what stands for the body.',
  }),
  omit: entry(
    listOf(
      'a list of JSON Pointers such as "/sentAt"',
      (each) => typeof each === 'string' && /^(\/([^~/]|~[01])*)+$/.test(each),
    ),
    'list',
    {
      name: 'fingerprintOmit',
      fallback: [],
      describe: 'With `jcs`: JSON Pointers of members that a retry may change, such as `/sentAt`.',
    },
  ),
  query: choice(['canonical', 'bytes'], {
    name: 'fingerprintQuery',
    fallback: 'canonical',
    describe: '`bytes`: the order of query parameters matters.',
  }),
}

function named<Name extends string>(all: Readonly<Record<Name, Entry>>): Readonly<Record<Name, HttpOption>> {
  return Object.fromEntries(Object.entries<Entry>(all).map(([name, make]) => [name, make(name)])) as Readonly<
    Record<Name, HttpOption>
  >
}

export const httpTable: Readonly<Record<keyof HttpOptions, HttpOption>> = named(entries)
export const fingerprintTable: Readonly<Record<keyof FingerprintOptions, HttpOption>> = named(fingerprintEntries)

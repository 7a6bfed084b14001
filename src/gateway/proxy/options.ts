// The options of a gateway, checked before it listens: what is protected, whose keys they are, where requests go, and how much
// may be under way at once.

import type { Clock } from '../../core/clock.ts'
import { invalidArgument } from '../../core/errors.ts'
import {
  aFunction,
  aString,
  checkOptions,
  nonNegativeMs,
  oneOf,
  optional,
  positiveInteger,
  positiveMs,
  withMethods,
} from '../../core/options.ts'
import type { Rule } from '../../core/options.ts'
import type { Store } from '../../core/store.ts'
import { headerName, httpTable } from '../../http/exchange.ts'
import type { HttpOptions, HttpSessions } from '../../http/exchange.ts'
import type { RequestRecord } from '../request-log.ts'
import { routePath } from './routes.ts'
import type { PathCase } from './routes.ts'

/** The options of the exchange that can be set for all requests and again per route. A gateway runs no handler, so it has no transaction. */
export type ProtectionOptions = Omit<HttpOptions, 'tenant' | 'transaction' | 'sessions'>

/** Their names. */
export const protectionNames: readonly (keyof ProtectionOptions)[] = (
  Object.keys(httpTable) as (keyof HttpOptions)[]
).filter((name) => name !== 'tenant' && name !== 'sessions' && name !== 'transaction')

/** The first route that fits a request decides. A request that fits none is protected as the gateway says. */
export interface GatewayRoute extends ProtectionOptions {
  /** `*` is one segment, `**` at the end is any rest: `/orders/*`, `/v1/**`. `/orders.*` covers `/orders` and `/orders.json`. */
  readonly path: string
  /** `false`: requests pass as if they had no key. Default true. */
  readonly protect?: boolean
}

export interface GatewayOptions extends ProtectionOptions {
  readonly store: Store
  /** Where every request goes, whatever its target: http://HOST:PORT or https://HOST. */
  readonly upstream: string
  readonly listen: { readonly host: string; readonly port: number }
  /** Names the service behind. Gateways with the same name on the same store share keys, others never do. Default "default". */
  readonly service?: string
  /** The header that names the tenant. The component that authenticated the request must set it. */
  readonly tenantHeader?: string
  /** Instead of a tenant header: all callers share one space of keys. */
  readonly tenant?: 'shared'
  /** What `gatewaySessions` returned: clients may number their requests instead of sending keys. */
  readonly sessions?: HttpSessions
  readonly routes?: readonly GatewayRoute[]
  /**
   * Whether the service distinguishes `/orders` from `/ORDERS`. Many do not, so a rule holds whatever the letter case unless
   * this says 'significant'. Default 'ignored'.
   */
  readonly pathCase?: PathCase
  /** Keep the Forwarded and X-Forwarded-* that came, because a proxy in front wrote them. Default: they are replaced. */
  readonly trustForwarded?: boolean
  /** How long the upstream may take to begin an answer, and to go on with it. Default 60 s. */
  readonly upstreamTimeoutMs?: number
  readonly connectTimeoutMs?: number
  /** How long an idle connection to the upstream is kept. Default 1 s. */
  readonly upstreamIdleMs?: number
  /** How many requests may be under way. One more is 503. Default 2048. */
  readonly inFlightMax?: number
  /** How long `drain` waits for the requests under way. Default 25 s. */
  readonly drainMs?: number
  /** How often expired entries are removed, where the store can. 0: never. Default: as `createOnce` does. */
  readonly sweepEveryMs?: number
  /** Called per request, when the request has ended. */
  readonly log?: (record: RequestRecord) => void
  readonly clock?: Clock
}

export interface GatewaySettings extends GatewayOptions {
  readonly service: string
  readonly methods: readonly string[]
  readonly routes: readonly GatewayRoute[]
  readonly pathCase: PathCase
  readonly trustForwarded: boolean
  readonly upstreamTimeoutMs: number
  readonly connectTimeoutMs: number
  readonly upstreamIdleMs: number
  readonly inFlightMax: number
  readonly drainMs: number
}

const aBoolean: Rule = (value) => (typeof value === 'boolean' ? undefined : 'true or false')
const aList: Rule = (value) => (Array.isArray(value) ? undefined : 'a list')
const anyValue: Rule = () => undefined // the exchange checks it, with the words that fit

const protectionRules = Object.fromEntries(protectionNames.map((name) => [name, anyValue])) as Readonly<
  Record<keyof ProtectionOptions, Rule>
>

const rules: Readonly<Record<keyof GatewayOptions, Rule>> = {
  ...protectionRules,
  store: withMethods('claim', 'extend', 'settle', 'release'),
  upstream: aString,
  listen: (value) => {
    const { host, port } = (value ?? {}) as { host?: unknown; port?: unknown }
    const fits =
      typeof host === 'string' && Number.isInteger(port) && (port as number) >= 0 && (port as number) < 65_536
    return fits ? undefined : 'an address such as { host: "127.0.0.1", port: 8080 }'
  },
  service: optional((value) =>
    typeof value === 'string' && /^[\w.-]{1,64}$/.test(value)
      ? undefined
      : 'a name of letters, digits, dots and dashes',
  ),
  tenantHeader: optional(headerName),
  tenant: optional((value) => (value === 'shared' ? undefined : '"shared"')),
  sessions: anyValue,
  routes: optional(aList),
  pathCase: optional(oneOf('ignored', 'significant')),
  trustForwarded: optional(aBoolean),
  upstreamTimeoutMs: optional(positiveMs),
  connectTimeoutMs: optional(positiveMs),
  upstreamIdleMs: optional(positiveMs),
  inFlightMax: optional(positiveInteger),
  drainMs: optional(nonNegativeMs),
  sweepEveryMs: optional(nonNegativeMs),
  log: optional(aFunction),
  clock: optional(withMethods('now', 'elapsed', 'schedule')),
}

const routeRules: Readonly<Record<keyof GatewayRoute, Rule>> = {
  ...protectionRules,
  path: (value) => (typeof value === 'string' && routePath.pattern.test(value) ? undefined : routePath.expected),
  protect: optional(aBoolean),
}

export function readGatewayOptions(options: GatewayOptions): GatewaySettings {
  checkOptions('gateway', options, rules)
  for (const [at, route] of (options.routes ?? []).entries()) checkOptions(`gateway: routes[${at}]`, route, routeRules)
  if ((options.tenant === undefined) === (options.tenantHeader === undefined)) throw whoseKeys(options)
  checkUpstream(options.upstream)
  return {
    ...options,
    service: options.service ?? 'default',
    methods: options.methods ?? ['POST', 'PATCH'],
    routes: options.routes ?? [],
    pathCase: options.pathCase ?? 'ignored',
    trustForwarded: options.trustForwarded ?? false,
    // Long enough for a slow payment provider behind the service, short enough that a client is still there.
    upstreamTimeoutMs: options.upstreamTimeoutMs ?? 60_000,
    connectTimeoutMs: options.connectTimeoutMs ?? 5_000,
    // Below the 2 s after which gunicorn, the most impatient server we know, closes an idle connection. A request that meets
    // such a close was sent, and whether it was read is unknown.
    upstreamIdleMs: options.upstreamIdleMs ?? 1_000,
    // Each may hold a request and an answer of 1 MiB by default: 4 GiB if all of them are that large.
    inFlightMax: options.inFlightMax ?? 2_048,
    // Below the 30 s after which Kubernetes kills what it has asked to end.
    drainMs: options.drainMs ?? 25_000,
  }
}

/** One caller's answer must not reach another because the operator forgot to configure tenants. */
function whoseKeys({ tenant }: GatewayOptions): Error {
  return invalidArgument(
    tenant === undefined
      ? 'gateway: no tenant configured. Set --tenant-header (tenantHeader) to the header that carries the authenticated ' +
          'tenant, or --tenant shared (tenant: "shared") if all callers may share keys and responses.'
      : 'gateway: expected either --tenant-header or --tenant shared, got both',
  )
}

export function checkUpstream(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined
  const isOrigin = url && /^https?:$/.test(url.protocol) && url.pathname === '/' && !url.search && !url.hash
  if (!isOrigin || url.username !== '' || url.password !== '') {
    // The value may contain a password.
    throw invalidArgument(
      'gateway: expected upstream to be http://HOST:PORT or https://HOST:PORT, without user, path and query',
    )
  }
  return url
}

// The settings of `onceonly gateway`, from the command line and from a file: one table says how each is read, so that both
// take the same words. What the command line says wins.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { address, bytes, choice, count, duration, flag, list, text } from '../arguments.ts'
import type { Address, Option, Values } from '../arguments.ts'
import { invalidArgument } from '../../core/errors.ts'
import { checkSchema } from './config-schema.ts'
import type { Schema } from './config-schema.ts'
import type { GatewayOptions, GatewayRoute, ProtectionOptions } from '../../gateway/proxy/options.ts'
import { logLevels } from '../../gateway/request-log.ts'
import type { LogLevel } from '../../gateway/request-log.ts'

const protection = {
  required: flag,
  lease: duration,
  keep: duration,
  tombstone: duration,
  wait: duration,
  errorPolicy: choice('release-5xx', 'began', 'success-only'),
  onExpired: choice('refuse', 'run'),
  onTakeover: choice('run', 'refuse'),
  profile: choice('draft', 'stripe'),
  parse: choice('lenient', 'strict'),
  onStoreDown: choice('refuse', 'run'),
  maxBody: bytes,
  maxStored: bytes,
} as const

/** By the names of the file; on the command line `maxBody` is --max-body. */
const members = {
  upstream: text,
  listen: address,
  store: text,
  cache: text,
  admin: address,
  service: text,
  tenantHeader: text,
  tenant: choice('shared'),
  methods: list,
  ...protection,
  upstreamTimeout: duration,
  connectTimeout: duration,
  upstreamIdle: duration,
  pathCase: choice('ignored', 'significant'),
  trustForwarded: flag,
  maxInFlight: count,
  drain: duration,
  sweepEvery: duration,
  logLevel: choice(...logLevels),
} as const satisfies Readonly<Record<string, Option<unknown>>>

type Given = Values<typeof members>

/** For parseCommand. */
export const commandOptions: Readonly<Record<string, Option<unknown>>> = {
  ...Object.fromEntries(Object.entries(members).map(([name, option]) => [kebab(name), option])),
  config: text,
}

export interface GatewayConfig {
  readonly gateway: Omit<GatewayOptions, 'store' | 'log' | 'clock'>
  readonly store: string
  readonly cache: string | undefined
  readonly admin: Address | undefined
  readonly logLevel: LogLevel
}

/** `flags` is what parseCommand made of the command line; `storeOtherwise` is the store where neither it nor the file names one. */
export function readConfig(
  flags: Readonly<Record<string, unknown>>,
  storeOtherwise = 'sqlite:onceonly.db',
): GatewayConfig {
  const file = flags['config'] === undefined ? undefined : readConfigFile(flags['config'] as string)
  const fromFlags = Object.fromEntries(Object.keys(members).map((name) => [name, flags[kebab(name)]])) as Given
  const given = { ...file?.given, ...defined(fromFlags) }
  const { upstream, store = storeOtherwise, cache, admin, logLevel = 'info' } = given
  if (upstream === undefined) {
    throw invalidArgument('onceonly gateway: it is not said where requests go: --upstream http://127.0.0.1:3000')
  }
  return { gateway: { ...gatewayOptions(given), upstream, routes: file?.routes ?? [] }, store, cache, admin, logLevel }
}

function gatewayOptions(given: Given): Omit<GatewayOptions, 'store' | 'upstream'> {
  const {
    listen = { host: '127.0.0.1', port: 8080 },
    tenantHeader,
    tenant,
    service,
    methods,
    pathCase,
    trustForwarded,
  } = given
  const renamed = {
    tenantHeader,
    tenant,
    service,
    methods,
    pathCase,
    trustForwarded,
    upstreamTimeoutMs: given.upstreamTimeout,
    connectTimeoutMs: given.connectTimeout,
    upstreamIdleMs: given.upstreamIdle,
    inFlightMax: given.maxInFlight,
    drainMs: given.drain,
    sweepEveryMs: given.sweepEvery,
  }
  return { listen, ...defined(renamed), ...protectionOptions(given) }
}

function protectionOptions(given: Values<typeof protection>): ProtectionOptions {
  const { required, errorPolicy, onExpired, onTakeover, profile, parse, onStoreDown } = given
  return defined({
    required,
    errorPolicy,
    onExpired,
    onTakeover,
    profile,
    parse,
    onStoreDown,
    leaseMs: given.lease,
    keepMs: given.keep,
    tombstoneMs: given.tombstone,
    waitMs: given.wait,
    bodyBytesMax: given.maxBody,
    storedBytesMax: given.maxStored,
  })
}

/** The published schema. */
export function configSchema(): Schema {
  return JSON.parse(readFileSync(join(import.meta.dirname, 'config.schema.json'), 'utf8')) as Schema
}

function readConfigFile(path: string): { given: Given; routes: readonly GatewayRoute[] } {
  const parsed = parseFile(path)
  checkSchema(path, configSchema(), parsed)
  const { routes = [], $schema: _, ...rest } = parsed as { routes?: RouteInFile[]; $schema?: string }
  return {
    given: readMembers(path, '', members, rest),
    routes: routes.map(({ path: pattern, methods, protect, ...options }, at) => ({
      ...defined({ path: pattern, methods, protect }),
      ...protectionOptions(readMembers(path, `/routes/${at}`, protection, options)),
    })) as GatewayRoute[],
  }
}

interface RouteInFile {
  readonly path: string
  readonly methods?: readonly string[]
  readonly protect?: boolean
}

function parseFile(path: string): unknown {
  try {
    return JSON.parse(readFileSync(path, 'utf8'))
  } catch (error) {
    throw invalidArgument(`onceonly gateway: the file ${path} cannot be read as JSON: ${whyUnread(error)}`)
  }
}

/** Where it is wrong, without the text that is there: V8 quotes it, and it may be a password. */
function whyUnread(error: unknown): string {
  const { message } = error as Error
  if (!(error instanceof SyntaxError)) return message
  const [where = 'it ends too early'] = /line \d+ column \d+/.exec(message) ?? /position \d+/.exec(message) ?? []
  return `it is no JSON, ${where}`
}

/** By the same functions as on the command line. */
function readMembers<Table extends Readonly<Record<string, Option<unknown>>>>(
  file: string,
  path: string,
  table: Table,
  given: object,
): Values<Table> {
  const read = Object.entries(given).map(([name, value]) => {
    const option = table[name]!
    // true and false, and lists, need no reading.
    if (typeof value === 'boolean' || Array.isArray(value)) return [name, value]
    const parsed = option.parse(String(value))
    if (parsed !== undefined) return [name, parsed]
    throw invalidArgument(`${file}: expected ${path}/${name} to be ${option.expected}, got ${JSON.stringify(value)}`)
  })
  return Object.fromEntries(read) as Values<Table>
}

/** maxBody is --max-body. */
export function kebab(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)
}

function defined<T extends object>(given: T): { [Name in keyof T]: Exclude<T[Name], undefined> } {
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)) as never
}

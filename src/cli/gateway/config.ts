// The settings of `onceonly gateway`, from the command line and from a file. The table of members.ts reads both, so that both take
// the same words. The command line wins.

import { readFileSync } from 'node:fs'
import { invalidArgument } from '../../core/errors.ts'
import { checkGiven } from '../../core/options.ts'
import { routePath } from '../../gateway/proxy.ts'
import type { GatewayOptions, GatewayRoute } from '../../gateway/proxy.ts'
import type { LogLevel } from '../../gateway/request-log.ts'
import { httpTable } from '../../http/exchange.ts'
import { flag, list, matching, text } from '../arguments.ts'
import type { Address, Option } from '../arguments.ts'
import { kebab, members } from './members.ts'
import type { Member } from './members.ts'

type Given = Readonly<Record<string, unknown>>

/** For parseCommand. */
export const commandOptions: Readonly<Record<string, Option<unknown>>> = {
  ...Object.fromEntries(Object.entries(members).map(([name, { option }]) => [kebab(name), option])),
  config: text,
}

export interface GatewayConfig {
  readonly gateway: Omit<GatewayOptions, 'store' | 'log' | 'clock'>
  readonly store: string
  readonly migrate: boolean
  /** Undefined: no sessions. */
  readonly sessions: { readonly window?: number; readonly leaseMs?: number } | undefined
  readonly cache: string | undefined
  readonly admin: Address | undefined
  readonly logLevel: LogLevel
}

/** `flags` is the result of parseCommand. `storeOtherwise` is the store where neither `flags` nor the file names one. */
export function readConfig(flags: Given, storeOtherwise = 'sqlite:onceonly.db'): GatewayConfig {
  const path = flags['config'] as string | undefined
  const file = path === undefined ? undefined : readConfigFile(path, parseFile(path))
  const fromFlags = Object.entries(flags).filter(([, value]) => value !== undefined)
  const byName = new Map(Object.keys(members).map((name) => [kebab(name), name]))
  const typed = fromFlags.flatMap(([name, value]) => (byName.has(name) ? [[byName.get(name)!, value]] : []))
  const given: Given = { ...file?.given, ...(Object.fromEntries(typed) as Given) }
  if (given['upstream'] === undefined) {
    throw invalidArgument(
      'onceonly gateway: no service configured. Set --upstream, such as --upstream http://127.0.0.1:3000.',
    )
  }
  return {
    gateway: {
      listen: { host: '127.0.0.1', port: 8080 },
      ...(optionsOf(given) as unknown as { upstream: string }),
      routes: file?.routes ?? [],
    },
    store: (given['store'] as string | undefined) ?? storeOtherwise,
    migrate: given['migrate'] === true,
    sessions: sessionsIn(given),
    cache: given['cache'] as string | undefined,
    admin: given['admin'] as Address | undefined,
    logLevel: (given['logLevel'] as LogLevel | undefined) ?? 'info',
  }
}

function sessionsIn(given: Given): GatewayConfig['sessions'] {
  const {
    sessions,
    sessionWindow: window,
    sessionLease: leaseMs,
  } = given as {
    sessions?: boolean
    sessionWindow?: number
    sessionLease?: number
  }
  if (sessions) return { ...(window !== undefined && { window }), ...(leaseMs !== undefined && { leaseMs }) }
  const alone = window === undefined ? (leaseMs === undefined ? undefined : '--session-lease') : '--session-window'
  if (alone === undefined) return undefined
  throw invalidArgument(`onceonly gateway: ${alone} is for sessions, and they are off. Add --sessions.`)
}

/** By the names of startGateway: `lease` is leaseMs, `fingerprintBody` is body in fingerprint. */
function optionsOf(given: Given): Given {
  const options: Record<string, unknown> = {}
  for (const [name, value] of Object.entries(given)) {
    const [first, second] = members[name]!.to
    if (first === undefined) continue
    options[first] = second === undefined ? value : { ...(options[first] as object), [second]: value }
  }
  return options
}

const routeMembers: Readonly<Record<string, Pick<Member, 'option' | 'describe'>>> = {
  path: {
    option: matching(routePath.pattern, routePath.expected),
    describe:
      'Which requests. `*` is one segment, a final `**` is any rest, `/orders.*` is `/orders` with or without a format.',
  },
  protect: { option: flag, describe: 'false: these requests pass as if they had no key.' },
  ...Object.fromEntries(Object.entries(members).filter(([, { perRoute }]) => perRoute)),
}

/** Reads what a file holds, and throws at the first error. */
export function readConfigFile(
  file: string,
  parsed: unknown,
): { readonly given: Given; readonly routes: readonly GatewayRoute[] } {
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) {
    throw invalidArgument(`${file}: expected it to be an object, got ${shown(parsed)}`)
  }
  const { routes = [], $schema: _, ...rest } = parsed as { routes?: unknown; $schema?: unknown }
  if (!Array.isArray(routes)) throw wrong(file, '/routes', 'a list of routes', routes)
  return {
    given: readMembers(file, '', members, rest),
    routes: routes.map((route: unknown, at) => readRoute(file, `/routes/${at}`, route)),
  }
}

function readRoute(file: string, place: string, route: unknown): GatewayRoute {
  if (typeof route !== 'object' || route === null || Array.isArray(route)) {
    throw wrong(file, place, 'an object with a path', route)
  }
  const { path, protect, ...rest } = readMembers(file, place, routeMembers, route)
  if (path === undefined) throw invalidArgument(`${file}: ${place}: path is missing`)
  return { path: path as string, ...(protect !== undefined && { protect: protect as boolean }), ...optionsOf(rest) }
}

function readMembers(
  file: string,
  place: string,
  table: Readonly<Record<string, Pick<Member, 'option'>>>,
  given: object,
): Given {
  const known = Object.fromEntries(Object.keys(table).map((name) => [name, () => undefined]))
  checkGiven(place === '' ? file : `${file}: ${place}`, given, known)
  return Object.fromEntries(
    Object.entries(given).map(([name, value]) => [
      name,
      readValue(file, `${place}/${name}`, name === 'methods' ? methods : table[name]!.option, value),
    ]),
  )
}

/** A list that the table of the exchange checks: the error says where in the file it is. */
const methods: Option<unknown> = { ...list, expected: httpTable.methods.rule([])! }

/** By the same functions as on the command line. Only true, false and lists are written in another way there. */
function readValue(file: string, place: string, option: Option<unknown>, value: unknown): unknown {
  const { type, expected, parse, json } = option
  if (type === 'boolean') {
    if (typeof value === 'boolean') return value
    throw wrong(file, place, 'true or false', value)
  }
  if (json['type'] === 'array') {
    const isList = Array.isArray(value) && value.every((each) => typeof each === 'string' && each !== '')
    if (isList && (option !== methods || httpTable.methods.rule(value) === undefined)) return value
    throw wrong(file, place, option === methods ? expected : 'a list of texts', value)
  }
  const isWritten = [json['type'] ?? 'string'].flat().some((each) => isOf(each as string, value))
  const read = isWritten ? parse(String(value)) : undefined
  if (read === undefined) throw wrong(file, place, expected, value)
  return read
}

function isOf(type: string, value: unknown): boolean {
  return type === 'integer' ? Number.isSafeInteger(value) : typeof value === type
}

function wrong(file: string, place: string, expected: string, value: unknown): Error {
  return invalidArgument(`${file}: expected ${place} to be ${expected}, got ${shown(value)}`)
}

/** A URL may have a password in it, and messages end up in logs. */
function shown(value: unknown): string {
  const text = JSON.stringify(value)
  return (text.length > 80 ? `${text.slice(0, 80)}…` : text).replace(/:\/\/[^@/]*@/, '://…@')
}

function parseFile(path: string): unknown {
  try {
    return JSON.parse(readFileSync(path, 'utf8'))
  } catch (error) {
    throw invalidArgument(`onceonly gateway: the file ${path} cannot be read as JSON: ${whyUnread(error)}`)
  }
}

/** Where the file is wrong, without its text: V8 quotes the text, and it may be a password. */
function whyUnread(error: unknown): string {
  const { message } = error as Error
  if (!(error instanceof SyntaxError)) return message
  const [where = 'it ends too early'] = /line \d+ column \d+/.exec(message) ?? /position \d+/.exec(message) ?? []
  return `it is no JSON, ${where}`
}

/** The JSON Schema of the file, for editors. scripts/build.ts writes it to dist. */
export function configSchema(): Readonly<Record<string, unknown>> {
  return {
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    description:
      'The file of onceonly gateway --config: the names of the command line, and rules per route. The command line wins.',
    type: 'object',
    additionalProperties: false,
    properties: {
      $schema: { type: 'string' },
      ...propertiesOf(members),
      routes: {
        type: 'array',
        description: 'The first route that fits a request decides.',
        items: {
          type: 'object',
          additionalProperties: false,
          required: ['path'],
          properties: propertiesOf(routeMembers),
        },
      },
    },
  }
}

function propertiesOf(table: Readonly<Record<string, Pick<Member, 'option' | 'describe'> & Partial<Member>>>): object {
  return Object.fromEntries(
    Object.entries(table).map(([name, { option, describe, fallback }]) => [
      name,
      {
        ...option.json,
        description: `${describe.replaceAll('`', '')}${fallback === undefined ? '' : ` Default ${fallback}.`}`,
      },
    ]),
  )
}

// Every setting of `onceonly gateway`, once: how it is read, its default and the line that explains it. Command line, help, file, JSON
// Schema and docs/gateway.md are made from this table. Those of the exchange come from the table of the HTTP adapters.

import { fingerprintTable, httpTable } from '../../http/exchange.ts'
import type { HttpOption, OptionTable, ReadAs } from '../../http/exchange.ts'
import { logLevels } from '../../gateway/request-log.ts'
import { address, bytes, choice, count, countOrZero, duration, flag, list, matching, text } from '../arguments.ts'
import type { Option } from '../arguments.ts'

export interface Member {
  readonly option: Option<unknown>
  /** The default as it would be typed. Undefined: none. */
  readonly fallback: string | undefined
  readonly describe: string
  /** Under which heading the help lists it. */
  readonly section: Section
  /** Where its value goes in the options of startGateway: `leaseMs`, or `fingerprint` and `body`. */
  readonly to: readonly string[]
  /** Can be set per route. */
  readonly perRoute: boolean
}

export const sections = {
  traffic: 'Where requests come from and go to',
  keys: 'Whose keys, and where they are kept',
  promise: 'What is promised, for all requests and per route in the file',
  watching: 'Watching it',
} as const
export type Section = keyof typeof sections

function member(section: Section, option: Option<unknown>, describe: string, more: Partial<Member> = {}): Member {
  return { option, fallback: undefined, describe, section, to: [], perRoute: false, ...more }
}

const headerName = matching(/^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$/, 'the name of a header')

const own: Readonly<Record<string, Member>> = {
  listen: member('traffic', address, 'Where clients connect.', { fallback: '127.0.0.1:8080', to: ['listen'] }),
  upstream: member(
    'traffic',
    matching(/^https?:\/\/[^/?#@\s]+\/?$/, 'a URL such as http://127.0.0.1:3000, without user, path and query'),
    'The service. Every request goes there.',
    { to: ['upstream'] },
  ),
  upstreamTimeout: member(
    'traffic',
    duration,
    'How long the service may take to begin a response, and to go on with it.',
    {
      fallback: '60s',
      to: ['upstreamTimeoutMs'],
    },
  ),
  connectTimeout: member('traffic', duration, 'How long connecting to the service may take.', {
    fallback: '5s',
    to: ['connectTimeoutMs'],
  }),
  upstreamIdle: member('traffic', duration, 'How long an idle connection is kept. Shorter than the service keeps it.', {
    fallback: '1s',
    to: ['upstreamIdleMs'],
  }),
  pathCase: member(
    'traffic',
    choice('ignored', 'significant'),
    'Whether the service tells `/orders` from `/ORDERS`. Unless it does, a rule of a route holds whatever the letter case and path parameters (`;x=1`).',
    { fallback: 'ignored', to: ['pathCase'] },
  ),
  trustForwarded: member('traffic', flag, 'A proxy in front writes `Forwarded` and `X-Forwarded-*`: keep them.', {
    to: ['trustForwarded'],
  }),
  maxInFlight: member(
    'traffic',
    count,
    'Requests under way. One more is 503. Memory is bounded by this × (max-body + max-stored), and connections by four times this.',
    { fallback: '2048', to: ['inFlightMax'] },
  ),
  drain: member('traffic', duration, 'How long SIGTERM waits for requests under way.', {
    fallback: '25s',
    to: ['drainMs'],
  }),
  tenantHeader: member(
    'keys',
    headerName,
    'The header that carries the authenticated tenant. This or `tenant` must be set.',
    {
      to: ['tenantHeader'],
    },
  ),
  tenant: member('keys', choice('shared'), 'All callers share one space of keys.', { to: ['tenant'] }),
  service: member(
    'keys',
    matching(/^[A-Za-z0-9_.-]{1,64}$/, 'a name of letters, digits, dots and dashes'),
    'Gateways of one service on one store have the same name. Others must not.',
    { fallback: 'default', to: ['service'] },
  ),
  store: member(
    'keys',
    matching(/^[a-z+-]+:/, 'a store such as sqlite:onceonly.db, postgres://… or redis://…'),
    '`postgres://…`, `redis://…` (`redis-cluster`, `redis-sentinel`), `mysql://…`, `mongodb://…`, `dynamodb:TABLE`, `memory:`, `sqlite:FILE`. `ONCEONLY_STORE` in the environment keeps a password out of the list of processes.',
    { fallback: 'sqlite:onceonly.db' },
  ),
  migrate: member('keys', flag, 'Create the tables of the store, or bring them up to date, before the start.'),
  cache: member(
    'keys',
    matching(/^rediss?(?:-cluster|-sentinel)?:\/\//, 'a URL such as redis://127.0.0.1:6379'),
    'Redis in front of a PostgreSQL store.',
  ),
  sessions: member(
    'keys',
    flag,
    'Clients may register and number their requests instead of sending keys. On a SQL store a request of a session holds a connection while it runs, on SQLite they take turns.',
  ),
  sessionWindow: member('keys', count, 'How many requests of a session may have no acknowledged response.', {
    fallback: '64',
  }),
  sessionLease: member('keys', duration, 'How long a session lives without a request.', { fallback: '24h' }),
  sweepEvery: member(
    'keys',
    duration,
    'How often expired entries are removed. `0s`: never (then run `onceonly sweep`). Unless set, every 5 minutes while there is nothing to remove, and never on DynamoDB, which removes them itself.',
    {
      fallback: '60s',
      to: ['sweepEveryMs'],
    },
  ),
  admin: member(
    'watching',
    address,
    'Dashboard, `/metrics`, `/healthz` and `/readyz`, never on the public port. Off unless set.',
  ),
  logLevel: member('watching', choice(...logLevels), 'JSON lines on standard output.', { fallback: 'info' }),
}

/** createOnce's own defaults, where the exchange leaves an option to it. */
const ofOnce: Readonly<Record<string, string>> = {
  leaseMs: '30s',
  keepMs: '24h',
  tombstoneMs: '7d',
  attemptMs: '10m',
  onTakeover: 'run',
  onExpired: 'refuse',
}

function ofExchange(table: OptionTable, into: readonly string[]): Readonly<Record<string, Member>> {
  const found = Object.entries(table).flatMap(([name, option]) =>
    option.gateway ? [[option.gateway.name, memberOf(option, [...into, name])] as const] : [],
  )
  return Object.fromEntries(found)
}

function memberOf({ gateway, fallback, describe }: HttpOption, to: readonly string[]): Member {
  const as = gateway!.as
  return {
    option: optionOf(as),
    fallback: fallback === undefined ? ofOnce[to.at(-1)!] : typed(fallback, as),
    describe,
    section: 'promise',
    to,
    perRoute: true,
  }
}

const plain = { 'yes-no': flag, duration, bytes, count, 'count-or-zero': countOrZero, text, list } as const

function optionOf(as: ReadAs): Option<unknown> {
  return typeof as === 'string' ? plain[as] : choice(...as)
}

/** A default as it would be typed. */
function typed(value: unknown, as: ReadAs): string | undefined {
  if (as === 'yes-no') return undefined
  if (as === 'list') return (value as readonly string[]).join(',') || undefined
  if (as === 'duration') return `${(value as number) / 1_000}s`
  if (as === 'bytes') return `${(value as number) / 1_048_576}mb`
  return String(value)
}

/** By the names of the file. On the command line `maxBody` is --max-body. */
export const members: Readonly<Record<string, Member>> = {
  ...own,
  ...ofExchange(httpTable, []),
  ...ofExchange(fingerprintTable, ['fingerprint']),
}

/** maxBody is --max-body. */
export function kebab(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)
}

/** The lines of the help, under their headings. */
export function helpOf(all: Readonly<Record<string, Member>>): string {
  return Object.entries(sections)
    .map(([section, title]) => {
      const lines = Object.entries(all)
        .filter(([, each]) => each.section === section)
        .map(([name, each]) => `  ${usageOf(name, each).padEnd(width)} ${each.describe.replaceAll('`', '')}`)
      return `${title}\n${lines.map(wrap).join('\n')}\n`
    })
    .join('\n')
}

const width = 34
const lineMax = 120

function usageOf(name: string, { option, fallback }: Member): string {
  if (option.type === 'boolean') return `--${kebab(name)}`
  const { enum: names } = option.json as { enum?: readonly string[] }
  return `--${kebab(name)} ${names ? names.join(' | ') : (fallback ?? placeholder(option))}`
}

function placeholder(option: Option<unknown>): string {
  return option === address ? 'ADDRESS' : option === list ? 'LIST' : option === duration ? 'DURATION' : 'VALUE'
}

function wrap(line: string): string {
  if (line.length <= lineMax) return line
  const cut = line.lastIndexOf(' ', lineMax)
  return `${line.slice(0, cut)}\n${wrap(`${' '.repeat(width + 3)}${line.slice(cut + 1)}`)}`
}

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { commandOptions, configSchema, readConfig, readConfigFile } from './config.ts'
import { createOnce } from '../../core/once.ts'
import { createExchange, fingerprintTable, httpTable } from '../../http/exchange.ts'
import { memoryStore } from '../../stores/memory.ts'
import { parseCommand } from '../arguments.ts'
import { helpOf, kebab, members } from './members.ts'

const folder = mkdtempSync(join(tmpdir(), 'onceonly-config-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))
const path = join(folder, 'gateway.json')

function read(file: unknown, flags: Record<string, unknown> = {}): ReturnType<typeof readConfig> {
  writeFileSync(path, typeof file === 'string' ? file : JSON.stringify(file))
  return readConfig({ ...flags, config: path })
}

const least = { upstream: 'http://127.0.0.1:3000', tenant: 'shared' }

describe('the file', () => {
  test.each(['redis-cluster://a:1,b:2', 'rediss-sentinel://a:1,b:2/main'])(
    'takes %s for a store and a cache',
    (url) => {
      expect(read({ ...least, store: url })).toMatchObject({ store: url })
      expect(read({ ...least, store: 'postgres://db/once', cache: url })).toMatchObject({ cache: url })
    },
  )

  test('offers sessions where it says so, and a setting of theirs alone is a mistake', () => {
    expect(read(least).sessions).toBeUndefined()
    expect(read({ ...least, sessions: true }).sessions).toEqual({})
    expect(read({ ...least, sessions: true, sessionWindow: 8, sessionLease: '1h' }).sessions).toEqual({
      window: 8,
      leaseMs: 3_600_000,
    })
    expect(read(least, { sessions: true, 'session-window': 8 }).sessions).toEqual({ window: 8 })
    expect(() => read({ ...least, sessionLease: '1h' })).toThrow('--session-lease is for sessions, and they are off')
  })

  test('has the words of the command line', () => {
    const config = read({
      $schema: './config.schema.json',
      ...least,
      listen: '0.0.0.0:80',
      store: 'postgres://db/once',
      migrate: true,
      cache: 'redis://cache',
      admin: '[::1]:8081',
      methods: ['POST', 'PUT'],
      lease: '1.5s',
      keep: '7d',
      maxBody: '64kb',
      maxStored: 1000,
      required: true,
      logLevel: 'warn',
      maxInFlight: 10,
      routes: [
        { path: '/orders/*', methods: ['PUT'], keep: '1h', required: false },
        { path: '/free/**', protect: false },
      ],
    })
    expect(config).toEqual({
      store: 'postgres://db/once',
      migrate: true,
      cache: 'redis://cache',
      admin: { host: '::1', port: 8081 },
      logLevel: 'warn',
      gateway: {
        upstream: 'http://127.0.0.1:3000',
        tenant: 'shared',
        listen: { host: '0.0.0.0', port: 80 },
        methods: ['POST', 'PUT'],
        leaseMs: 1_500,
        keepMs: 604_800_000,
        bodyBytesMax: 65_536,
        storedBytesMax: 1_000,
        required: true,
        inFlightMax: 10,
        routes: [
          { path: '/orders/*', methods: ['PUT'], keepMs: 3_600_000, required: false },
          { path: '/free/**', protect: false },
        ],
      },
    })
  })

  test('gives way to the command line', () => {
    expect(read({ ...least, lease: '10s', wait: '1s' }, { lease: 20_000 }).gateway).toMatchObject({
      leaseMs: 20_000,
      waitMs: 1_000,
    })
  })

  test.each<[string, unknown, string]>([
    ['no JSON', '{', 'cannot be read as JSON'],
    ['a list', [], 'expected it to be an object, got []'],
    ['a misspelt name', { ...least, leas: '1s' }, 'unknown option "leas", did you mean "lease"?'],
    [
      'a misspelt name in a route',
      { ...least, routes: [{ path: '/a', kep: '1s' }] },
      '/routes/0: unknown option "kep", did you mean "keep"?',
    ],
    ['a route without a path', { ...least, routes: [{ keep: '1s' }] }, '/routes/0: path is missing'],
    [
      'a duration without a unit',
      { ...least, lease: '30' },
      'expected /lease to be a duration such as 500ms, 30s, 5m, 24h, 7d or 0, got "30"',
    ],
    ['a duration as a number', { ...least, lease: 30 }, 'expected /lease to be a duration such as'],
    ['a duration beyond all days', { ...least, lease: '99999999d' }, 'expected /lease to be a duration'],
    ['a wrong choice', { ...least, onTakeover: 'ask' }, 'expected /onTakeover to be "run" or "refuse", got "ask"'],
    ['GET', { ...least, methods: ['POST', 'GET'] }, 'expected /methods to be a list of method names in capitals'],
    ['a method in small letters', { ...least, methods: ['post'] }, 'expected /methods to be a list of method names'],
    ['no method', { ...least, methods: [] }, 'names in capitals, at least one, without GET'],
    ['a number in a list', { ...least, fingerprintHeaders: [1] }, 'expected /fingerprintHeaders to be a list of texts'],
    ['routes that are no list', { ...least, routes: {} }, 'expected /routes to be a list of routes, got {}'],
    ['a route that is no object', { ...least, routes: ['/a'] }, 'expected /routes/0 to be an object with a path'],
    ['true for a number', { ...least, maxInFlight: true }, 'expected /maxInFlight to be a positive integer, got true'],
    ['no port', { ...least, listen: 'localhost' }, 'expected /listen to be an address such as'],
    ['a port beyond all ports', { ...least, listen: '127.0.0.1:99999' }, 'expected /listen to be an address such as'],
    ['an upstream with a path', { ...least, upstream: 'http://a/b' }, 'expected /upstream to be a URL such as'],
    ['a relative path', { ...least, routes: [{ path: 'a' }] }, 'expected /routes/0/path to be a path such as'],
    [
      'a rest that is not last',
      { ...least, routes: [{ path: '/a/**/b' }] },
      'expected /routes/0/path to be a path such as',
    ],
    ['text for true', { ...least, required: 'yes' }, 'expected /required to be true or false, got "yes"'],
    ['no upstream', { tenant: 'shared' }, '--upstream http://127.0.0.1:3000'],
    ['__proto__', '{"__proto__":{"upstream":"http://a"},"tenant":"shared"}', 'unknown option "__proto__"'],
  ])('%s is refused with its place and the cure', (_name, file, message) => {
    expect(() => read(file)).toThrow(message)
  })

  test('a password in a URL that is refused is in no message', () => {
    expect(() => read({ ...least, upstream: 'http://user:secret@a/' })).toThrow(/^(?!.*secret)/)
  })
})

describe('the table', () => {
  test('every option of the HTTP adapters that needs no function is one of the gateway, also per route', () => {
    const ofExchange = [...Object.values(httpTable), ...Object.values(fingerprintTable)]
    const names = ofExchange.flatMap(({ gateway }) => (gateway ? [gateway.name] : []))
    expect(names).toHaveLength(
      ofExchange.length - ['tenant', 'transaction', 'upgrade', 'fingerprint', 'sessions'].length,
    )
    for (const name of names) expect(members[name], name).toMatchObject({ perRoute: true })
  })

  test('an option of the exchange arrives where the exchange reads it', () => {
    const route = { path: '/a', keyHeader: 'X-Key', hashKeys: true, fingerprintBody: 'jcs', fingerprintOmit: ['/at'] }
    expect(read({ ...least, wait: '0s', stream: 'record', routes: [route] }).gateway).toMatchObject({
      waitMs: 0,
      stream: 'record',
      routes: [{ path: '/a', header: 'X-Key', hashKeys: true, fingerprint: { body: 'jcs', omit: ['/at'] } }],
    })
  })

  const isHttp = (member: (typeof members)[string]): boolean => member.section === 'promise'
  test.each(Object.entries(members).filter(([, member]) => isHttp(member)))(
    '%s of the adapters is the same by flag, in the file and per route',
    (name, { to, fallback }) => {
      const { typed, inFile, value } = sampleOf(name, fallback)
      const expected = to.reduceRight<unknown>((inner, each) => ({ [each]: inner }), value)
      const args = typed === true ? [`--${kebab(name)}`] : [`--${kebab(name)}`, typed]
      const flags = parseCommand({ command: 'gateway', help: '', options: commandOptions, args })!.values
      const { upstream, tenant } = least
      expect(readConfig({ upstream, tenant, ...flags }).gateway).toMatchObject(expected as object)
      expect(read({ ...least, [name]: inFile }).gateway).toMatchObject(expected as object)
      const [route] = read({ ...least, routes: [{ path: '/a', [name]: inFile }] }).gateway.routes!
      expect(route).toMatchObject(expected as object)
      // And the adapters accept it as it arrives.
      const given = name === 'fingerprintOmit' ? { fingerprint: { body: 'jcs', omit: value } } : expected
      expect(() => createExchange(memoryOnce, { tenant: 'shared', ...(given as object) })).not.toThrow()
    },
  )

  test('every default that is documented can be typed, and 0 is 0 in the file too', () => {
    for (const [name, { option, fallback }] of Object.entries(members)) {
      if (fallback !== undefined) expect(option.parse(fallback), `${name} ${fallback}`).toBeDefined()
    }
    const none = { wait: 0, tombstone: 0, sweepEvery: 0, responseVersion: 0 }
    expect(read({ ...least, ...none }).gateway).toMatchObject({
      waitMs: 0,
      tombstoneMs: 0,
      sweepEveryMs: 0,
      version: 0,
    })
    expect(() => read({ ...least, wait: 5 })).toThrow('expected /wait to be a duration such as')
  })

  test('the help names every option and says what it is for', () => {
    const help = helpOf(members)
    for (const name of Object.keys(members)) expect(help).toMatch(new RegExp(`^  --${kebab(name)}\\b`, 'm'))
    expect(help.split('\n').filter((line) => line.length > 120)).toEqual([])
  })
})

interface Sample {
  readonly typed: string | true
  readonly inFile: unknown
  readonly value: unknown
}

/** A value that is not the default, as it is typed, as it stands in a file, and as it arrives. */
function sampleOf(name: string, fallback: string | undefined): Sample {
  const { type, enum: choices } = members[name]!.option.json as { type?: string | string[]; enum?: string[] }
  const plain = (value: string): Sample => ({ typed: value, inFile: value, value })
  if (choices) return plain(choices.find((each) => each !== fallback)!)
  if (type === 'boolean') return { typed: true, inFile: true, value: true }
  if (type === 'integer') return { typed: '9', inFile: 9, value: 9 }
  if (name === 'maxBody' || name === 'maxStored') return { typed: '3kb', inFile: '3kb', value: 3_072 }
  if (name === 'problemBase') return plain('https://docs.example/problems')
  if (type === 'string') return plain('X-Other')
  if (type !== 'array') return { typed: '7s', inFile: '7s', value: 7_000 }
  const each = name === 'methods' ? ['PUT', 'DELETE'] : name === 'fingerprintOmit' ? ['/a', '/b'] : ['X-A', 'X-B']
  return { typed: each.join(','), inFile: each, value: each }
}

const memoryOnce = createOnce({ store: memoryStore(), scope: 'config' })
afterAll(() => memoryOnce.close())

interface Schema {
  readonly type?: string | readonly string[]
  readonly enum?: readonly unknown[]
  readonly pattern?: string
  readonly minimum?: number
  readonly maximum?: number
  readonly minLength?: number
  readonly items?: Schema
  readonly description?: string
}

/** The part of JSON Schema that is used. */
function fits(schema: Schema, value: unknown): boolean {
  const {
    type,
    enum: allowed,
    pattern,
    minimum = 0,
    maximum = Infinity,
    minLength = 0,
    items,
    description: _,
    ...rest
  } = schema
  expect(rest).toEqual({})
  const isOf = (each: string): boolean =>
    each === 'integer' ? Number.isInteger(value) : each === 'array' ? Array.isArray(value) : typeof value === each
  if (allowed && !allowed.includes(value)) return false
  if (type !== undefined && ![type].flat().some(isOf)) return false
  if (typeof value === 'string') return value.length >= minLength && (!pattern || new RegExp(pattern, 'u').test(value))
  if (typeof value === 'number') return value >= minimum && value <= maximum
  return !items || (value as unknown[]).every((each) => fits(items, each))
}

describe('the published schema', () => {
  const properties = configSchema()['properties'] as Readonly<Record<string, Schema>>
  const optionNames = Object.keys(properties).filter((name) => name !== '$schema' && name !== 'routes')

  test('has every option of the command line, and no other', () => {
    expect(optionNames.map(kebab).toSorted()).toEqual(
      Object.keys(commandOptions)
        .filter((name) => name !== 'config')
        .toSorted(),
    )
  })

  test('says what every option is for', () => {
    const silent = Object.entries(properties).filter(([name, each]) => name !== '$schema' && !each.description)
    expect(silent).toEqual([])
  })

  test('takes what the program takes, and refuses what it refuses', () => {
    const texts = [
      '',
      'a',
      'POST',
      '30s',
      '30',
      '0',
      '1mb',
      '127.0.0.1:80',
      'http://a:1',
      'http://a/b',
      'redis://a',
      'a:b',
    ]
    const named = [...texts, 'shared', 'refuse', 'jcs', 'info', 'stripe', 'X-A', 'a b']
    const values = [...named, true, false, 0, 1, -1, 1.5, {}, [], ['POST'], ['']]
    const taken = (name: string, value: unknown): boolean => {
      try {
        readConfigFile('f', { [name]: value })
        return true
      } catch {
        return false
      }
    }
    // What the schema leaves to the program: which methods may be protected.
    for (const name of optionNames.filter((each) => each !== 'methods')) {
      const differing = values.filter((value) => fits(properties[name]!, value) !== taken(name, value))
      expect(differing, name).toEqual([])
    }
  })
})

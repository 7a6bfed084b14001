import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { commandOptions, configSchema, kebab, readConfig } from './config.ts'
import { checkSchema } from './config-schema.ts'
import type { Schema } from './config-schema.ts'

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

  test('has the words of the command line', () => {
    const config = read({
      $schema: './config.schema.json',
      ...least,
      listen: '0.0.0.0:80',
      store: 'postgres://db/once',
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
      'expected /lease to be a duration such as 500ms, 30s, 5m, 24h or 7d, got "30"',
    ],
    ['a duration as a number', { ...least, lease: 30 }, 'expected /lease to be a duration such as'],
    ['a duration beyond all days', { ...least, lease: '99999999d' }, 'expected /lease to be a duration'],
    ['a wrong choice', { ...least, onTakeover: 'ask' }, 'expected /onTakeover to be "run" or "refuse", got "ask"'],
    ['GET', { ...least, methods: ['POST', 'GET'] }, 'expected /methods/1 to be a method in capitals, and none of GET'],
    ['a method in small letters', { ...least, methods: ['post'] }, 'expected /methods/0 to be a method in capitals'],
    ['no method', { ...least, methods: [] }, 'expected /methods to be a list of 1 or more'],
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

describe('the published schema', () => {
  const schema = configSchema()

  test('has every option of the command line, and no other', () => {
    const names = Object.keys(schema.properties!).filter((name) => name !== '$schema' && name !== 'routes')
    expect(names.map(kebab).toSorted()).toEqual(
      Object.keys(commandOptions)
        .filter((name) => name !== 'config')
        .toSorted(),
    )
  })

  test('says what every option is for', () => {
    const silent = Object.entries(schema.properties!).filter(
      ([name, each]) => name !== '$schema' && !('description' in each),
    )
    expect(silent).toEqual([])
  })

  test('uses nothing that the check does not understand', () => {
    const check = (): void => checkSchema('x', { type: 'string', format: 'uri' } as Schema, 'a')
    expect(check).toThrow('config.schema.json: format is unknown')
    const visit = (each: Schema): void => {
      expect(() => checkSchema('x', { $defs: schema.$defs!, ...each }, undefined)).not.toThrow(
        /is unknown|leads nowhere/,
      )
      for (const inner of [...Object.values(each.properties ?? {}), ...(each.items ? [each.items] : [])]) visit(inner)
    }
    visit(schema)
  })
})

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { createOnce } from '../../core/once.ts'
import { createSessions } from '../../sessions/sessions.ts'
import { memoryStore } from '../../stores/memory.ts'
import { sqliteStore } from '../../stores/sqlite.ts'
import { readHttpOptions } from './options.ts'
import type { HttpOptions } from './options.ts'

const once = createOnce({ store: memoryStore(), scope: 's' })
const read = (options: object): unknown => readHttpOptions(once, options as HttpOptions)

const methodsOfSessions = Object.fromEntries(
  ['register', 'apply', 'keepAlive', 'close', 'show'].map((name) => [name, () => undefined]),
)

test('a tenant is not guessed: without one the adapter does not start', () => {
  expect(() => read({})).toThrow(/expected tenant to be a function that returns the tenant of a request, or "shared"/)
  expect(() => read({ tenant: 'tenant' })).toThrow(/got "tenant"/)
  expect(read({ tenant: 'shared' })).toBeTruthy()
})

test.each<[object, RegExp]>([
  [{ lease: 1 }, /unknown option "lease", did you mean "leaseMs"/],
  [{ leaseMs: '30s' }, /expected leaseMs to be a positive integer of milliseconds, got "30s"/],
  [{ methods: ['POST', 'GET'] }, /without GET, HEAD/],
  [{ methods: ['post'] }, /method names in capitals/],
  [{ methods: [] }, /at least one/],
  [{ errorPolicy: 'release5xx' }, /did you mean "release-5xx"/],
  [{ keyLengthMax: 256 }, /from 1 to 255/],
  [{ required: 'yes' }, /true or false/],
  [{ replayHeader: 'a b' }, /the name of a header/],
  [{ problemBase: 'a b' }, /absolute URI/],
  [{ headers: ['a:b'] }, /a list of header names/],
  [{ fingerprint: { boddy: 'jcs' } }, /unknown option "boddy", did you mean "body"/],
  [{ fingerprint: { body: 'json' } }, /"bytes", "jcs" or a function/],
  [{ fingerprint: { omit: ['/a'] } }, /needs fingerprint.body to be "jcs"/],
  [{ fingerprint: { body: 'jcs', omit: ['a'] } }, /JSON Pointers/],
  [{ transaction: true }, /needs a store with transactions, got memory/],
  [{ keyFormat: 'ulid' }, /"any", "uuid" or a function/],
  [{ leaseMs: 0 }, /expected leaseMs/],
  [{ keepMs: 0 }, /expected keepMs/],
  [{ attemptMs: 0 }, /expected attemptMs/],
  [{ waitMs: -1 }, /expected waitMs/],
  [{ tombstoneMs: -1 }, /expected tombstoneMs/],
  [{ header: '' }, /expected header to be the name of a header/],
  [{ header: 'a:b' }, /expected header to be the name of a header/],
  [{ header: 5 }, /expected header to be the name of a header/],
  [{ header: 'h'.repeat(65) }, /expected header to be the name of a header/],
  [{ keysPer: 'path' }, /expected keysPer/],
  [{ methods: 'POST' }, /method names in capitals/],
  [{ methods: [5] }, /method names in capitals/],
  [{ methods: ['PO ST'] }, /method names in capitals/],
  ...['HEAD', 'OPTIONS', 'TRACE', 'CONNECT'].map((method): [object, RegExp] => [
    { methods: [method] },
    /without GET, HEAD/,
  ]),
  [{ onTakeover: 'wait' }, /expected onTakeover/],
  [{ onExpired: 'wait' }, /expected onExpired/],
  [{ parse: 'loose' }, /expected parse/],
  [{ keyLengthMax: 0 }, /from 1 to 255/],
  [{ hashKeys: 1 }, /expected hashKeys to be true or false/],
  [{ headers: 'X-A' }, /a list of header names/],
  [{ bodyBytesMax: 0 }, /expected bodyBytesMax/],
  [{ storedBytesMax: 1.5 }, /expected storedBytesMax/],
  [{ stream: 'store' }, /expected stream/],
  [{ version: -1 }, /expected version/],
  [{ upgrade: 'yes' }, /expected upgrade/],
  [{ onOlderVersion: 'run' }, /expected onOlderVersion/],
  [{ transaction: 'yes' }, /expected transaction to be true or false/],
  [{ onStoreDown: 'fail' }, /expected onStoreDown/],
  [{ profile: 'paypal' }, /expected profile/],
  [{ replaySetCookie: 'yes' }, /expected replaySetCookie to be true or false/],
  [{ problemBase: '' }, /absolute URI/],
  [{ problemBase: 5 }, /absolute URI/],
  [{ problemBase: 'https://a/\u00e9' }, /absolute URI/],
  [{ problemBase: 'https://a/<b>' }, /absolute URI/],
  [{ fingerprint: { query: 'sorted' } }, /expected query/],
  [{ fingerprint: { body: 'jcs', omit: '/a' } }, /JSON Pointers/],
  [{ fingerprint: { body: 'jcs', omit: ['/a~2'] } }, /JSON Pointers/],
  [{ fingerprint: { body: 'jcs', omit: [5] } }, /JSON Pointers/],
  ...['register', 'apply', 'keepAlive', 'close', 'show'].map((missing): [object, RegExp] => [
    { sessions: { ...methodsOfSessions, [missing]: undefined } },
    /expected sessions/,
  ]),
])('%j is refused at the start', (options, message) => {
  expect(() => read({ tenant: 'shared', ...options })).toThrow(message)
})

test('every option that is left out has its default', () => {
  expect(read({ tenant: 'shared' })).toEqual({
    tenant: 'shared',
    header: 'Idempotency-Key',
    keyHeader: 'idempotency-key',
    keysPer: 'tenant',
    required: false,
    methods: new Set(['POST', 'PATCH']),
    waitMs: 5_000,
    leaseMs: undefined,
    keepMs: undefined,
    tombstoneMs: undefined,
    attemptMs: undefined,
    onTakeover: undefined,
    onExpired: undefined,
    parse: 'lenient',
    keyFormat: 'any',
    keyLengthMax: 255,
    hashKeys: false,
    fingerprint: { body: 'bytes', omit: [], query: 'canonical' },
    headers: [],
    errorPolicy: 'release-5xx',
    bodyBytesMax: 1_048_576,
    storedBytesMax: 1_048_576,
    stream: 'not-stored',
    version: 0,
    upgrade: undefined,
    onOlderVersion: 'replay',
    transaction: false,
    onStoreDown: 'refuse',
    profile: 'draft',
    replayHeader: 'Idempotent-Replayed',
    replaySetCookie: false,
    problemBase: '/.well-known/idempotency/problems',
    sessions: undefined,
    call: { waitMs: 5_000 },
    windowSeconds: 86_400,
  })
})

test('every option that is given is kept', () => {
  const given = {
    header: 'X-Key',
    keysPer: 'route',
    required: true,
    waitMs: 0,
    leaseMs: 1,
    keepMs: 2_999,
    tombstoneMs: 0,
    attemptMs: 3,
    onTakeover: 'refuse',
    onExpired: 'run',
    parse: 'strict',
    keyFormat: 'uuid',
    keyLengthMax: 1,
    hashKeys: true,
    errorPolicy: 'began',
    bodyBytesMax: 1,
    storedBytesMax: 1,
    stream: 'record',
    version: 7,
    upgrade: (answer: unknown) => answer,
    onOlderVersion: 'refuse',
    onStoreDown: 'run',
    profile: 'stripe',
    replayHeader: 'X-Replayed',
    replaySetCookie: true,
  }
  const { waitMs, leaseMs, keepMs, tombstoneMs, attemptMs, onTakeover, onExpired } = given
  const more = { methods: ['PUT', 'DELETE'], headers: ['X-B', 'x-b', 'X-A'], problemBase: 'https://a.example/p/' }
  const fingerprint = { body: 'jcs', omit: ['/a/b~0~1', '/'], query: 'bytes' }
  expect(read({ tenant: 'shared', ...given, ...more, fingerprint })).toEqual({
    tenant: 'shared',
    ...given,
    keyHeader: 'x-key',
    methods: new Set(['PUT', 'DELETE']),
    headers: ['x-a', 'x-b'],
    problemBase: 'https://a.example/p',
    fingerprint,
    transaction: false,
    sessions: undefined,
    call: { waitMs, leaseMs, keepMs, tombstoneMs, attemptMs, onTakeover, onExpired },
    windowSeconds: 2,
  })
  const functions = { tenant: () => 'acme', keyFormat: () => true, fingerprint: { body: () => 'x' } }
  expect(read(functions)).toMatchObject({ ...functions, fingerprint: { ...functions.fingerprint, omit: [] } })
  expect(read({ tenant: 'shared', fingerprint: { omit: [] }, keyLengthMax: 255 })).toBeTruthy()
})

test('the window is that of createOnce where the adapter names none', () => {
  const other = createOnce({ store: memoryStore(), scope: 's', keepMs: 5_500 })
  expect(readHttpOptions(other, { tenant: 'shared' })).toMatchObject({ windowSeconds: 5, call: { waitMs: 5_000 } })
})

test('without createOnce there is nothing to start with', () => {
  expect(() => readHttpOptions({} as never, { tenant: 'shared' })).toThrow(/what createOnce\(\) returned/)
  expect(() => readHttpOptions(undefined as never, { tenant: 'shared' })).toThrow(/what createOnce\(\) returned/)
})

test('sessions are refused where an attempt that crashed must not run again, by either option, unless it is in a transaction', () => {
  const store = memoryStore()
  const sessions = createSessions({ store, scope: 'tills' })
  const startWith = (onceOptions: object, options: object): unknown =>
    readHttpOptions(createOnce({ store, scope: 's', sweepEveryMs: false, ...onceOptions }), {
      tenant: 'shared',
      sessions,
      ...options,
    } as HttpOptions)
  expect(() => startWith({}, { onTakeover: 'refuse' })).toThrow(/onTakeover: 'refuse' cannot hold/)
  expect(() => startWith({ onTakeover: 'refuse' }, {})).toThrow(/onTakeover: 'refuse' cannot hold/)
  expect(startWith({ onTakeover: 'refuse' }, { onTakeover: 'run' })).toMatchObject({ sessions })
  expect(startWith({}, {})).toMatchObject({ sessions })
})

test('a transaction needs a store that has them, and sessions in that very store', () => {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-options-'))
  const [store, another] = ['a.db', 'b.db'].map((name) => sqliteStore({ path: join(folder, name) }))
  const transacting = createOnce({ store: store!, scope: 's', sweepEveryMs: false })
  const startWith = (sessions?: object): unknown =>
    readHttpOptions(transacting, { tenant: 'shared', transaction: true, ...(sessions && { sessions }) } as HttpOptions)
  expect(startWith()).toMatchObject({ transaction: true, required: true })
  const own = createSessions({ store: store!, scope: 'tills' })
  expect(startWith(own)).toMatchObject({ sessions: own })
  expect(() => startWith(createSessions({ store: another!, scope: 'tills' }))).toThrow(
    /got sessions on another sqlite store/,
  )
  expect(() => startWith({ ...own, guarantee: 'claim-and-settle' })).toThrow(
    /a sqlite store, which has no transactions/,
  )
  for (const each of [store!, another!]) each.close()
  rmSync(folder, { recursive: true, force: true })
})

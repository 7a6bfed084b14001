// How a request is named, of headers and path alone: a key, a number in a session, or a call of the sessions themselves.

import { expect, test } from 'vitest'
import { createOnce } from '../../core/once.ts'
import { createSessions } from '../../sessions/sessions.ts'
import { memoryStore } from '../../stores/memory.ts'
import type { AskedRequest } from '../exchange.ts'
import { inStore, lacksTenant, readKeyOf } from './named-request.ts'
import { readHttpOptions, type HttpOptions } from './options.ts'
import { scopedSession } from './scoped-key.ts'
import { callSession, isNumbered, readNumbered, sessionCall, sessionsPath } from './sessions.ts'

const store = memoryStore()
const once = createOnce({ store, scope: 'shop', sweepEveryMs: false })
const sessions = createSessions({ store, scope: 'tills', window: 3, leaseMs: 60_000 })
const settingsOf = (options: Partial<HttpOptions> = {}) =>
  readHttpOptions<never>(once, { tenant: 'shared', sessions, ...options } as HttpOptions<never>)

const four = { session: 'till', epoch: '1', sequence: '2', acknowledged: '0' }
type Four = Partial<Record<keyof typeof four, string | undefined>>

function numbered(more: Four = {}, keyLines: string[] = [], settings = settingsOf()) {
  const headers = Object.entries({ ...four, ...more }).map(([name, value]) => [`idempotency-${name}`, value])
  const all = Object.fromEntries(headers) as Record<string, string | undefined>
  return readNumbered(settings, { keyLines, header: (name) => all[name.toLowerCase()] })
}

test('a request has a key, or says why it has none', () => {
  expect(readKeyOf(settingsOf(), { keyLines: ['"a"'] })).toEqual({ key: 'a' })
  expect(readKeyOf(settingsOf(), { keyLines: [] })).toEqual({ problem: 'keyMissing', details: {} })
  expect(readKeyOf(settingsOf(), { keyLines: [''] })).toEqual({
    problem: 'keyInvalid',
    details: { detail: 'The header was refused because it is empty.' },
  })
})

test.each([
  [{}, { session: 'till', epoch: 1, sequence: 2, acknowledged: 0 }],
  [
    { session: ' "a b";x ', epoch: ' 3;x=1', sequence: '999999999999999\t', acknowledged: '2' },
    { session: 'a b', epoch: 3, sequence: 999_999_999_999_999, acknowledged: 2 },
  ],
])('the headers of a session are read: %j', (given, read) => expect(numbered(given)).toEqual(read))

test.each<[Four, string]>([
  [{ session: undefined }, 'Idempotency-Session is missing.'],
  [{ epoch: undefined }, 'Idempotency-Epoch is missing.'],
  [{ sequence: undefined }, 'Idempotency-Sequence is missing.'],
  [{ acknowledged: undefined }, 'Idempotency-Acknowledged is missing.'],
  [{ session: '""' }, 'Idempotency-Session was refused because it is empty.'],
  [{ session: 's'.repeat(256) }, 'Idempotency-Session was refused because it is longer than 255 characters.'],
  [{ epoch: '0' }, 'Idempotency-Epoch must be one integer from 1 to 999999999999999, in plain digits.'],
  [{ sequence: '0' }, 'Idempotency-Sequence must be one integer from 1 to 999999999999999, in plain digits.'],
  ...['-1', '+1', '01', '1.0', '1, 1', '', '1 2', '1;', 'x', '1000000000000000'].map((acknowledged): [Four, string] => [
    { acknowledged },
    'Idempotency-Acknowledged must be one integer from 0 to 999999999999999, in plain digits.',
  ]),
  [{ acknowledged: '2' }, 'Idempotency-Acknowledged is 2, and must be below Idempotency-Sequence, which is 2.'],
  [{ acknowledged: '3' }, 'Idempotency-Acknowledged is 3, and must be below Idempotency-Sequence, which is 2.'],
])('what cannot be read names the header: %j', (given, detail) => {
  expect(numbered(given)).toEqual({ problem: 'sessionInvalid', details: { detail } })
})

test('a number and a key, or a number where no sessions are offered, are refused before anything is read', () => {
  expect(numbered({ session: undefined }, ['k'])).toEqual({ problem: 'sessionAndKey', details: {} })
  const without = settingsOf({ sessions: undefined as never })
  expect(numbered({ session: undefined }, ['k'], without)).toEqual({ problem: 'sessionsNotOffered', details: {} })
})

test('a session need not have the format of keys, but their syntax', () => {
  expect(numbered({}, [], settingsOf({ keyFormat: 'uuid', keyLengthMax: 1 }))).toMatchObject({ session: 'till' })
  expect(numbered({}, [], settingsOf({ parse: 'strict' }))).toMatchObject({ problem: 'sessionInvalid' })
})

test('either of two headers means a number', () => {
  const only = (header: string): boolean => isNumbered({ header: (name) => (name === header ? '' : undefined) })
  expect(['session', 'sequence', 'epoch', 'acknowledged'].map((name) => only(`idempotency-${name}`))).toEqual([
    true,
    true,
    false,
    false,
  ])
})

test.each([
  ['POST', sessionsPath, { does: 'register' }],
  ['POST', `${sessionsPath}?a`, { does: 'register' }],
  ['PUT', `${sessionsPath}/a%20b`, { does: 'renew', name: 'a%20b' }],
  ['DELETE', `http://shop.example${sessionsPath}/a?b`, { does: 'close', name: 'a' }],
  ['PUT', sessionsPath, undefined],
  ['GET', sessionsPath, undefined],
  ['GET', `${sessionsPath}/a`, undefined],
  ['POST', `${sessionsPath}/a`, undefined],
  ['PUT', `${sessionsPath}/`, undefined],
  ['PUT', `${sessionsPath}/a/b`, undefined],
  ['PUT', `${sessionsPath}a`, undefined],
  ['PUT', `/x${sessionsPath}/a`, undefined],
  ['POST', `/?${sessionsPath}`, undefined],
  ['POST', '/', undefined],
])('%s %s calls sessions: %j', (method, target, call) => expect(sessionCall(method, target)).toEqual(call))

const call = async (does: Parameters<typeof callSession>[1], body = '', epoch?: string, tenant?: string) => {
  const asked = { tenant, body: Buffer.from(body), header: (name: string) => (/epoch/i.test(name) ? epoch : undefined) }
  const answer = await callSession({ sessions, hashKeys: false }, does, asked)
  return 'problem' in answer ? answer : { ...answer, body: answer.body.toString() }
}

test('a client registers under its name, or is given one', async () => {
  const headers = [
    ['Content-Type', 'application/json'],
    ['Cache-Control', 'no-store'],
  ]
  const named = (await call({ does: 'register' }, '{"client":"till-7"}', undefined, 'acme')) as { body: string }
  const { epoch } = (await sessions.show('acme/till-7'))!
  const answer = { session: 'till-7', epoch, window: 3, leaseMs: 60_000 }
  expect(named).toEqual({ status: 201, headers, body: JSON.stringify(answer) })
  const renewed = { status: 200, headers, body: '{"leaseMs":60000}' }
  expect(await call({ does: 'renew', name: 'till%2D7' }, '', `${epoch}`, 'acme')).toEqual(renewed)
  const closed = { status: 204, headers: [['Cache-Control', 'no-store']], body: '' }
  expect(await call({ does: 'close', name: 'till-7' }, '', `${epoch}`, 'acme')).toEqual(closed)
  for (const body of ['', '{}', '{"other":1}']) {
    const given = (await call({ does: 'register' }, body)) as { body: string }
    expect((JSON.parse(given.body) as { session: string }).session, body).toMatch(/^[\x21-\x7e]{20,}$/)
  }
})

const noClient = 'The member client must be a string of 1 to 255 characters of printable ASCII.'
const noObject = 'The body must be empty, or a JSON object such as {"client":"till-7"}.'
test.each([
  ['null', noObject],
  ['[]', noObject],
  ['"till"', noObject],
  ['{', noObject],
  ['{"client":"a","client":"b"}', noObject],
  ['{"client":""}', noClient],
  ['{"client":7}', noClient],
  ['{"client":null}', noClient],
  ['{"client":"\u00e9"}', noClient],
  [`{"client":"${'a'.repeat(256)}"}`, noClient],
])('a registration of %s is refused', async (body, detail) => {
  expect(await call({ does: 'register' }, body)).toEqual({ problem: 'sessionInvalid', details: { detail } })
})

test('a path without the name of a session, and an epoch that is none, are refused', async () => {
  const detail = 'The path does not end with the name of a session, percent-encoded.'
  for (const name of ['%', '%c3%a9', '%00'])
    expect(await call({ does: 'close', name }, '', '1')).toEqual({ problem: 'sessionInvalid', details: { detail } })
  expect(await call({ does: 'close', name: 'till' }, '', '0')).toMatchObject({ problem: 'sessionInvalid' })
  expect(await call({ does: 'close', name: 'till' })).toMatchObject({
    details: { detail: 'Idempotency-Epoch is missing.' },
  })
})

test('a tenant must be named, as text, unless all share', () => {
  expect(lacksTenant(settingsOf(), undefined)).toBe(false)
  const named = settingsOf({ tenant: () => 'acme' })
  expect(['acme', '', undefined, null].map((tenant) => lacksTenant(named, tenant))).toEqual([false, true, true, true])
  expect(() => lacksTenant(named, 42)).toThrow('expected tenant to return a string, got a number')
})

test('what the store is given has the tenant in it, and the route where keys are for each', () => {
  const asked = { method: 'POST', target: '/orders?a' } as AskedRequest<never>
  const given = (options: Partial<HttpOptions>, named: Parameters<typeof inStore>[2]) =>
    inStore({ once, settings: settingsOf(options) }, asked, named, 'acme')
  const key = { key: 'k' }
  expect(given({}, key)).toEqual({ key: { scope: 'shop/acme', id: 'k' }, numbered: undefined })
  expect(given({ keysPer: 'route' }, key).key.scope).toBe('shop/acme/POST%20%2Forders')
  expect(given({ hashKeys: true }, key).key).toMatchObject({ scope: expect.stringMatching(/^shop\/#/) as string })
  const number = { session: 'till', epoch: 1, sequence: 2, acknowledged: 0 }
  expect(given({}, number)).toEqual({
    key: { scope: 'tills/sessions', id: 'acme/till/1/2' },
    numbered: { ...number, session: 'acme/till' },
  })
  expect(given({ hashKeys: true }, number).numbered!.session).toMatch(/^#/)
})

test('the name of a session is spelt out as far as a store takes it', () => {
  expect(scopedSession('a/b', 'till', 'plain')).toBe('a%2Fb/till')
  expect(scopedSession(undefined, 'till', 'plain')).toBe('/till')
  expect(scopedSession('t'.repeat(195), 'till', 'plain')).toBe(`${'t'.repeat(195)}/till`)
  const digests = [
    scopedSession('t'.repeat(196), 'till', 'plain'),
    scopedSession('t', 'till', 'hashed'),
    scopedSession('t', 'tell', 'hashed'),
    scopedSession('\ud800', 'till', 'plain'),
  ]
  for (const digest of digests) expect(digest).toMatch(/^#[\w-]{43}$/)
  expect(new Set(digests).size).toBe(4)
})

import fc from 'fast-check'
import { expect, test } from 'vitest'
import { keyString } from '../../core/key.ts'
import { scopedKey } from './scoped-key.ts'

const owner = (service: string, tenant?: string, route?: string) => ({ service, tenant, route })

test('a key says in plain text whose it is', () => {
  expect(scopedKey(owner('shop', 'acme'), 'k', 'plain')).toEqual({ scope: 'shop/acme', id: 'k' })
  expect(scopedKey(owner('shop'), 'k', 'plain')).toEqual({ scope: 'shop/', id: 'k' })
  expect(scopedKey(owner('shop', 'a/b', 'POST /x'), 'k', 'plain')).toEqual({ scope: 'shop/a%2Fb/POST%20%2Fx', id: 'k' })
})

test('different owners never share a key, whatever they are called and however long', () => {
  const name = fc.oneof(
    fc.string({ unit: fc.constantFrom('a', '/', '#', '%', ':', '\u00e9', ' '), minLength: 1, maxLength: 6 }),
    fc.string({ unit: fc.constantFrom('a', '/', '\u00e9'), minLength: 120, maxLength: 255 }),
  )
  // Services are ours to name: 255 bytes at most.
  const service = name.filter((each) => Buffer.byteLength(each) <= 255)
  const someone = fc.tuple(
    service,
    fc.option(name, { nil: undefined }),
    fc.option(name, { nil: undefined }),
    fc.constantFrom('k', 'k/k'),
  )
  fc.assert(
    fc.property(someone, someone, fc.constantFrom('plain', 'hashed'), (a, b, how) => {
      const [one, other] = [a, b].map(([whose, tenant, route, id]) =>
        keyString(scopedKey(owner(whose, tenant, route), id, how as 'plain')),
      )
      // Two services whose names nest (shop, and shop/x) are told apart by their slashes, unless one spells the other's tenants.
      if (a[0] !== b[0]) return true
      return (one === other) === (JSON.stringify(a) === JSON.stringify(b))
    }),
  )
})

test('two services with names too long to be spelt out never share a key', () => {
  const scopes = ['a', 'b'].map((end) => scopedKey(owner(`${'s'.repeat(250)}${end}`, 'acme'), 'k', 'plain').scope)
  expect(new Set(scopes).size).toBe(2)
  scopes.forEach((scope) => expect(scope).toMatch(/^#/))
})

test('a digest tells routes apart, and a route from none', () => {
  const scopes = ['POST /a', 'POST /b', undefined].map((route) =>
    scopedKey(owner('shop', 'acme', route), 'k', 'hashed'),
  )
  expect(new Set(scopes.map(({ scope }) => scope)).size).toBe(3)
})

test('with hashed keys neither tenant nor key is in the store', () => {
  const key = scopedKey(owner('shop', 'acme', 'POST /x'), 'secret-key', 'hashed')
  expect(JSON.stringify(key)).not.toMatch(/acme|secret|POST/)
  expect(key.scope.startsWith('shop/#')).toBe(true)
})

test('a key is spelt out as far as a store takes it: 255 bytes, not characters', () => {
  const scopeOf = (tenant: string, route?: string): string =>
    scopedKey(owner('shop', tenant, route), 'k', 'plain').scope
  expect(scopeOf('t'.repeat(250))).toBe(`shop/${'t'.repeat(250)}`)
  expect(scopeOf('t'.repeat(251))).toMatch(/^shop\/#[\w-]{43}$/)
  expect(scopeOf('t', 'r'.repeat(248))).toBe(`shop/t/${'r'.repeat(248)}`)
  expect(scopeOf('t', 'r'.repeat(249))).toMatch(/^shop\/#/)
  // What is too long is a digest, and its id is still the client's.
  expect(scopedKey(owner('shop', 't'.repeat(251)), 'k', 'plain').id).toBe('k')
})

test('a service is named before a digest as far as both fit', () => {
  const scopeOf = (length: number): string => scopedKey(owner('s'.repeat(length), 'acme'), 'k', 'hashed').scope
  expect(scopeOf(210)).toMatch(/^s{210}\/#[\w-]{43}$/)
  expect(scopeOf(211)).toMatch(/^#[\w-]{43}$/)
  const accents = scopedKey(owner('\u00e9'.repeat(106), 'acme'), 'k', 'hashed').scope
  expect(accents).toMatch(/^#/)
})

test('half a surrogate pair in the name of a tenant is a digest, and another than its neighbour', () => {
  const scopes = ['\ud800', '\udc00', '\ufffd'].map((tenant) => scopedKey(owner('shop', tenant), 'k', 'plain').scope)
  expect(scopes).toEqual([expect.stringMatching(/^shop\/#/), expect.stringMatching(/^shop\/#/), 'shop/%EF%BF%BD'])
  expect(new Set(scopes).size).toBe(3)
})

test('a hashed id is another one in another scope', () => {
  const [one, other, again] = ['acme', 'other', 'acme'].map(
    (tenant) => scopedKey(owner('shop', tenant), 'k', 'hashed').id,
  )
  expect(one).toMatch(/^[\w-]{43}$/)
  expect([one === other, one === again]).toEqual([false, true])
})

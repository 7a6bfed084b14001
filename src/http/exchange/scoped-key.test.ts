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

test('with hashed keys neither tenant nor key is in the store', () => {
  const key = scopedKey(owner('shop', 'acme', 'POST /x'), 'secret-key', 'hashed')
  expect(JSON.stringify(key)).not.toMatch(/acme|secret|POST/)
  expect(key.scope.startsWith('shop/#')).toBe(true)
})

// What names an effect never names two: no parts, owners or requests that differ have one key or one fingerprint, however their
// characters are moved about. Small alphabets, so that what could meet does.

import fc from 'fast-check'
import { expect, test } from 'vitest'
import { freshSeed } from '../fresh-seed.ts'
import { createOnce } from '../../src/core/once.ts'
import { keyOf, keyString } from '../../src/core/key.ts'
import { readHttpOptions } from '../../src/http/exchange/options.ts'
import { requestFingerprint } from '../../src/http/exchange/request-fingerprint.ts'
import { scopedKey } from '../../src/http/exchange/scoped-key.ts'
import { memoryStore } from '../../src/stores/memory.ts'

const fresh = freshSeed('the properties of keys')
const seeds = [1, ...(fresh === undefined ? [] : [fresh])]

/** fast-check prints the seed and the path of what it finds. */
function check<T>(property: fc.IProperty<T>): void {
  for (const seed of seeds) fc.assert(property, { numRuns: 2_000, seed })
}

test('no parts of a key imitate the frame between them', () => {
  expect(keyOf('s', ['astringb']).id).not.toBe(keyOf('s', ['a', 'b']).id)
  expect(keyOf('s', ['a', 'string', 'b']).id).not.toBe(keyOf('s', ['a', 'stringb']).id)
  const part = fc.string({ unit: fc.constantFrom('string', 'number', '1', '\u0000', '\u0001'), maxLength: 3 })
  const parts = fc.array(part, { minLength: 1, maxLength: 4 })
  check(
    fc.property(parts, parts, (a, b) => {
      expect(keyOf('s', a).id === keyOf('s', b).id).toBe(JSON.stringify(a) === JSON.stringify(b))
    }),
  )
})

test('two owners in one service never share a key', () => {
  const name = fc.string({ unit: fc.constantFrom('a', '/', '%', '2F', '#'), minLength: 1, maxLength: 3 })
  const owner = fc.record({
    service: fc.constant('shop'),
    tenant: fc.option(name, { nil: undefined }),
    route: fc.option(name, { nil: undefined }),
  })
  check(
    fc.property(owner, owner, fc.constantFrom('plain' as const, 'hashed' as const), (a, b, how) => {
      const [one, other] = [keyString(scopedKey(a, 'k', how)), keyString(scopedKey(b, 'k', how))]
      expect(one === other, `${JSON.stringify(a)} and ${JSON.stringify(b)}`).toBe(
        JSON.stringify([a.tenant, a.route]) === JSON.stringify([b.tenant, b.route]),
      )
    }),
  )
})

test('no two requests meet, whatever character moves from one part to the next', () => {
  const settings = readHttpOptions(createOnce({ store: memoryStore(), scope: 'shop' }), { tenant: 'shared' })
  const print = ([method, path, query, type, encoding]: readonly string[]): string => {
    const headers: Record<string, string> = { 'content-type': type!, 'content-encoding': encoding! }
    const request = { method: method!, target: `/${path}${query}`, header: (name: string) => headers[name] }
    return requestFingerprint(settings as never, request as never, { bytes: Buffer.from('{}') })
  }
  expect(print(['POST', 'a', '?x=1', 'a', 'b'])).not.toBe(print(['POST', 'a', '?x=1a', '', 'b']))
  const letters = fc.string({ unit: fc.constantFrom('a', 'b'), maxLength: 2 })
  const query = letters.map((text) => (text === '' ? '' : `?${text}`))
  const asked = fc.tuple(fc.constantFrom('POST', 'POSTa'), letters, query, letters, letters)
  check(
    fc.property(asked, asked, (a, b) => {
      expect(print(a) === print(b)).toBe(JSON.stringify(a) === JSON.stringify(b))
    }),
  )
})

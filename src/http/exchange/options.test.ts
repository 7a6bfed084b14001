import { expect, test } from 'vitest'
import { createOnce } from '../../core/once.ts'
import { memoryStore } from '../../stores/memory.ts'
import { readHttpOptions } from './options.ts'
import type { HttpOptions } from './options.ts'

const once = createOnce({ store: memoryStore(), scope: 's' })
const read = (options: object): unknown => readHttpOptions(once, options as HttpOptions)

test('a tenant is not guessed: without one the adapter does not start', () => {
  expect(() => read({})).toThrow(/expected tenant to be a function that returns the tenant of a request, or "shared"/)
  expect(() => read({ tenant: 'tenant' })).toThrow(/got "tenant"/)
  expect(read({ tenant: 'shared' })).toBeTruthy()
})

test.each([
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
])('%j is refused at the start', (options, message) => {
  expect(() => read({ tenant: 'shared', ...options })).toThrow(message)
})

test('without createOnce there is nothing to start with', () => {
  expect(() => readHttpOptions({} as never, { tenant: 'shared' })).toThrow(/what createOnce\(\) returned/)
})

// What a refusal says is true: whether a retry can help, and whether anything was kept.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { OnceError } from '../../src/core/errors.ts'
import { createOnce } from '../../src/core/once.ts'
import { idempotency } from '../../src/http/fetch.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'

const folder = mkdtempSync(join(tmpdir(), 'onceonly-refusals-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const post = (headers: Record<string, string> = { 'Idempotency-Key': 'k' }): Request =>
  new Request('http://localhost/orders', { method: 'POST', headers, body: '{}' })

test('with transaction: true a request without a key is refused by a message that says so, and nothing runs', async () => {
  let runs = 0
  const once = createOnce({
    store: sqliteStore({ path: join(folder, `${crypto.randomUUID()}.db`) }),
    scope: 'shop',
  })
  const handler = idempotency(once, { tenant: 'shared', transaction: true })(() => new Response(String(++runs)))
  const refused = await handler(post({}))
  expect([refused.status, await refused.json()]).toMatchObject([
    400,
    { code: 'idempotency-key-missing', title: 'An Idempotency-Key header is required here' },
  ])
  expect((await handler(post())).status).toBe(200)
  expect(runs).toBe(1)
})

test('what no retry can cure is a 503 that says so: retryable false, and no Retry-After', async () => {
  const store = memoryStore()
  const missing = async (): Promise<never> => {
    throw new OnceError('SCHEMA_MISSING', { message: 'There are no tables. Run onceonly migrate.' })
  }
  const once = createOnce({ store: { ...store, claim: missing }, scope: 'shop' })
  const refused = await idempotency(once, { tenant: 'shared' })(() => new Response('x'))(post())
  expect([refused.status, refused.headers.get('retry-after')]).toEqual([503, null])
  expect(await refused.json()).toMatchObject({
    code: 'idempotency-store-unavailable',
    retryable: false,
    executed: 'no',
  })
})

test('a handler that did not end by its deadline in a transaction was rolled back, and its client is told so', async () => {
  const once = createOnce({
    store: sqliteStore({ path: join(folder, `${crypto.randomUUID()}.db`) }),
    scope: 'shop',
  })
  const hung = Promise.withResolvers<Response>()
  const options = { tenant: 'shared', transaction: true, attemptMs: 50 } as const
  const refused = await idempotency(once, options)(() => hung.promise)(post())
  hung.resolve(new Response('late'))
  expect([refused.status, await refused.json()]).toMatchObject([
    503,
    { code: 'idempotency-deadline-passed', executed: 'no', retryable: true },
  ])
})

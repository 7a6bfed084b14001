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
    { code: 'idempotency-key-missing', title: 'The Idempotency-Key header is required here' },
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
    leaseMs: 500,
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

test('the published rules are those of this server: required, headers and omit', async () => {
  const once = createOnce({ store: memoryStore(), scope: 'shop' })
  const rules = async (options: object): Promise<object> => {
    const handler = idempotency(once, { tenant: 'shared', ...options })(() => new Response('x'))
    const headers = { Accept: 'application/json' }
    return (await (
      await handler(new Request('http://localhost/.well-known/idempotency', { headers }))
    ).json()) as object
  }
  const plain = 'method, path, query, media type, content coding and body must be the same in every retry'
  expect(await rules({})).toMatchObject({ required: false, header: 'Idempotency-Key', fingerprint: plain })
  const fingerprint = { body: 'jcs', omit: ['/sentAt', '/trace/id'] }
  expect(await rules({ required: true, header: 'X-Key', headers: ['X-Region'], fingerprint })).toMatchObject({
    required: true,
    header: 'X-Key',
    fingerprint:
      'method, path, query, media type, content coding, body and header x-region must be the same in every retry; ' +
      'of a JSON body, /sentAt, /trace/id may differ',
  })
})

test.each([401, 407, 408, 421, 425, 429])(
  '%i says that nobody looked at the request: it is never stored',
  async (status) => {
    let runs = 0
    const once = createOnce({ store: memoryStore(), scope: 'shop' })
    const handler = idempotency(once, { tenant: 'shared', errorPolicy: 'began' })(() => {
      return new Response(null, { status: ++runs === 1 ? status : 201 })
    })
    expect([(await handler(post())).status, (await handler(post())).status, runs]).toEqual([status, 201, 2])
  },
)

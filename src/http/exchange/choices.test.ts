// What a choice of the options does beside its main effect, on the fetch adapter: the rules are those of every adapter.
import { afterAll, expect, test, vi } from 'vitest'
import { NotBegunError } from '../../core/errors.ts'
import { createOnce } from '../../core/once.ts'
import { memoryStore } from '../../stores/memory.ts'
import { idempotency } from '../fetch.ts'

const once = createOnce({ store: memoryStore(), scope: 'shop', sweepEveryMs: false })
afterAll(() => once.close())

const post = { method: 'POST', body: '{}' }
const ask = (key: string, more: Partial<typeof post> = {}): Request =>
  new Request('http://shop.example/orders', { ...post, ...more, headers: { 'Idempotency-Key': key } })

test('with keysPer route, a key on another method of the path is another key', async () => {
  const app = idempotency(once, { tenant: 'shared', keysPer: 'route', methods: ['POST', 'PUT'] })(
    async ({ method }) => new Response(method),
  )
  for (const method of ['POST', 'PUT']) expect(await (await app(ask('route', { method }))).text()).toBe(method)
  const replayed = await app(ask('route', { method: 'PUT' }))
  expect([await replayed.text(), replayed.headers.get('idempotent-replayed')]).toEqual(['PUT', 'true'])
})

test('with errorPolicy began, a handler that had not begun leaves the key free for another request', async () => {
  const handler = vi.fn(async () => new Response('ran'))
  handler.mockRejectedValueOnce(new NotBegunError('the limit is reached'))
  const app = idempotency(once, { tenant: 'shared', errorPolicy: 'began' })(handler)
  await Promise.resolve(app(ask('begun'))).catch(() => undefined)
  expect(await (await app(ask('begun', { body: '{"another":1}' }))).text()).toBe('ran')
})

test('in the stripe profile a stored 500 is replayed with the word that a retry leads to the same', async () => {
  const app = idempotency(once, { tenant: 'shared', profile: 'stripe', errorPolicy: 'began' })(
    async () => new Response('failed', { status: 500 }),
  )
  await app(ask('stripe'))
  const replayed = await app(ask('stripe'))
  expect([replayed.status, replayed.headers.get('stripe-should-retry')]).toEqual([500, 'false'])
})

test('a tenant that is no text is an error that says what to return, and nothing runs', async () => {
  const handler = vi.fn(async () => new Response('ran'))
  const app = idempotency(once, { tenant: () => 42 as unknown as string })(handler)
  await expect(async () => app(ask('tenant'))).rejects.toThrow('expected tenant to return a string, got a number')
  expect(handler).not.toHaveBeenCalled()
})

import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { expect, test } from 'vitest'
import { hashKey } from '../../core/key.ts'
import { createOnce } from '../../core/once.ts'
import type { Store } from '../../core/store.ts'
import { memoryStore } from '../../stores/memory.ts'
import { idempotency } from '../fetch.ts'

/** What is published while a request with a key is handled on a store that fails so. */
async function published(broken: Partial<Store>): Promise<{ status: string; events: unknown[] }> {
  const events: unknown[] = []
  const listener = (event: unknown): void => void events.push(event)
  subscribe('onceonly:unprotected', listener)
  const once = createOnce({ store: { ...memoryStore(), ...broken } as Store, scope: 'shop', leaseMs: 50 })
  const app = idempotency(once, { tenant: 'shared', onStoreDown: 'run' })(async () => new Response('ran'))
  const headers = { 'Idempotency-Key': 'order-1' }
  const response = await app(new Request('http://shop.example/', { method: 'POST', headers, body: '{}' }))
  await once.close()
  unsubscribe('onceonly:unprotected', listener)
  expect(await response.text()).toBe('ran')
  return { status: response.headers.get('idempotency-status') ?? 'protected', events }
}

const down = (): Promise<never> => Promise.reject(new Error('down'))
const about = { scope: 'shop/', keyHash: hashKey({ scope: 'shop/', id: 'order-1' }) }

test('a request that runs without the store is an event, with a hash of its key and the reason', async () => {
  const { status, events } = await published({ claim: down })
  expect(status).toBe('unprotected')
  expect(events).toEqual([{ ...about, code: 'STORE_UNAVAILABLE' }])
})

test('so is one whose response could not be stored', async () => {
  const { status, events } = await published({ settle: down })
  expect(status).toBe('unprotected')
  expect(events).toEqual([{ ...about, code: 'OUTCOME_UNKNOWN' }])
})

test('one that is protected is not', async () => {
  expect(await published({})).toEqual({ status: 'protected', events: [] })
})

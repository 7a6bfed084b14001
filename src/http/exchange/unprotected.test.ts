import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test, vi } from 'vitest'
import { hashKey } from '../../core/key.ts'
import { createOnce } from '../../core/once.ts'
import type { Store } from '../../core/store.ts'
import { memoryStore } from '../../stores/memory.ts'
import { sqliteStore } from '../../stores/sqlite.ts'
import { idempotency } from '../fetch.ts'

/** What is published while a request with a key is handled on a store that fails so. */
async function published(broken: Partial<Store>): Promise<{ status: string; events: unknown[] }> {
  const events: unknown[] = []
  const listener = (event: unknown): void => void events.push(event)
  subscribe('onceonly:unprotected', listener)
  const store = { ...memoryStore(), ...broken } as Store
  const once = createOnce({ store, scope: 'shop', leaseMs: 50, storeTimeoutMs: 500 })
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

test('in a transaction it is refused: there is none to run in without the store', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-unprotected-'))
  const store = sqliteStore({ path: join(folder, 'once.db') })
  const once = createOnce({ store: { ...store, begin: down }, scope: 'shop', sweepEveryMs: false })
  const handler = vi.fn(async () => new Response('ran'))
  const app = idempotency(once, { tenant: 'shared', onStoreDown: 'run', transaction: true })(handler)
  const headers = { 'Idempotency-Key': 'order-1' }
  const response = await app(new Request('http://shop.example/', { method: 'POST', headers, body: '{}' }))
  expect([response.status, response.headers.get('idempotency-status')]).toEqual([503, null])
  expect(handler).not.toHaveBeenCalled()
  await once.close()
  store.close()
  rmSync(folder, { recursive: true, force: true })
})

test('one that is protected is not', async () => {
  expect(await published({})).toEqual({ status: 'protected', events: [] })
})

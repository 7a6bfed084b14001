// Responses that an older version of the service stored: replayed as they were, brought up to date, or refused as expired.

import type { AddressInfo } from 'node:net'
import express from 'express'
import { describe, expect, test } from 'vitest'
import { InDoubtError } from '../../src/core/errors.ts'
import { createOnce } from '../../src/core/once.ts'
import type { Once, OnceByHand } from '../../src/core/once.ts'
import type { Answer } from '../../src/http/exchange.ts'
import { idempotency as onExpress } from '../../src/http/express.ts'
import { foundIn } from '../../src/gateway/found-outcome.ts'
import { idempotency, storedResponse } from '../../src/http/fetch.ts'
import { memoryStore } from '../../src/stores/memory.ts'

interface Versioned {
  readonly version?: number
  readonly onOlderVersion?: 'replay' | 'refuse'
  readonly upgrade?: (response: Answer, version: number) => Answer | Promise<Answer>
}

const newOnce = (): Once => createOnce({ store: memoryStore(), scope: 'shop', sweepEveryMs: false })

async function ask(
  once: Once,
  options: Versioned,
  key = 'k',
): Promise<{ status: number; replayed: boolean; body: object }> {
  const { version = 0 } = options
  const handler = idempotency(once, { tenant: 'shared', ...options })(() =>
    Response.json({ writtenBy: version }, { status: 201 }),
  )
  const headers = { 'Idempotency-Key': key }
  const response = await handler(new Request('http://localhost/orders', { method: 'POST', headers, body: '{}' }))
  const body = (await response.json()) as object
  return { status: response.status, replayed: response.headers.get('idempotent-replayed') === 'true', body }
}

/** Puts the old body into the envelope that version 2 has. */
const upgrade = async (response: Answer, version: number): Promise<Answer> => {
  const order: unknown = JSON.parse(Buffer.from(response.body).toString())
  return { ...response, status: 200, body: Buffer.from(JSON.stringify({ order, upgradedFrom: version })) }
}

test('without upgrade an older response is replayed as it was', async () => {
  const once = newOnce()
  await ask(once, { version: 1 })
  expect(await ask(once, { version: 2 })).toEqual({ status: 201, replayed: true, body: { writtenBy: 1 } })
})

test('upgrade gets the decoded response and its version, and what it returns is replayed', async () => {
  const once = newOnce()
  await ask(once, {})
  await ask(once, { version: 1 }, 'v1')
  const replayed = (from: number): object => ({
    status: 200,
    replayed: true,
    body: { order: { writtenBy: from }, upgradedFrom: from },
  })
  expect(await ask(once, { version: 2, upgrade })).toEqual(replayed(0))
  expect(await ask(once, { version: 2, upgrade }, 'v1')).toEqual(replayed(1))
})

test('a response of this version, and of a newer one, is replayed as it is', async () => {
  const once = newOnce()
  const refuse = (): never => expect.fail('nothing to upgrade')
  await ask(once, { version: 2 })
  for (const version of [2, 1])
    expect(await ask(once, { version, upgrade: refuse, onOlderVersion: 'refuse' })).toMatchObject({
      status: 201,
      body: { writtenBy: 2 },
    })
})

test('an upgrade that throws is 500: nothing runs again', async () => {
  const once = newOnce()
  await ask(once, {})
  const broken = (): never => {
    throw new Error('no way')
  }
  expect(await ask(once, { version: 1, upgrade: broken })).toMatchObject({
    status: 500,
    body: { code: 'idempotency-outcome-unreadable', executed: 'yes', retryable: false },
  })
})

test("onOlderVersion 'refuse' treats an older response as expired", async () => {
  const once = newOnce()
  await ask(once, {})
  expect(await ask(once, { version: 1, onOlderVersion: 'refuse', upgrade })).toMatchObject({
    status: 410,
    body: { code: 'idempotency-key-expired' },
  })
})

describe('a response that a person gave to a key in doubt', () => {
  const key = { scope: 'shop/', id: 'k' }
  const response = { status: 201, body: '{"writtenBy":"a person"}' }
  const inDoubt = async (once: OnceByHand & Once): Promise<void> => {
    const lost = (): never => {
      throw new InDoubtError('the connection was lost')
    }
    const handler = idempotency(once, { tenant: 'shared', version: 3 })(lost)
    const headers = { 'Idempotency-Key': 'k' }
    const asked = handler(new Request('http://localhost/orders', { method: 'POST', headers, body: '{}' }))
    await expect(asked).rejects.toThrow('the connection was lost')
  }
  const found = { status: 201, replayed: true, body: { writtenBy: 'a person' } }
  const notAsked = (): never => expect.fail('nothing to upgrade')

  test('is replayed as it is by every version, neither upgraded nor refused', async () => {
    const store = memoryStore()
    const once = createOnce({ store, scope: 'shop', sweepEveryMs: false })
    await inDoubt(once)
    const text = `HTTP/1.1 201 Created\n\n${response.body}`
    await store.mend(key, foundIn((await store.show(key))!, { response: Buffer.from(text) }).mending, 'ticket 7')
    for (const onOlderVersion of ['replay', 'refuse'] as const)
      expect(await ask(once, { version: 3, upgrade: notAsked, onOlderVersion })).toEqual(found)
  })

  test('is replayed as it is when the code that gave it names no version, and upgraded from the one that it names', async () => {
    const once = createOnce({ store: memoryStore(), scope: 'shop', sweepEveryMs: false })
    await inDoubt(once)
    await once.resolve(key, { value: storedResponse(response) }, 'ticket 7')
    expect(await ask(once, { version: 3, upgrade: notAsked, onOlderVersion: 'refuse' })).toEqual(found)
    await once.forget(key, 'the next case')
    await inDoubt(once)
    await once.resolve(key, { value: storedResponse({ ...response, version: 3 }) }, 'ticket 7')
    expect(await ask(once, { version: 3, upgrade: notAsked, onOlderVersion: 'refuse' })).toEqual(found)
    expect(await ask(once, { version: 4, upgrade })).toMatchObject({ body: { upgradedFrom: 3 } })
    expect(() => storedResponse({ ...response, version: -1 })).toThrow('expected version to be')
  })
})

test('on Node: Express replays what upgrade returns, with its new length', async () => {
  const once = newOnce()
  await ask(once, {})
  const app = express()
  app.use(onExpress(once, { tenant: 'shared', version: 1, upgrade }))
  app.post('/orders', () => expect.fail('a second run'))
  const server = app.listen(0, '127.0.0.1')
  await new Promise((resolve) => server.on('listening', resolve))
  const { port } = server.address() as AddressInfo
  const headers = { 'Idempotency-Key': 'k' }
  const response = await fetch(`http://127.0.0.1:${port}/orders`, { method: 'POST', headers, body: '{}' })
  expect([response.status, await response.json()]).toEqual([200, { order: { writtenBy: 0 }, upgradedFrom: 0 }])
  await new Promise((resolve) => server.close(resolve))
})

test.each([-1, 1.5, '2'])('version %s is refused at the start', (version) => {
  expect(() => idempotency(newOnce(), { tenant: 'shared', version: version as number })).toThrow(
    'expected version to be',
  )
})

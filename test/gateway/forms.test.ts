// Forms through the gateway: a client that sends one again draws another boundary, and it is the same request all the same.
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, expect, test } from 'vitest'
import { closeAll, closing, startGround } from './ground.ts'

afterEach(closeAll)

async function countingService(): Promise<{ url: string; runs: () => number; close(): Promise<void> }> {
  let runs = 0
  const server = createServer((req, res) => {
    req.resume().on('end', () => void res.writeHead(201).end(String(++runs)))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    runs: () => runs,
    async close() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

function form(name: string): FormData {
  const data = new FormData()
  data.set('name', name)
  data.set('file', new Blob(['a\r\n--b\r\nc']), 'a.txt')
  return data
}

test('a route that says how a query is compared keeps how bodies are, and can take it back', async () => {
  const service = closing(await countingService())
  const { gateway } = await startGround(service.url, {
    fingerprint: { body: 'jcs', omit: ['/sentAt'] },
    routes: [
      { path: '/orders', fingerprint: { query: 'bytes' } },
      { path: '/exact', fingerprint: { body: 'bytes', omit: [] } },
    ],
  })
  const send = async (path: string, body: string): Promise<[number, string | null]> => {
    const headers = { 'Idempotency-Key': path.slice(1, 6), 'Content-Type': 'application/json' }
    const response = await fetch(gateway.url + path, { method: 'POST', headers, body })
    await response.text()
    return [response.status, response.headers.get('idempotent-replayed')]
  }
  const [first, again] = ['{"cents":5,"sentAt":1}', '{"sentAt":2,"cents":5}']
  expect(await send('/orders?a=1&b=2', first)).toEqual([201, null])
  expect(await send('/orders?a=1&b=2', again)).toEqual([201, 'true'])
  expect(await send('/orders?b=2&a=1', again)).toEqual([422, null])
  expect(await send('/exact', first)).toEqual([201, null])
  expect(await send('/exact', again)).toEqual([422, null])
  expect(service.runs()).toBe(2)
})

test('a request in doubt is asked again after the lease of its route', async () => {
  const service = createServer((req) => void req.resume().on('end', () => req.socket.destroy()))
  await new Promise<void>((resolve) => service.listen(0, '127.0.0.1', resolve))
  closing({ close: async () => void service.close() })
  const routes = [{ path: '/payments', leaseMs: 7_000 }]
  const { post } = await startGround(`http://127.0.0.1:${(service.address() as AddressInfo).port}`, { routes })
  const { status, headers } = await post('k')
  expect([status, headers.get('retry-after')]).toEqual([502, '7'])
})

test('a form that is sent again is replayed, and another form under its key is refused', async () => {
  const service = closing(await countingService())
  const { gateway } = await startGround(service.url)
  const send = async (key: string, name: string): Promise<[number, string | null]> => {
    const response = await fetch(`${gateway.url}/uploads`, {
      method: 'POST',
      headers: { 'Idempotency-Key': key },
      body: form(name),
    })
    await response.text()
    return [response.status, response.headers.get('idempotent-replayed')]
  }
  expect(await send('k', 'Ada')).toEqual([201, null])
  expect(await send('k', 'Ada')).toEqual([201, 'true'])
  expect(await send('k', 'Eve')).toEqual([422, null])
  expect(service.runs()).toBe(1)
})

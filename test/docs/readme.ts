// The programs of README and docs/writing-a-store.md run as written, and print what their comments say.

import { once } from 'node:events'
import { cpSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { newWebhookSecret } from '../../src/webhooks.ts'
import { needs } from '../servers/needs.ts'
import { startPostgres } from '../servers/postgres.ts'
import { createPool } from '../subjects/postgres.ts'
import { root, take } from './blocks.ts'
import { openPrograms } from './programs.ts'

const running = openPrograms()
cpSync(join(root, 'test/docs/shop.ts'), join(running.folder, 'shop.ts'))
afterAll(() => running[Symbol.dispose]())

const [first, onExpress, inTransaction, saga, messages, client, webhooks] = take('README.md')
const [contract] = take('docs/writing-a-store.md')
const [encrypted] = take('docs/codecs.md')

test('the first program prints what it says, with the second call replayed', async () => {
  const said = await running.run('first', first!.code)
  const comments = Array.from(first!.code.matchAll(/^console.*\/\/ (\{.*\})/gm), ([, comment]) => comment)
  expect(comments).toHaveLength(2)
  expect(said.split('\n')).toEqual(comments)
})

test('the app on Express: a retry gets the first response, and the tenant is the account', async () => {
  const asking = `
const server = app.listen(0, async () => {
  const ask = async (authorization: string, cents: number) => {
    const headers = { authorization, 'content-type': 'application/json', 'idempotency-key': 'k' }
    const { port } = server.address() as { port: number }
    const response = await fetch(\`http://localhost:\${port}/orders\`, { method: 'POST', headers, body: JSON.stringify({ cents }) })
    return [response.status, response.headers.get('idempotent-replayed'), await response.text()]
  }
  const [one, two] = [await ask('Bearer secret-of-acme', 5), await ask('Bearer secret-of-acme', 5)]
  const [other, unknown] = [await ask('Bearer secret-of-acme', 6), await ask('Bearer guessed', 5)]
  console.log(JSON.stringify([one[0], two[0], two[1], one[2] === two[2], other[0], unknown[0]]))
  process.exit()
})`
  expect(await running.run('express', `${onExpress!.code}${asking}`)).toBe('[201,201,"true",true,422,401]')
})

needs('postgres').describe('PostgreSQL', () => {
  test('one transaction: the order is written once', async () => {
    await using server = await startPostgres()
    const url = await server.createDatabase()
    const pool = createPool(url)
    await pool.query('create table orders (id text, cents integer)')
    for (const time of ['first', 'second']) {
      await running.run(`transaction-${time}`, `${inTransaction!.code}\nawait pool.end()`, [], { DATABASE_URL: url })
    }
    expect((await pool.query('select * from orders')).rows).toEqual([{ id: 'order-42', cents: 500 }])
    await pool.end()
  })
})

test('the saga holds the stock, charges, and has a worker', async () => {
  const said = await running.run(
    'saga',
    `${saga!.code}\nawait worker.stop()\nconst { value } = await checkout.run('order-42', { id: 'order-42', cents: 500 })\nconsole.log(JSON.stringify(value))\nprocess.exit()`,
  )
  expect(JSON.parse(said)).toEqual({ hold: { id: 'order-42' }, paid: { id: 'charge-0', cents: 500 } })
})

test('the message has one mail, and the relay says what it sent', async () => {
  const said = await running.run('messages', `${messages!.code}\nprocess.exit()`)
  expect(said.split('\n')).toEqual(['mail for order-42', 'handled', 'duplicate', '{ sent: 1, held: 0, dead: 0 }'])
})

test('the client asks again with the same key and the same bytes', async () => {
  const asked: string[] = []
  const server = createServer((request, response) => {
    let body = ''
    request.on('data', (chunk: Buffer) => (body += chunk.toString()))
    request.on('end', () => {
      asked.push(`${request.headers['idempotency-key']} ${body}`)
      if (asked.length === 1) response.writeHead(503).end()
      else response.writeHead(201, { 'Idempotent-Replayed': 'true' }).end()
    })
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const env = { SHOP_URL: `http://127.0.0.1:${(server.address() as AddressInfo).port}` }
  expect(await running.run('client', client!.code, [], env)).toBe('201 true')
  server.close()
  expect(asked).toHaveLength(2)
  expect(new Set(asked).size).toBe(1)
  expect(asked[0]).toMatch(/ \{"order":"order-42","cents":500\}$/)
})

test('the receiver ships once for an event that is sent twice, and not at all for one that is not signed', async () => {
  const sending = `
import { createWebhookSigner } from 'onceonly/webhooks'
const body = '{"type":"order.paid"}'
const headers = { ...createWebhookSigner({ secrets: process.env['WEBHOOK_SECRET']! }).sign({ id: 'evt_42', sentAtMs: Date.now(), body }) }
const server = app.listen(0, async () => {
  const { port } = server.address() as { port: number }
  const send = async (bytes: string) =>
    (await fetch(\`http://localhost:\${port}/hooks\`, { method: 'POST', headers, body: bytes })).status
  console.log(JSON.stringify([await send(body), await send(body), await send('{"type":"order.lost"}')]))
  process.exit()
})`
  const env = { WEBHOOK_SECRET: newWebhookSecret() }
  const said = await running.run('webhooks', `${webhooks!.code}${sending}`, [], env)
  expect(said.split('\n')).toEqual(['ship evt_42', '[200,200,401]'])
})

test('the contract of docs/writing-a-store.md is a whole test file', async () => {
  const said = await running.run('contract', contract!.code, [], { NODE_TEST_CONTEXT: '' })
  expect(said).toMatch(/^# fail 0$|^ℹ fail 0$/m)
  expect(Number(/(?:#|ℹ) pass (\d+)/.exec(said)?.[1])).toBeGreaterThan(100)
})

test('the codec of docs/codecs.md stores and replays, with a key of 32 bytes', async () => {
  const asks = `for (const _ of [1, 2]) console.log(JSON.stringify(await once.run('order-1', () => ({ card: 1 }))))\nprocess.exit()`
  const keys = {
    ONCE_KEY_1: Buffer.alloc(32, 1).toString('base64'),
    ONCE_KEY_2: Buffer.alloc(32, 2).toString('base64'),
  }
  const said = await running.run('codec', `${encrypted!.code}\n${asks}`, [], keys)
  expect(said.split('\n').map((line) => (JSON.parse(line) as { replayed: boolean }).replayed)).toEqual([false, true])
})

// docs/client.md is true: its programs run as they are written against a server that really listens, and its tables have every option
// and every problem.

import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { memoryKeys, providers } from '../../src/client/client.ts'
import { createOnce } from '../../src/core/once.ts'
import { idempotency } from '../../src/http/node.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { root, take } from './blocks.ts'
import { openPrograms } from './programs.ts'

const text = readFileSync(join(root, 'docs/client.md'), 'utf8')
const blocks = take('docs/client.md')
const programOf = (says: string): string => blocks.find(({ code }) => code.includes(says))!.code
const programs = openPrograms()
let paid = 0
const server = createServer(
  idempotency(createOnce({ store: memoryStore(), scope: 'shop' }), { tenant: 'shared' })((request, response) => {
    request.resume()
    response.writeHead(201, { 'Content-Type': 'application/json' })
    response.end(JSON.stringify({ receipt: `r${++paid}` }))
  }),
)
const env: Record<string, string> = {}

beforeAll(async () => {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  env['SHOP_URL'] = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
})
afterAll(() => {
  server.close()
  programs[Symbol.dispose]()
})

test('the first program pays, and leaves nothing pending', async () => {
  const code = programOf("{ operation: 'pay:order-42' }")
  expect(await programs.run('pay', code, [], env)).toMatch(/^201 \{ receipt: 'r\d+' \}$/)
  expect(await programs.run('resume', programOf('client.resume'), [], env)).toBe('0 settled, 0 failed')
})

test('what a process left behind is resumed', async () => {
  const before = paid
  const dies = programOf("{ operation: 'pay:order-42' }")
    .replace('await using', 'const')
    .replace(/console\.log.*/, '')
  await programs.run('dies', dies, [], env)
  const said = await programs.run('resume', programOf('client.resume'), [], env)
  expect(said.split('\n')).toEqual([
    'pay:order-42 answered',
    `pay:order-42 201 {"receipt":"r${before + 1}"}`,
    '1 settled, 0 failed',
  ])
  expect(paid).toBe(before + 1)
})

test('a budget', async () => {
  expect(await programs.run('budget', programOf('retryBudget'), [], env)).toBe('201')
})

test('a published window', async () => {
  expect(await programs.run('window', programOf('publishedWindow'), [], env)).toBe('86400000 0')
})

test('a key in the caller’s transaction', async () => {
  const before = paid
  expect(await programs.run('within', programOf('keys.within(tx)'), [], env)).toBe('201')
  expect(paid).toBe(before + 1)
})

test('a key from business parts is the same for a job that runs twice', async () => {
  const before = paid
  const said = await programs.run('key-of', programOf('keyOf'), [], env)
  const [first, second] = said.split('\n').map((line) => line.split(' '))
  expect([first![1], second]).toEqual(['false', [first![0], 'true']])
  expect(paid).toBe(before + 1)
})

test('libraries that the reader has', async () => {
  expect(await programs.run('libraries', programOf('keyedInterceptor'), [], env)).toBe('201 201 201')
  expect(await programs.run('got', programOf("from 'got'"), [], env)).toBe('201')
})

test('the table of providers is that of the code', () => {
  for (const [name, { header = 'Idempotency-Key', windowMs = 0, source }] of Object.entries(providers)) {
    const row = text.split('\n').find((line) => line.startsWith(`| \`${name}\` |`))!
    if (header) expect(row).toContain(`\`${header}\``)
    expect(row).toContain(`](${source})`)
    const told = /^\| [^|]* \| [^|]* \| (\d+) (min|h|days) \|/.exec(row)
    const unitMs = { min: 60_000, h: 3_600_000, days: 86_400_000 }[told?.[2] ?? 'min']!
    expect(Number(told?.[1] ?? 0) * unitMs, row).toBe(windowMs)
  }
})

test('every option is told about', async () => {
  const { createClient } = await import('../../src/client/client.ts')
  const client = createClient as (options: object) => unknown
  const told = Array.from(text.matchAll(/^\| `(\w+)(?:\.\w+)?` \| /gm), ([, name]) => name!)
  for (const name of ['keys', 'fetch', 'retry', 'budget', 'headers', 'server', 'newKey', 'onAttempt', 'onShortWindow'])
    expect(told).toContain(name)
  for (const name of ['bodyBytesMax', 'answerBytesMax']) expect(told).toContain(name)
  expect(() => client({ keys: memoryKeys(), unheardOf: 1 })).toThrow(/expected unheardOf to be one of/)
})

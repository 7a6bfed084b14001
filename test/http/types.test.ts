// What users write compiles, and what would fail at run time does not: the framework's own request type is the default, nothing of
// Node's own types is widened. One run of the compiler for all snippets.

import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, expect, test } from 'vitest'

const root = fileURLToPath(new URL('../..', import.meta.url))
const once = `import { createOnce } from 'onceonly'
import { memoryStore } from 'onceonly/memory'
const once = createOnce({ store: memoryStore(), scope: 'shop' })
`
const adapter = (name: string): string => `import { idempotency } from 'onceonly/${name}'\n${once}`

/** Undefined: it compiles. Otherwise a part of the error. */
const snippets: readonly (readonly [name: string, code: string, error: string | undefined])[] = [
  [
    'importing an adapter leaves once of every IncomingMessage as Node has it',
    `${adapter('express')}import 'onceonly/node'
import { get } from 'node:http'
get('http://localhost', (res) => {
  res.once('data', (chunk) => chunk.toString())
  res.once('error', (error) => error.message)
})
void idempotency(once, { tenant: 'shared' })`,
    undefined,
  ],
  [
    'Express: req is the request of Express, and the context is on it',
    `${adapter('express')}import express from 'express'
const app = express()
app.use(idempotency(once, { tenant: (req) => req.get('x-account') }), express.json())
app.post('/', (req, res) => void res.json({ charge: req.idempotency?.keyFor('charge') }))`,
    undefined,
  ],
  [
    'Express: the context may be missing, on a request without a key',
    `${adapter('express')}import express from 'express'
express().post('/', idempotency(once, { tenant: 'shared' }), (req, res) => void res.json(req.idempotency.key))`,
    `'req.idempotency' is possibly 'undefined'`,
  ],
  [
    'Hono: c is the context of Hono',
    `${adapter('hono')}import { Hono } from 'hono'
const app = new Hono<{ Variables: { account: string } }>()
app.use(idempotency(once, { tenant: (c) => c.get('account') }))
app.use(idempotency(once, { tenant: (c) => c.req.header('x-account') }))
app.post('/', (c) => c.json({ charge: c.get('idempotency')?.keyFor('charge') }))`,
    undefined,
  ],
  [
    'Hono: what its context does not have is an error',
    `${adapter('hono')}idempotency(once, { tenant: (c) => c.req.get('x-account') })`,
    `Property 'get' does not exist`,
  ],
  [
    'Koa: ctx is the context of Koa',
    `${adapter('koa')}import Koa from 'koa'
const app = new Koa()
app.use(idempotency(once, { tenant: (ctx) => ctx.state.account }))
app.use((ctx) => void (ctx.body = { charge: ctx.idempotency?.keyFor('charge') }))`,
    undefined,
  ],
  [
    'Koa: what a header cannot be is an error',
    `${adapter('koa')}idempotency(once, { tenant: (ctx) => ctx.request.length })`,
    `is not assignable to type`,
  ],
  [
    'Fastify: request is the request of Fastify',
    `${adapter('fastify')}import fastify from 'fastify'
const app = fastify()
await app.register(idempotency(once, { tenant: (request) => request.headers.authorization }))
app.post('/', (request) => ({ charge: request.idempotency?.keyFor('charge') }))`,
    undefined,
  ],
  [
    'node and fetch: the context is typed where it is given',
    `${adapter('node')}import { idempotency as onFetch } from 'onceonly/fetch'
idempotency(once, { tenant: (req) => req.headers.authorization })((req, res) => res.end(req.idempotency?.keyFor('charge')))
onFetch(once, { tenant: (request) => request.headers.get('x') })((_, { idempotency: context }) => new Response(context?.key.id))`,
    undefined,
  ],
  ['a tenant must be said', `${adapter('node')}idempotency(once, {})`, `Property 'tenant' is missing`],
  [
    'scope is no option any more',
    `${adapter('node')}idempotency(once, { tenant: 'shared', scope: 'global' })`,
    `'scope' does not exist in type`,
  ],
]

let folder = ''
let said = ''

beforeAll(() => {
  folder = mkdtempSync(join(root, 'test', 'http', '.types-'))
  const files = snippets.map(([, code], at) => {
    writeFileSync(join(folder, `s${at}.ts`), `${code}\nexport {}\n`)
    return `s${at}.ts`
  })
  // As users have it: strict, without our own rules of style. No cache, which would be the repository's.
  const compilerOptions = { incremental: false, tsBuildInfoFile: null, noPropertyAccessFromIndexSignature: false }
  writeFileSync(
    join(folder, 'tsconfig.json'),
    JSON.stringify({ extends: '../../../tsconfig.json', compilerOptions, files, include: [] }),
  )
  said = spawnSync(join(root, 'node_modules/.bin/tsc'), ['-p', folder], { encoding: 'utf8' }).stdout
}, 300_000)
afterAll(() => rmSync(folder, { recursive: true, force: true }))

test.each(snippets.map((each, at) => [...each, at] as const))('%s', (_name, _code, error, at) => {
  const errors = said.split('\n').filter((line) => line.includes(`s${at}.ts(`))
  if (error === undefined) expect(errors).toEqual([])
  else expect(errors.join('\n')).toContain(error)
})

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
const imports = (name: string): string =>
  `import { createOnce } from 'onceonly'\nimport { idempotency } from 'onceonly/${name}'\n`
const onSqlite = (name: string): string => `${imports(name)}import { sqliteStore } from 'onceonly/sqlite'
const once = createOnce({ store: sqliteStore({ path: 'shop.db' }), scope: 'shop' })
`

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
  [
    'Express: of(req) has the tx of the store',
    `${onSqlite('express')}import express from 'express'
const keyed = idempotency(once, { tenant: (req) => req.get('x-account'), transaction: true })
express().post('/', keyed, (req, res) => {
  const context = keyed.of(req)
  context.tx.prepare('insert into orders values (?)').run(context.keyFor('order'))
  res.end()
})`,
    undefined,
  ],
  [
    'Express: tx of req.idempotency is declared once for all stores, and unknown',
    `${onSqlite('express')}import express from 'express'
express().post('/', idempotency(once, { tenant: 'shared', transaction: true }), (req) => void req.idempotency?.tx.exec('x'))`,
    `'req.idempotency.tx' is of type 'unknown'`,
  ],
  [
    'Fastify: of(request) has the tx of the store',
    `${onSqlite('fastify')}import fastify from 'fastify'
const keyed = idempotency(once, { tenant: (request) => request.headers.authorization, transaction: true })
const app = fastify()
await app.register(keyed)
app.post('/', (request) => keyed.of(request).tx.prepare('select 1').get())`,
    undefined,
  ],
  [
    'Koa: of(ctx) has the tx of the store',
    `${onSqlite('koa')}import Koa from 'koa'
const keyed = idempotency(once, { tenant: (ctx) => ctx.get('x-account'), transaction: true })
new Koa().use(keyed).use((ctx) => void (ctx.body = keyed.of(ctx).tx.prepare('select 1').get()))`,
    undefined,
  ],
  [
    'Hono: of(c) has the tx of the store',
    `${onSqlite('hono')}import { Hono } from 'hono'
const keyed = idempotency(once, { tenant: (c) => c.req.header('x-account'), transaction: true })
new Hono<{ Variables: { account: string } }>().use(keyed).post('/', (c) => c.json(Object.keys(keyed.of(c).tx.prepare('select 1'))))`,
    undefined,
  ],
  [
    'Nest: of(request) has the tx of the store',
    `${onSqlite('nest')}import type { NestRequest } from 'onceonly/nest'
const keyed = idempotency(once, { tenant: (request) => request.headers.authorization, transaction: true })
export const create = (request: NestRequest): void => keyed.of(request).tx.exec('select 1')`,
    undefined,
  ],
  [
    'node and fetch: tx is that of the store',
    `${onSqlite('node')}import { idempotency as onFetch } from 'onceonly/fetch'
idempotency(once, { tenant: 'shared', transaction: true })((req, res) => { req.idempotency?.tx.exec('select 1'); res.end() })
onFetch(once, { tenant: 'shared', transaction: true })((_, { idempotency: context }) => { context?.tx.exec('select 1'); return new Response() })`,
    undefined,
  ],
  [
    'what the store’s tx does not have is an error',
    `${onSqlite('koa')}import type { Context } from 'koa'
const keyed = idempotency(once, { tenant: 'shared', transaction: true })
export const create = (ctx: Context) => keyed.of(ctx).tx.query('select 1')`,
    `Property 'query' does not exist`,
  ],
  [
    'the tx of PostgreSQL is its own',
    `${imports('express')}import { postgresStore } from 'onceonly/postgres'
import type { Request } from 'express'
import { Pool } from 'pg'
const once = createOnce({ store: postgresStore({ pool: new Pool() }), scope: 'shop' })
const keyed = idempotency(once, { tenant: 'shared', transaction: true })
export const create = (req: Request) => keyed.of(req).tx.query('insert into orders values ($1)', ['a'])`,
    undefined,
  ],
  [
    'node: without transaction: true there is no tx',
    `${onSqlite('node')}idempotency(once, { tenant: 'shared' })((req, res) => { req.idempotency?.tx.exec('select 1'); res.end() })`,
    `'req.idempotency.tx' is possibly 'undefined'`,
  ],
  [
    'Express: without transaction: true the context and its tx may be missing',
    `${onSqlite('express')}import type { Request } from 'express'
const keyed = idempotency(once, { tenant: 'shared' })
export const create = (req: Request) => keyed.of(req).tx`,
    `Object is possibly 'undefined'`,
  ],
  [
    'transaction: true on a store without transactions is an error',
    `${adapter('hono')}idempotency(once, { tenant: 'shared', transaction: true })`,
    `'transaction: true needs': "a store with transactions: sqlite, postgres, mysql or dynamodb"`,
  ],
  [
    'a codec changes nothing of it, and a request type of one’s own may be named',
    `${imports('express')}import { sqliteStore } from 'onceonly/sqlite'
import type { Codec } from 'onceonly'
import type { Request } from 'express'
declare const codec: Codec
interface Mine extends Request { account: string }
const once = createOnce({ store: sqliteStore({ path: 'x.db' }), scope: 'shop', codec })
idempotency<Mine>(once, { tenant: (req) => req.account, transaction: true })
const keyed = idempotency(once, { tenant: (req: Mine) => req.account, transaction: true })
export const create = (req: Mine): void => keyed.of(req).tx.exec('select 1')`,
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

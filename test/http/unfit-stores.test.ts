// What no retry can cure is loud: over HTTP a client sees a 503 that says so, and the process is told the cure, once. On real servers.

import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import 'reflect-metadata'
import { Module } from '@nestjs/common'
import { APP_INTERCEPTOR, NestFactory } from '@nestjs/core'
import fastify from 'fastify'
import { Redis } from 'ioredis'
import mysql from 'mysql2/promise'
import pg from 'pg'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createOnce } from '../../src/core/once.ts'
import type { Once } from '../../src/core/once.ts'
import type { Store } from '../../src/core/store.ts'
import { startGateway } from '../../src/gateway/proxy.ts'
import { idempotency as onFastify } from '../../src/http/fastify.ts'
import { idempotency } from '../../src/http/fetch.ts'
import { idempotency as onNest } from '../../src/http/nest.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { mysqlStore } from '../../src/stores/mysql.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import { redisStore } from '../../src/stores/redis.ts'
import { manualClock } from '../../src/testing/manual-clock.ts'
import { OnceError } from '../../src/core/errors.ts'
import type { OnceErrorDetails } from '../../src/core/errors.ts'
import { startMariadb } from '../servers/mariadb.ts'
import { certificate, certificateKey } from '../servers/fixtures/certificate.ts'
import { needs } from '../servers/needs.ts'
import { startPostgres } from '../servers/postgres.ts'
import { startRedis } from '../servers/redis.ts'

const closing: (() => unknown)[] = []
const warnings: (Error & { code?: string })[] = []
const events: unknown[] = []
const onWarning = (warning: Error): void => void (warning.name === 'OnceonlyWarning' && warnings.push(warning))
const onEvent = (event: unknown): void => void events.push(event)

beforeEach(() => {
  process.on('warning', onWarning)
  subscribe('onceonly:store-unfit', onEvent)
})

afterEach(async () => {
  process.off('warning', onWarning)
  unsubscribe('onceonly:store-unfit', onEvent)
  warnings.length = 0
  events.length = 0
  for (const close of closing.splice(0).toReversed()) await close()
})

const post = (): Request =>
  new Request('http://localhost/orders', { method: 'POST', headers: { 'Idempotency-Key': 'order-4711' }, body: '{}' })

interface Expected {
  readonly code: string
  /** Words of the cure. */
  readonly cure: string
}

/** An app that has a start does not start. Of three requests each is refused for good, nothing runs, and the process is warned once, without the key. */
async function isLoud(store: Store, { code, cure }: Expected): Promise<void> {
  const once = createOnce({ store, scope: 'shop', sweepEveryMs: false })
  closing.push(() => once.close())
  await expect(once.ready()).rejects.toMatchObject({ code, retryable: false, message: expect.stringContaining(cure) })
  await expect(startFastify(once)).rejects.toMatchObject({ code, message: expect.stringContaining(cure) })
  let runs = 0
  const handler = idempotency(once, { tenant: 'shared' })(() => new Response(String(++runs)))
  for (let asked = 0; asked < 3; asked++) {
    const refused = await handler(post())
    expect([refused.status, refused.headers.get('retry-after')]).toEqual([503, null])
    expect(await refused.json()).toMatchObject({ retryable: false, executed: 'no' })
  }
  await new Promise((resolve) => setImmediate(resolve)) // warnings are emitted in the next tick
  expect(runs).toBe(0)
  expect(warnings.map((warning) => warning.code)).toEqual([code])
  expect(warnings[0]!.message).toContain(cure)
  expect(warnings[0]!.message).not.toContain('order-4711')
  expect(events).toMatchObject([{ store: store.name, code }])
  // In the background it would go on releasing what it may have claimed, and warn of what the server says next.
  await once.close()
}

async function startFastify(once: Once): Promise<void> {
  const app = fastify()
  closing.push(() => app.close())
  await app.register(onFastify(once, { tenant: 'shared' }))
  await app.ready()
}

async function startNest(once: Once): Promise<void> {
  class App {}
  Module({ providers: [{ provide: APP_INTERCEPTOR, useValue: onNest(once, { tenant: 'shared' }) }] })(App)
  const app = await NestFactory.create(App, { logger: false, abortOnError: false })
  closing.push(() => app.close())
  await app.init()
}

const poolTo = (config: pg.PoolConfig): pg.Pool => {
  const pool = new pg.Pool(config)
  pool.on('error', () => {})
  closing.push(() => pool.end())
  return pool
}

needs('postgres', { ours: true }).describe('PostgreSQL', () => {
  test('without tables: migrate() is named', async () => {
    const server = await startPostgres()
    closing.push(() => server.stop())
    const store = postgresStore({ pool: poolTo({ connectionString: server.url }) })
    await isLoud(store, { code: 'SCHEMA_MISSING', cure: 'Run "await store.migrate()"' })
  })

  test('with a wrong password, none, or a database that does not exist', async () => {
    const server = await startPostgres()
    closing.push(() => server.stop())
    const admin = poolTo({ connectionString: server.url })
    await admin.query("create role locked login password 'right'")
    const file = (await admin.query<{ hba_file: string }>('show hba_file')).rows[0]!.hba_file
    const rules = "('host all locked all scram-sha-256'), ('host all all all trust'), ('local all all trust')"
    await admin.query(`copy (select * from (values ${rules}) rule) to '${file}'`)
    await admin.query('select pg_reload_conf()')
    const { hostname, port, pathname } = new URL(server.url)
    const place = { host: hostname, port: Number(port), database: pathname.slice(1) }
    const users: pg.PoolConfig[] = [
      { ...place, user: 'locked', password: 'wrong' },
      { ...place, user: 'locked' },
      { connectionString: Object.assign(new URL(server.url), { pathname: '/elsewhere' }).href },
    ]
    for (const user of users) {
      const cure = 'Correct the user, the password, the database or the rights'
      await isLoud(postgresStore({ pool: poolTo(user) }), { code: 'STORE_UNAVAILABLE', cure })
      warnings.length = 0
      events.length = 0
    }
  })

  test('with TLS where the server has none, or a certificate that is not trusted or of another host', async () => {
    const server = await startPostgres()
    closing.push(() => server.stop())
    const admin = poolTo({ connectionString: server.url })
    const refused = async (ssl: pg.PoolConfig['ssl'], why: string): Promise<void> => {
      const pool = poolTo({ connectionString: server.url, ssl })
      await isLoud(postgresStore({ pool }), { code: 'STORE_UNAVAILABLE', cure: 'Correct the TLS options (ssl)' })
      expect(warnings[0]!.message).toContain(why)
      warnings.length = 0
      events.length = 0
    }
    await refused(true, 'does not support SSL connections')
    // The server writes the files itself: the key must be its user's, and no other's to read.
    for (const [name, text] of Object.entries({ 'server.crt': certificate, 'server.key': certificateKey })) {
      const base64 = Buffer.from(text).toString('base64')
      await admin.query(`copy (select '${base64}') to program 'umask 077; base64 -d > ${name}'`)
    }
    await admin.query('alter system set ssl = on')
    await admin.query('select pg_reload_conf()')
    await expect.poll(async () => (await admin.query<{ ssl: string }>('show ssl')).rows[0]!.ssl).toBe('on')
    await refused(true, 'self-signed certificate')
    await refused({ ca: certificate }, 'altnames')
  })
})

needs('mariadb', { ours: true }).describe('MariaDB', () => {
  test('without tables: migrate() is named; with a wrong password, a locked account or TLS that the server has not, what to correct', async () => {
    const server = await startMariadb()
    closing.push(() => server.stop())
    const open = (url: string): mysql.Pool => {
      const pool = mysql.createPool(url)
      closing.push(() => pool.end())
      return pool
    }
    const admin = open(server.url)
    await isLoud(mysqlStore({ pool: admin }), { code: 'SCHEMA_MISSING', cure: 'Run "await store.migrate()"' })
    warnings.length = 0
    events.length = 0
    await admin.query("create user 'locked'@'%' identified by 'right'")
    const wrong = new URL(server.url)
    Object.assign(wrong, { username: 'locked', password: 'wrong' })
    const cure = 'Correct the user, the password, the database or the rights'
    await isLoud(mysqlStore({ pool: open(wrong.href) }), { code: 'STORE_UNAVAILABLE', cure })
    warnings.length = 0
    events.length = 0
    await admin.query("create user 'shut'@'%' account lock")
    const shut = Object.assign(new URL(server.url), { username: 'shut', password: '' })
    await isLoud(mysqlStore({ pool: open(shut.href) }), { code: 'STORE_UNAVAILABLE', cure })
    warnings.length = 0
    events.length = 0
    const secure = mysql.createPool({ uri: server.url, ssl: {} })
    closing.push(() => secure.end())
    await isLoud(mysqlStore({ pool: secure }), { code: 'STORE_UNAVAILABLE', cure: 'Correct the TLS options (ssl)' })
  })
})

needs('redis', { ours: true }).describe('Redis', () => {
  const storeOn = (url: string): Store => {
    const client = new Redis(url)
    client.on('error', () => {})
    closing.push(() => client.disconnect())
    return redisStore({ client })
  }

  test('without an append-only file: the setting is named', async () => {
    const server = await startRedis({ config: { appendonly: 'no' } })
    closing.push(() => server.stop())
    await isLoud(storeOn(server.url), { code: 'STORE_UNSAFE', cure: 'CONFIG SET appendonly yes' })
  })

  test('with a wrong password', async () => {
    const server = await startRedis({ config: { appendonly: 'yes', requirepass: 'right' } })
    closing.push(() => server.stop())
    const url = new URL(server.url)
    url.password = 'wrong'
    await isLoud(storeOn(url.href), { code: 'STORE_UNAVAILABLE', cure: 'Correct the user, the password or the rights' })
  })
})

const failing = (details: OnceErrorDetails): Once => {
  const claim = (): Promise<never> => Promise.reject(new OnceError('STORE_UNAVAILABLE', details))
  const once = createOnce({ store: { ...memoryStore(), claim }, scope: 'shop', sweepEveryMs: false })
  closing.push(() => once.close())
  return once
}

async function startProxy({ store }: Once): Promise<void> {
  const listen = { host: '127.0.0.1', port: 0 }
  const gateway = await startGateway({ upstream: 'http://127.0.0.1:1', store, listen, tenant: 'shared' })
  closing.push(() => gateway.close())
}

const starts = [
  ['Fastify', startFastify],
  ['Nest', startNest],
  ['the gateway', startProxy],
] as const

test.each(starts)('%s does not start on a store that only a person can mend', async (_name, start) => {
  const message = 'Correct the password.'
  await expect(start(failing({ message, retryable: false }))).rejects.toThrow(message)
})

test.each(starts)('%s starts on a store that is down for a moment or in quarantine', async (_name, start) => {
  const once = failing({ message: 'ECONNREFUSED' })
  await start(once)
  await expect(once.ready()).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE', retryable: true })
})

test('a look at the store leaves nothing there, also when the store grants the claim after the look was given up', async () => {
  const clock = manualClock()
  const store = memoryStore({ clock })
  const granted = Promise.withResolvers<void>()
  const claimed = Promise.withResolvers<void>()
  const claim: Store['claim'] = async (...args) => {
    await granted.promise
    return store.claim(...args).finally(() => claimed.resolve())
  }
  const options = { scope: 'shop', clock, storeTimeoutMs: 1_000, sweepEveryMs: false } as const
  await createOnce({ store, ...options }).ready()
  expect(await store.list({ limit: 1 })).toEqual([])
  const slow = createOnce({ store: { ...store, claim }, ...options })
  const looked = expect(slow.ready()).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
  await clock.advance(1_000)
  await looked
  granted.resolve()
  await claimed.promise
  await new Promise(setImmediate)
  await slow.close()
  expect(await store.list({ limit: 1 })).toEqual([])
})

test('a fault that lasts is told again after an hour, and a key that the message names is left out', async () => {
  const clock = manualClock()
  const claim: Store['claim'] = async (key) => {
    throw new OnceError('STORE_UNAVAILABLE', { message: `No room for ${key.scope}/${key.id}.`, retryable: false })
  }
  const once = createOnce({ store: { ...memoryStore(), claim }, scope: 'shop', clock, sweepEveryMs: false })
  const ask = async (): Promise<void> => {
    await once.run('order-4711', () => 1).catch(() => {})
    await new Promise((resolve) => setImmediate(resolve))
  }
  await ask()
  await clock.advance(3_599_000)
  await ask()
  expect(warnings.map(({ message }) => message)).toEqual(['The memory store cannot be used. No room for a key.'])
  await clock.advance(1_000)
  await ask()
  expect(warnings).toHaveLength(2)
  await once.close()
})

test('a store that is down for a moment is no warning', async () => {
  const claim = (): Promise<never> => Promise.reject(new Error('ECONNREFUSED'))
  const once = createOnce({ store: { ...memoryStore(), claim }, scope: 'shop', sweepEveryMs: false })
  await once.run('order-4711', () => 1).catch(() => {})
  await new Promise((resolve) => setImmediate(resolve))
  expect([warnings, events]).toEqual([[], []])
  await once.close()
})

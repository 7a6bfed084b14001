// A day in the life of an operator, with the program as it is started: what goes wrong is seen in log, metrics, /readyz and dashboard,
// and the commands of docs/operating.md mend it.
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { type Ended, onceonly } from '../cli/program.ts'
import { freePort } from '../servers/free-port.ts'
import { needs } from '../servers/needs.ts'
import { pollUntil } from '../servers/poll.ts'
import { redisCommand } from '../servers/redis/command.ts'
import { startRedis } from '../servers/redis.ts'
import { type GatewayProcess, gatewayArguments, openPlace, type Place } from './programs.ts'

const token = 'the token of the operator'
const scope = 'gateway:default/'
let place: Place
beforeEach(() => void (place = openPlace()))
afterEach(() => place.close())

interface Watched {
  readonly gateway: GatewayProcess
  post(key: string): Promise<Response>
  /** The lines of the log with this event. */
  logged(event: string): readonly Readonly<Record<string, unknown>>[]
  metrics(): Promise<string>
  ready(): Promise<string>
  /** What the dashboard shows at this moment. */
  picture(): Promise<Readonly<Record<string, never>>>
  change(action: string, body: object): Promise<Response>
  timeline(id: string): Promise<string>
}

async function startWatched(upstream: string, store: string, more: readonly string[] = []): Promise<Watched> {
  const file = join(place.folder, 'token')
  writeFileSync(file, token)
  const admin = ['--admin', `127.0.0.1:${await freePort()}`, '--admin-token-file', file]
  const gateway = await place.startGateway(await gatewayArguments(upstream, store, [...admin, ...more]))
  const authorized = { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' }
  return {
    gateway,
    post: (key) => fetch(`${gateway.url}/charges`, { method: 'POST', body: '{}', headers: { 'Idempotency-Key': key } }),
    logged: (event) => gateway.lines.filter((line) => line['event'] === event),
    metrics: async () => (await fetch(`${gateway.admin}/metrics`)).text(),
    async ready() {
      const response = await fetch(`${gateway.admin}/readyz`)
      return `${response.status} ${(await response.text()).trim()}`
    },
    async picture() {
      const response = await fetch(`${gateway.admin}/api/live`)
      let text = ''
      for await (const chunk of response.body!.pipeThrough(new TextDecoderStream())) {
        text += chunk
        const [, data] = /^data: (.*)\n\n/m.exec(text) ?? []
        // Leaving the loop ends the stream.
        if (data !== undefined) return JSON.parse(data) as Readonly<Record<string, never>>
      }
      throw new Error('the dashboard sent nothing')
    },
    change: (action, body) =>
      fetch(`${gateway.admin}/api/${action}`, { method: 'POST', headers: authorized, body: JSON.stringify(body) }),
    async timeline(id) {
      return (await fetch(`${gateway.admin}/api/entry?${new URLSearchParams({ scope, id })}`)).text()
    },
  }
}

/** A service that is killed in the middle of its answer while `isKilled`. */
async function startService(): Promise<{ url: string; asked: string[]; isKilled: boolean } & AsyncDisposable> {
  const asked: string[] = []
  const service = createServer((req, res) => {
    asked.push(String(req.headers['idempotency-key']))
    if (started.isKilled) return void req.socket.destroy()
    res.writeHead(201, { 'Content-Type': 'application/json' }).end('{"receipt":"r1"}')
  })
  await new Promise<void>((resolve) => service.listen(0, '127.0.0.1', resolve))
  const started = {
    url: `http://127.0.0.1:${(service.address() as AddressInfo).port}`,
    asked,
    isKilled: false,
    async [Symbol.asyncDispose]() {
      service.closeAllConnections()
      await new Promise((resolve) => service.close(resolve))
    },
  }
  return started
}

needs('redis', { ours: true }).describe('Redis behind a gateway', () => {
  test('it loses its data: no effect runs twice, everything says so, and a person lets new keys in again', async () => {
    await using redis = await startRedis({ config: { appendonly: 'yes' } })
    await using service = await startService()
    const day = await startWatched(service.url, redis.url)
    expect((await day.post('order-1')).status).toBe(201)
    expect(await day.ready()).toBe('200 ready')
    await redisCommand(redis.url, 'FLUSHALL')
    await pollUntil('the loss to be noticed', () => day.logged('data-loss').length > 0)
    expect((await day.post('order-1')).status).toBe(503)
    expect(service.asked).toEqual(['order-1'])
    expect(day.logged('data-loss')[0]).toMatchObject({ level: 'error', store: 'redis', quarantined: true })
    expect(await day.metrics()).toMatch(/^onceonly_data_loss_total\{evidence="emptied"\} 1$/m)
    await pollUntil('it to be not ready', async () => (await day.ready()) === '503 not ready')
    expect(await day.metrics()).toMatch(/^onceonly_gateway_ready 0$/m)
    expect(day.logged('not-ready').at(-1)).toMatchObject({ level: 'error' })
    expect(await day.picture()).toMatchObject({ dataLoss: { event: { evidence: 'emptied', quarantined: true } } })
    expect((await day.picture())['notReady']).toBeDefined()
    const told = await onceonly(['quarantine', '--store', redis.url])
    expect([told.code, told.out]).toEqual([1, expect.stringContaining('Quarantine since')])
    const reason = ['--reason', 'compared with the ledger: order-1 ran']
    expect(await onceonly(['quarantine', '--store', redis.url, '--end', ...reason])).toMatchObject({ code: 0 })
    await pollUntil('it to be ready again', async () => (await day.ready()) === '200 ready')
    expect(day.logged('ready').length).toBeGreaterThan(0)
    expect((await day.post('order-2')).status).toBe(201)
  })

  test('an unprotected hour: the store is down, requests run, and everything says that they were not protected', async () => {
    await using redis = await startRedis({ config: { appendonly: 'yes' } })
    await using service = await startService()
    const day = await startWatched(service.url, redis.url, ['--on-store-down', 'run'])
    expect((await day.post('order-1')).status).toBe(201)
    await redis.crash()
    const open = await day.post('order-2')
    expect([open.status, open.headers.get('idempotency-status')]).toEqual([201, 'unprotected'])
    await pollUntil('its record', () => day.logged('request').length === 2)
    expect(day.logged('request').at(-1)).toMatchObject({ level: 'warn', result: 'unprotected' })
    await pollUntil('the watch to notice', async () => (await day.ready()) === '200 ready, unprotected')
    expect(day.logged('unprotected')[0]).toMatchObject({ level: 'error' })
    const metrics = await day.metrics()
    expect(metrics).toMatch(/^onceonly_unprotected_total\{code="STORE_UNAVAILABLE"\} 1$/m)
    expect(metrics).toMatch(/^onceonly_gateway_requests_total\{result="unprotected",status="2xx"\} 1$/m)
    expect(metrics).toMatch(/^onceonly_gateway_unprotected 1$/m)
    expect(await day.picture()).toMatchObject({ totals: { unprotected: 1 } })
    expect((await day.picture())['degraded']).toBeDefined()
    await redis.restart()
    await pollUntil('the protection to be back', async () => (await day.ready()) === '200 ready')
    expect(await day.metrics()).toMatch(/^onceonly_gateway_unprotected 0$/m)
    const replay = await day.post('order-1')
    expect([replay.status, replay.headers.get('idempotent-replayed')]).toEqual([201, 'true'])
  })
})

test('a key in doubt is resolved and a window is prolonged, from the command line and on the dashboard', async () => {
  await using service = await startService()
  const url = `sqlite:${join(place.folder, 'once.db')}`
  const inDoubt = ['--on-takeover', 'refuse', '--lease', '1s', '--wait', '0']
  // What a person gives to a key has no version, and must not count as older.
  const versioned = ['--response-version', '3', '--on-older-version', 'refuse']
  const day = await startWatched(service.url, url, [...inDoubt, ...versioned])
  const keys = (...args: string[]): Promise<Ended> => onceonly(['keys', ...args], { env: { ONCEONLY_STORE: url } })
  service.isKilled = true
  for (const id of ['order-1', 'order-2']) expect((await day.post(id)).status).toBe(502)
  const refusedWith = async (id: string): Promise<string> =>
    ((await (await day.post(id)).json()) as { code: string }).code
  for (const id of ['order-1', 'order-2']) {
    await pollUntil('the lease to be over', async () => (await refusedWith(id)) === 'idempotency-outcome-unknown')
  }
  expect(service.asked).toEqual(['order-1', 'order-2'])
  expect(day.logged('request').find(({ result }) => result === 'in-doubt')).toMatchObject({
    level: 'error',
    status: 502,
  })
  expect(await day.metrics()).toMatch(/^onceonly_releases_total\{how="left-to-lease"\} 2$/m)
  expect(Number(/^onceonly_doubts_total (\d+)$/m.exec(await day.metrics())![1])).toBeGreaterThanOrEqual(2)
  expect(await day.ready()).toBe('200 ready')
  await pollUntil('the dashboard to count them', async () => {
    const { waiting } = (await day.picture()) as { waiting?: { inDoubt: number } }
    return waiting?.inDoubt === 2
  })

  // The provider shows that order-1 was charged. The command is the one that `keys show` prints.
  expect((await keys('list', '--service', 'gateway:default', '--state', 'abandoned')).out).toMatch(
    /\(shared\) +order-1/,
  )
  const [, typed] = /onceonly keys (resolve .*)$/m.exec((await keys('show', scope, 'order-1')).out)!
  expect(typed).toBe(`resolve ${scope} order-1 --response-file FILE --reason 'TEXT' --store ${url}`)
  const answer = join(place.folder, 'answer.http')
  writeFileSync(answer, 'HTTP/1.1 201 Created\nContent-Type: application/json\n\n{"receipt":"r7"}')
  const found = typed!.replace('FILE', answer).replace("'TEXT'", 'ticket-7').split(' ')
  expect(await keys(...found, '--yes')).toMatchObject({ code: 0, error: '' })
  // Order-2 on the dashboard.
  const text = 'HTTP/1.1 402 Payment Required\n\ndeclined'
  const resolved = await day.change('resolve', { scope, id: 'order-2', reason: 'ticket-8', as: 'response', text })
  expect(resolved.status).toBe(200)
  const [one, two] = [await day.post('order-1'), await day.post('order-2')]
  expect([one.status, one.headers.get('idempotent-replayed'), await one.text()]).toEqual([
    201,
    'true',
    '{"receipt":"r7"}',
  ])
  expect([two.status, await two.text()]).toEqual([402, 'declined'])
  expect(service.asked).toEqual(['order-1', 'order-2'])
  expect(day.logged('mended')).toMatchObject([{ level: 'warn', action: 'resolve' }])
  expect(await day.metrics()).toMatch(/^onceonly_mended_total\{action="resolve"\} 1$/m)
  for (const [id, ticket] of [
    ['order-1', 'ticket-7'],
    ['order-2', 'ticket-8'],
  ] as const) {
    expect(await day.timeline(id)).toContain('resolved manually')
    expect(await day.timeline(id)).toContain(ticket)
  }

  // A partner announces that it will retry for a month.
  expect(await keys('keep', scope, 'order-1', '--for', '30d', '--reason', 'slow partner', '--yes')).toMatchObject({
    code: 0,
  })
  const kept = await day.change('keep', { scope, id: 'order-2', reason: 'slow partner', forMs: 30 * 86_400_000 })
  expect(kept.status).toBe(200)
  for (const id of ['order-1', 'order-2']) {
    const { entry } = JSON.parse((await keys('show', scope, id, '--json')).out) as { entry: { expiresAtMs: number } }
    expect(entry.expiresAtMs - Date.now()).toBeGreaterThan(29 * 86_400_000)
    expect(await day.timeline(id)).toContain('kept longer manually')
  }
  expect(await day.metrics()).toMatch(/^onceonly_mended_total\{action="keep"\} 1$/m)
  expect(day.logged('mended').at(-1)).toMatchObject({ level: 'warn', action: 'keep' })
  expect(await day.ready()).toBe('200 ready')
})

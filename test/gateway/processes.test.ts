// Real gateways that are killed, paused and asked to end, in front of a service that writes every charge into a ledger of its
// own. What holds is read from the ledger and from what clients were told.
import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { needs } from '../servers/needs.ts'
import { pollUntil } from '../servers/poll.ts'
import { startPostgres } from '../servers/postgres.ts'
import { startRedis } from '../servers/redis.ts'
import { durable } from '../subjects/redis.ts'
import { gatewayArguments, openPlace, type Place } from './programs.ts'

let place: Place
let service: string
const closing: (() => Promise<unknown>)[] = []

beforeEach(async () => {
  place = openPlace()
  service = await place.startService()
})
afterEach(async () => {
  await place.close()
  for (const close of closing.splice(0)) await close()
})

const sqliteUrl = (): string => `sqlite:${join(place.folder, 'store.db')}`

async function ask(url: string, key: string, headers: Record<string, string> = {}, path = '/pay'): Promise<Answer> {
  const response = await fetch(url + path, {
    method: 'POST',
    body: `{"order":"${key}"}`,
    headers: { 'idempotency-key': key, 'content-type': 'application/json', ...headers },
  })
  const replayed = response.headers.get('idempotent-replayed') === 'true'
  return { status: response.status, text: await response.text(), replayed }
}

interface Answer {
  readonly status: number
  readonly text: string
  readonly replayed: boolean
}

const codeOf = ({ text }: Answer): string => (JSON.parse(text) as { code: string }).code

function endOf(url: string, key: string): Promise<Answer> {
  return pollUntil(`an end of ${key}`, async () => {
    const answer = await ask(url, key)
    return answer.status !== 409 || codeOf(answer) !== 'idempotency-in-progress' ? answer : undefined
  })
}

test('killed again and again under load with --on-takeover refuse: no key has two charges, and every answer is kept', async () => {
  const kills = 4
  const workers = 16
  const args = await gatewayArguments(service, sqliteUrl(), [
    '--on-takeover',
    'refuse',
    '--lease',
    '1s',
    '--wait',
    '0s',
  ])
  let gateway = await place.startGateway(args)
  const answered = new Map<string, string>()
  const broken = new Set<string>()
  let running = true
  let back = Promise.withResolvers<void>()
  let next = 0
  const work = async (): Promise<void> => {
    while (running) {
      const key = `k-${next++}`
      try {
        const answer = await ask(gateway.url, key, { 'x-delay-ms': String(next % 20) })
        expect(answer.status, answer.text).toBe(201)
        answered.set(key, answer.text)
      } catch (error) {
        if (!(error instanceof TypeError)) throw error
        broken.add(key)
        await back.promise
      }
    }
  }
  const all = Promise.all(Array.from({ length: workers }, work))
  for (let count = 0; count < kills; count++) {
    const before = answered.size
    await pollUntil('some traffic', () => answered.size > before + 100)
    await pollUntil('charges that nobody was told of', () => place.charges().length - answered.size >= 4, {
      intervalMs: 1,
    })
    gateway.signal('SIGKILL')
    expect(await gateway.ended).toBe('SIGKILL')
    gateway = await place.startGateway(args)
    back.resolve()
    back = Promise.withResolvers<void>()
  }
  running = false
  back.resolve()
  await all
  // Every key once more, and again until its lease is over: it is replayed, run for the first time, or said to be unknown.
  const ends = { replayed: 0, unknown: 0, run: 0 }
  const left = [...answered.keys(), ...broken]
  const check = async (): Promise<void> => {
    for (let key = left.pop(); key !== undefined; key = left.pop()) {
      const answer = await endOf(gateway.url, key)
      if (answered.has(key)) expect(answer).toEqual({ status: 201, text: answered.get(key), replayed: true })
      if (answer.status === 409) expect(codeOf(answer)).toBe('idempotency-outcome-unknown')
      else expect(answer.status).toBe(201)
      ends[answer.status === 409 ? 'unknown' : answer.replayed ? 'replayed' : 'run']++
    }
  }
  await Promise.all(Array.from({ length: workers }, check))
  const keys = place.charges().map(({ key }) => key)
  expect(keys.length).toBe(new Set(keys).size)
  // A run in which nothing was in doubt would have proved nothing.
  expect(ends.unknown).toBeGreaterThanOrEqual(kills)
  expect(ends.replayed).toBeGreaterThanOrEqual(100 * kills)
})

/** Stores that two gateways can share. */
const stores: readonly (readonly [name: 'sqlite' | 'postgres' | 'redis', open: () => Promise<string>])[] = [
  ['sqlite', async () => sqliteUrl()],
  [
    'postgres',
    async () => {
      const server = await startPostgres()
      closing.push(() => server.stop())
      const url = await server.createDatabase()
      const main = join(import.meta.dirname, '..', '..', 'src', 'cli', 'main.ts')
      await promisify(execFile)(process.execPath, [main, 'migrate', '--store', url])
      return url
    },
  ],
  [
    'redis',
    async () => {
      const server = await startRedis({ config: durable })
      closing.push(() => server.stop())
      return server.url
    },
  ],
]

for (const [name, open] of stores) {
  needs(name, name === 'redis' ? { ours: true } : {}).describe(`two gateways on ${name}`, () => {
    test('one that is paused past its lease: the other takes over, and the late answer overwrites nothing', async () => {
      const store = await open()
      const more = ['--lease', '1s', '--wait', '0s']
      const paused = await place.startGateway(await gatewayArguments(service, store, more))
      const other = await place.startGateway(await gatewayArguments(service, store, more))
      const first = ask(paused.url, 'k', {}, '/held')
      await pollUntil('the charge', () => place.charges().length === 1)
      paused.signal('SIGSTOP')
      const second = pollUntil('the takeover', async () => {
        const answer = await ask(other.url, 'k', {}, '/held')
        return answer.status === 409 ? undefined : answer
      })
      await pollUntil('the second charge', () => place.charges().length === 2)
      await fetch(`${service}/release`)
      const winner = await second
      expect(winner).toMatchObject({ status: 201, replayed: false })
      paused.signal('SIGCONT')
      const late = await first
      expect([late.status, codeOf(late)]).toEqual([409, 'idempotency-in-progress'])
      for (const { url } of [paused, other]) {
        expect(await ask(url, 'k', {}, '/held')).toEqual({ ...winner, replayed: true })
      }
      expect(place.charges().map(({ attempt }) => attempt)).toEqual(['1', '2'])
    })

    test('one that is killed: the other takes its key over when the lease is over, and not before', async () => {
      const store = await open()
      const more = ['--lease', '5s', '--wait', '0s']
      const killed = await place.startGateway(await gatewayArguments(service, store, more))
      const other = await place.startGateway(await gatewayArguments(service, store, more))
      const lost = ask(killed.url, 'k', {}, '/held').catch((error: unknown) => error)
      await pollUntil('the charge', () => place.charges().length === 1)
      killed.signal('SIGKILL')
      expect(await lost).toBeInstanceOf(Error)
      expect(codeOf(await ask(other.url, 'k', {}, '/held'))).toBe('idempotency-in-progress')
      const taken = pollUntil('the takeover', async () => {
        const answer = await ask(other.url, 'k', {}, '/held')
        return answer.status === 201 ? answer : undefined
      })
      await pollUntil('the second charge', () => place.charges().length === 2)
      await fetch(`${service}/release`)
      expect(await taken).toMatchObject({ replayed: false })
      expect(place.charges().map(({ attempt }) => attempt)).toEqual(['1', '2'])
    })
  })
}

describe('SIGTERM', () => {
  test('what is under way is finished and stored, nothing more is accepted, and the program ends with 0', async () => {
    const gateway = await place.startGateway(await gatewayArguments(service, sqliteUrl()))
    const idle = await fetch(gateway.url, { method: 'POST' })
    await idle.text()
    const under = fetch(`${gateway.url}/held`, {
      method: 'POST',
      headers: { 'idempotency-key': 'k' },
      body: '{"order":"k"}',
    })
    await pollUntil('the charge', () => place.charges().length === 2)
    gateway.signal('SIGTERM')
    await pollUntil('nothing to be accepted', () =>
      fetch(gateway.url)
        .then(() => false)
        .catch(() => true),
    )
    await fetch(`${service}/release`)
    const answer = await under
    expect([answer.status, answer.headers.get('connection')]).toEqual([201, 'close'])
    const text = await answer.text()
    expect(await gateway.ended).toBe(0)
    const again = await place.startGateway(await gatewayArguments(service, sqliteUrl()))
    const retry = await fetch(`${again.url}/held`, {
      method: 'POST',
      headers: { 'idempotency-key': 'k' },
      body: '{"order":"k"}',
    })
    expect([await retry.text(), retry.headers.get('idempotent-replayed')]).toEqual([text, 'true'])
  })

  test.each([
    ['the time of --drain is over', ['--drain', '200ms'], 1],
    ['it is asked a second time', ['--drain', '60s'], 2],
  ])('a request that does not end is left when %s: exit 1, and its key stays claimed', async (_when, more, signals) => {
    const shared = ['--on-takeover', 'refuse', '--lease', '60s', '--wait', '0s']
    const gateway = await place.startGateway(await gatewayArguments(service, sqliteUrl(), [...shared, ...more]))
    const under = ask(gateway.url, 'k', {}, '/held').catch((error: unknown) => error)
    await pollUntil('the charge', () => place.charges().length === 1)
    gateway.signal('SIGTERM')
    await pollUntil('the drain', () => gateway.lines.some(({ event }) => event === 'draining'))
    if (signals === 2) gateway.signal('SIGTERM')
    expect(await gateway.ended).toBe(1)
    // Cut off, or told that nobody knows: never that it failed.
    const told = await under
    if (!(told instanceof Error)) expect(told).toMatchObject({ status: 502 })
    const again = await place.startGateway(await gatewayArguments(service, sqliteUrl(), shared))
    expect(codeOf(await ask(again.url, 'k', {}, '/held'))).toBe('idempotency-in-progress')
    expect(place.charges()).toHaveLength(1)
  })
})

// Sessions through the gateway: what the service behind it is given, what the log says, and the program with its flags on a real database.
// The rules of sessions on every adapter, the gateway among them, are test/http/sessions.test.ts.
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { gatewaySessions } from '../../src/gateway/proxy.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { needs } from '../servers/needs.ts'
import { pollUntil } from '../servers/poll.ts'
import { startPostgres } from '../servers/postgres.ts'
import { closeAll, closing, say, startGround, type Ground } from './ground.ts'
import { gatewayArguments, openPlace, type Place } from './programs.ts'
import { answerWith, rawUpstream, valueIn } from './raw-upstream.ts'

const path = '/.well-known/idempotency/sessions'

interface Till {
  readonly epoch: number
  ask(sequence: number, other?: Other): Promise<Response>
}

interface Other {
  readonly headers?: Readonly<Record<string, string>>
  // Another gateway of the same service.
  readonly at?: string
  readonly path?: string
}

async function register(url: string, client: string, account: Readonly<Record<string, string>> = {}): Promise<Till> {
  const registered = await fetch(url + path, { method: 'POST', headers: account, body: JSON.stringify({ client }) })
  expect(registered.status).toBe(201)
  const { session, epoch } = (await registered.json()) as { session: string; epoch: number }
  return {
    epoch,
    ask: (sequence, { headers = {}, at = url, path: asked = '/pay' } = {}) =>
      fetch(at + asked, {
        method: 'POST',
        body: `{"order":${sequence}}`,
        headers: {
          'content-type': 'application/json',
          ...account,
          'idempotency-session': session,
          'idempotency-epoch': `${epoch}`,
          'idempotency-sequence': `${sequence}`,
          'idempotency-acknowledged': '0',
          ...headers,
        },
      }),
  }
}

describe('in this process', () => {
  afterEach(closeAll)

  async function start(answer: Parameters<typeof rawUpstream>[0]): Promise<{ ground: Ground; heads: () => string[] }> {
    const upstream = closing(await rawUpstream(answer))
    const store = memoryStore()
    const sessions = gatewaySessions({ store, waitMs: 0 })
    const ground = await startGround(upstream.url, { store, sessions, tenantHeader: 'X-Account' })
    return { ground, heads: () => upstream.seen.map(({ head }) => head) }
  }

  test('the service is given a key of its own for each number, and no header of the session', async () => {
    const { ground, heads } = await start(answerWith('ok'))
    const acme = await register(ground.gateway.url, 'till', { 'x-account': 'acme' })
    const other = await register(ground.gateway.url, 'till', { 'x-account': 'other' })
    for (const till of [acme, other]) for (const sequence of [1, 2]) await till.ask(sequence)
    const keys = heads().map((head) => valueIn(head, 'Idempotency-Key'))
    expect(keys.map((lines) => lines.length)).toEqual([1, 1, 1, 1])
    expect(new Set(keys.flat()).size).toBe(4)
    for (const name of ['Session', 'Epoch', 'Sequence', 'Acknowledged']) {
      expect(heads().flatMap((head) => valueIn(head, `Idempotency-${name}`))).toEqual([])
    }
    expect(valueIn(heads()[0]!, 'Idempotency-Attempt')).toEqual(['1'])
  })

  test('a number that runs again has the same key and the next attempt', async () => {
    const { ground, heads } = await start(answerWith('', [], '500 Oops'))
    const till = await register(ground.gateway.url, 'till', { 'x-account': 'acme' })
    for (let times = 0; times < 2; times++) expect((await till.ask(1)).status).toBe(500)
    const [first, second] = heads().map((head) => valueIn(head, 'Idempotency-Key'))
    expect(second).toEqual(first)
    expect(heads().map((head) => valueIn(head, 'Idempotency-Attempt'))).toEqual([['1'], ['2']])
  })

  test('the log counts numbers as it counts keys, and a registration as passed', async () => {
    const { ground } = await start(answerWith('ok'))
    const till = await register(ground.gateway.url, 'till', { 'x-account': 'acme' })
    await till.ask(1)
    expect((await till.ask(1)).headers.get('idempotent-replayed')).toBe('true')
    expect((await till.ask(1, { headers: { 'idempotency-epoch': `${till.epoch - 1}` } })).status).toBe(409)
    expect((await till.ask(1, { headers: { 'idempotency-sequence': 'one' } })).status).toBe(400)
    await pollUntil('the records', () => ground.records.length === 5)
    const [registered, executed, ...others] = ground.records
    expect([registered!.result, executed!.result, ...others.map(({ result }) => result)]).toEqual([
      'passed',
      'executed',
      'replayed',
      'refused',
      'refused',
    ])
    expect(executed!.keyHash).toBe(others[0]!.keyHash)
    expect(registered!.keyHash).toBeUndefined()
  })

  test('a header of the session that two readers could read in two ways is refused', async () => {
    const { ground, heads } = await start(answerWith('ok'))
    const lines = ['POST /pay HTTP/1.1', 'Host: a', 'X-Account: acme', 'Content-Length: 0', 'Connection: close']
    for (const line of ['Connection: idempotency-sequence', 'Idempotency_Sequence: 2']) {
      expect(await say(ground.port, [...lines, line, '', ''].join('\r\n')), line).toMatch(/^HTTP\/1\.1 400 /)
    }
    expect(heads()).toEqual([])
  })
})

describe('as a program', () => {
  let place: Place
  beforeEach(() => void (place = openPlace()))
  afterEach(() => place.close())

  test('on SQLite it says that requests take turns, and a number is charged once', async () => {
    const service = await place.startService()
    const store = `sqlite:${join(place.folder, 'store.db')}`
    const flags = ['--migrate', '--sessions', '--session-window', '2', '--session-lease', '1h']
    const gateway = await place.startGateway(await gatewayArguments(service, store, flags))
    expect(gateway.lines.find(({ event }) => event === 'sessions-take-turns')).toMatchObject({ level: 'warn' })
    const rules = await fetch(`${gateway.url}/.well-known/idempotency`, { headers: { accept: 'application/json' } })
    expect(await rules.json()).toMatchObject({ sessions: { path, window: 2, leaseMs: 3_600_000 } })
    const till = await register(gateway.url, 'till')
    const answers = [await till.ask(1), await till.ask(1)]
    const [first, second] = await Promise.all(answers.map((each) => each.text()))
    expect([second, answers[1]!.headers.get('idempotent-replayed')]).toEqual([first, 'true'])
    expect((await till.ask(3)).status).toBe(409)
    expect(place.charges()).toHaveLength(1)
  })

  needs('postgres').test(
    'a gateway that is killed leaves its number to the next one, and what it answered is replayed',
    async () => {
      await using server = await startPostgres()
      const service = await place.startService()
      const flags = ['--migrate', '--sessions']
      const first = await place.startGateway(await gatewayArguments(service, server.url, flags))
      const till = await register(first.url, 'till')
      const kept = await (await till.ask(1)).text()
      const cut = till.ask(2, { path: '/held' }).catch(() => 'cut')
      await pollUntil('the service to be asked', () => place.charges().length === 2)
      first.signal('SIGKILL')
      expect(await cut).toBe('cut')
      const { url: at } = await place.startGateway(await gatewayArguments(service, server.url, flags))
      const replayed = await till.ask(1, { at })
      expect([await replayed.text(), replayed.headers.get('idempotent-replayed')]).toEqual([kept, 'true'])
      // In progress until the database has noticed that the dead one is gone.
      const again = pollUntil('the number to run again', async () => {
        const answer = await till.ask(2, { at, path: '/held' })
        return answer.status === 409 ? undefined : answer
      })
      await pollUntil('the service to be asked again', () => place.charges().length === 3)
      await fetch(`${service}/release`)
      expect((await again).status).toBe(201)
      const [, before, after] = place.charges()
      expect(after!.key).toBe(before!.key)
    },
  )
})

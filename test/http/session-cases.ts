// What sessions over HTTP must do on every adapter and through the gateway: real HTTP, on the application of the conformance cases. One
// application per list of cases, and a client of its own per case. Time is moved by hand.
import { expect } from 'vitest'
import { createOnce } from '../../src/core/once.ts'
import { createSessions, type Sessions, type SessionsOptions } from '../../src/sessions/sessions.ts'
import { manualClock } from '../../src/testing/manual-clock.ts'
import { listen, type StartApp } from '../conformance/apps/app.ts'
import { send, valueOf, type WireResponse } from '../conformance/client.ts'
import { createFixture, defaultSettings, type Fixture } from '../conformance/fixture.ts'
import { memoryLedger } from '../conformance/ledger.ts'
import type { StoreKind } from '../conformance/stores.ts'
import { pollUntil } from '../servers/poll.ts'

export interface SessionWorld {
  readonly fixture: Fixture
  readonly sessions: Sessions
  // A store with one writer runs one request after the other.
  readonly isSerial: boolean
  // Redis decides about sessions by its own clock.
  readonly isTimeOurs: boolean
  advance(ms: number): Promise<void>
  ask(request: AskedOverHttp): Promise<WireResponse>
  effects(tag: string): Promise<number>
  close(): Promise<void>
}

export interface AskedOverHttp {
  readonly method?: string
  readonly path: string
  readonly as?: string | undefined
  readonly headers?: Readonly<Record<string, string | undefined>>
  readonly body?: string
}

export const leaseMs = 60_000
export const window = 3
export const sessionsPath = '/.well-known/idempotency/sessions'

export interface SessionWorldOptions {
  readonly start: StartApp
  readonly storeKind: StoreKind
  // 'none': the adapter is given no sessions.
  readonly sessions?: Partial<SessionsOptions> | 'none'
  readonly config?: Readonly<Record<string, unknown>>
  readonly transactions?: 'offered' | 'none'
  readonly commitWith?: (tx: unknown, tag: string) => Promise<void>
}

export async function openSessionWorld(options: SessionWorldOptions): Promise<SessionWorld> {
  const { start, storeKind, config = {}, transactions = 'none', commitWith } = options
  const clock = manualClock()
  const place = await storeKind.open(clock)
  const { store } = place
  const given = options.sessions === 'none' ? {} : options.sessions
  const sessions = createSessions({ store, scope: 'tills', clock, window, leaseMs, strict: true, waitMs: 0, ...given })
  await sessions.migrate()
  const fixture = createFixture(clock, memoryLedger(), { ...defaultSettings, ...(commitWith && { commitWith }) })
  const once = createOnce({ store, scope: 'shop', clock, sweepEveryMs: false })
  const server = await listen(start, {
    once,
    fixture,
    options: (protection) => ({
      ...(options.sessions !== 'none' && { sessions }),
      ...(protection === 'required' && { required: true }),
      ...(protection === 'transaction' && { transaction: true }),
      ...config,
    }),
    transactions,
    log: () => {},
    control: async () => 'no controls here',
  })
  return {
    fixture,
    sessions,
    isSerial: storeKind.name === 'sqlite',
    isTimeOurs: storeKind.name !== 'redis',
    async advance(ms) {
      await clock.advance(ms)
      await place.advance(ms)
    },
    ask({ method = 'POST', path, as = 'acme-1', headers = {}, body = '{}' }) {
      const named = { Authorization: as && `Bearer ${as}`, 'Content-Type': 'application/json', ...headers }
      const headerLines = Object.entries(named).flatMap(([name, value]) =>
        value === undefined ? [] : `${name}: ${value}`,
      )
      return send({ port: server.port, method, path, headerLines, body: Buffer.from(body) }).response
    },
    effects: async (tag) => (await fixture.ledger.counts()).get(tag)?.effects ?? 0,
    async close() {
      await server.close()
      await once.close()
      await place.close()
    },
  }
}

export interface Till {
  readonly session: string
  readonly epoch: number
  ask(
    sequence: number,
    more?: Partial<AskedOverHttp> & { readonly acknowledged?: number; readonly tag?: string },
  ): Promise<WireResponse>
}

export function numbers(session: string, epoch: number, sequence: number, acknowledged = 0): Record<string, string> {
  return {
    'Idempotency-Session': `"${session}"`,
    'Idempotency-Epoch': `${epoch}`,
    'Idempotency-Sequence': `${sequence}`,
    'Idempotency-Acknowledged': `${acknowledged}`,
  }
}

export async function register(world: SessionWorld, client: string, as = 'acme-1'): Promise<Till> {
  const registered = await world.ask({ path: sessionsPath, as, body: JSON.stringify({ client }) })
  expect([registered.status, registered.body.toString()]).toEqual([
    201,
    expect.stringContaining(`"session":"${client}"`),
  ])
  const { session, epoch } = JSON.parse(registered.body.toString()) as { session: string; epoch: number }
  return {
    session,
    epoch,
    ask: (sequence, { acknowledged = 0, tag = `${as}-${client}-${sequence}`, headers, ...more } = {}) =>
      world.ask({
        path: '/effects',
        as,
        body: JSON.stringify({ tag }),
        ...more,
        headers: { ...numbers(session, epoch, sequence, acknowledged), ...headers },
      }),
  }
}

const problemIn = (answer: WireResponse): { code: string; detail: string; executed: string; retryable: boolean } =>
  JSON.parse(answer.body.toString())

export function expectProblem(answer: WireResponse, status: number, code: string): void {
  expect([answer.status, problemIn(answer).code]).toEqual([status, code])
  expect(valueOf(answer, 'content-type')).toBe('application/problem+json')
  expect(valueOf(answer, 'cache-control')).toBe('no-store')
  expect(valueOf(answer, 'retry-after') !== undefined, 'Retry-After').toBe(problemIn(answer).retryable)
}

// What every answer has anew.
const own = /^(?:date|connection|keep-alive|content-length|transfer-encoding|idempotent-replayed|via)$/i

function expectReplay(first: WireResponse, second: WireResponse): void {
  expect(second.status).toBe(first.status)
  expect(second.body).toEqual(first.body)
  expect(valueOf(second, 'idempotent-replayed')).toBe('true')
  expect(valueOf(first, 'idempotent-replayed')).toBeUndefined()
  const lines = ({ headerLines }: WireResponse): string[] =>
    headerLines.filter(([name]) => !own.test(name)).map(([name, value]) => `${name.toLowerCase()}: ${value}`)
  expect(lines(second).toSorted()).toEqual(lines(first).toSorted())
}

export type SessionCase = (world: SessionWorld) => Promise<void>

export const sessionCases: Readonly<Record<string, SessionCase>> = {
  async 'a numbered request runs once, and its answer comes again byte for byte'(world) {
    const till = await register(world, 'first')
    for (const [at, path] of ['/effects', '/binary', '/status/402'].entries()) {
      const more = { path, acknowledged: at, tag: `first-${at}` }
      const answer = await till.ask(at + 1, more)
      expect(valueOf(answer, 'idempotency-window')).toBe(`${leaseMs / 1_000}`)
      expectReplay(answer, await till.ask(at + 1, more))
      expect(await world.effects(`first-${at}`), path).toBe(1)
    }
  },
  async 'a number in another request is refused, and nothing runs'(world) {
    const till = await register(world, 'mismatch')
    await till.ask(1, { tag: 'mismatch' })
    for (const more of [{ tag: 'mismatch-body' }, { path: '/refunds', tag: 'mismatch' }]) {
      expectProblem(await till.ask(1, more), 422, 'idempotency-sequence-reused')
    }
    expect([await world.effects('mismatch'), await world.effects('mismatch-body')]).toEqual([1, 0])
  },
  async 'a failure of the server is no answer, and the number runs again'(world) {
    const till = await register(world, 'flaky')
    expect((await till.ask(1, { path: '/status/500', tag: 'flaky' })).status).toBe(500)
    expect((await till.ask(1, { path: '/status/500', tag: 'flaky' })).status).toBe(500)
    expectProblem(await till.ask(1, { tag: 'flaky' }), 422, 'idempotency-sequence-reused')
    expect(await world.effects('flaky')).toBe(2)
  },
  async 'beyond the window nothing runs until answers are acknowledged'(world) {
    const till = await register(world, 'window')
    for (const sequence of [1, 2, 3]) expect((await till.ask(sequence)).status).toBe(201)
    expectProblem(await till.ask(4), 409, 'idempotency-window-exceeded')
    expect((await till.ask(4, { acknowledged: 1 })).status).toBe(201)
    expect(await world.effects('acme-1-window-4')).toBe(1)
  },
  async 'a number that leaves a gap is refused in a strict session'(world) {
    const till = await register(world, 'gap')
    expectProblem(await till.ask(2), 409, 'idempotency-sequence-gap')
    expect((await till.ask(1)).status).toBe(201)
    expect((await till.ask(2)).status).toBe(201)
  },
  async 'what was acknowledged is gone, and never runs again'(world) {
    const till = await register(world, 'forgotten')
    await till.ask(1)
    await till.ask(2, { acknowledged: 1 })
    expectProblem(await till.ask(1), 410, 'idempotency-session-forgotten')
    expect(await world.effects('acme-1-forgotten-1')).toBe(1)
  },
  async 'registering again fences the epoch before'(world) {
    const before = await register(world, 'fenced')
    const after = await register(world, 'fenced')
    expect(after.epoch).toBeGreaterThan(before.epoch)
    expectProblem(await before.ask(1), 409, 'idempotency-session-fenced')
    const path = `${sessionsPath}/fenced`
    for (const method of ['PUT', 'DELETE']) {
      const headers = { 'Idempotency-Epoch': `${before.epoch}` }
      expectProblem(await world.ask({ method, path, headers }), 409, 'idempotency-session-fenced')
    }
    expect((await after.ask(1)).status).toBe(201)
  },
  async 'a session that was silent, was never registered or has another epoch is gone'(world) {
    const till = await register(world, 'expired')
    await world.advance(leaseMs)
    if (world.isTimeOurs) expectProblem(await till.ask(1), 410, 'idempotency-session-expired')
    const alive = await register(world, 'alive')
    for (const headers of [numbers('nobody', 1, 1), numbers('alive', alive.epoch + 1, 1)]) {
      expectProblem(await world.ask({ path: '/effects', headers }), 410, 'idempotency-session-expired')
    }
    expect(await world.effects('acme-1-expired-1')).toBe(0)
  },
  async 'a session that is renewed in time stays, and one that is closed is gone'(world) {
    const till = await register(world, 'renewed')
    const path = `${sessionsPath}/renewed`
    const headers = { 'Idempotency-Epoch': `${till.epoch}` }
    for (let times = 0; times < 2; times++) {
      await world.advance(leaseMs - 10_000)
      const renewed = await world.ask({ method: 'PUT', path, headers })
      expect([renewed.status, renewed.body.toString()]).toEqual([200, JSON.stringify({ leaseMs })])
      expect(valueOf(renewed, 'cache-control')).toBe('no-store')
    }
    expect((await till.ask(1)).status).toBe(201)
    const closed = await world.ask({ method: 'DELETE', path, headers })
    expect([closed.status, closed.body.length]).toEqual([204, 0])
    expectProblem(await till.ask(1), 410, 'idempotency-session-expired')
    expectProblem(await world.ask({ method: 'PUT', path, headers }), 410, 'idempotency-session-expired')
    expectProblem(await world.ask({ method: 'DELETE', path, headers: {} }), 400, 'idempotency-session-invalid')
  },
  async 'a duplicate of a running request has one effect and the same answer'(world) {
    const till = await register(world, 'in-flight')
    const more = { path: '/gate/in-flight', tag: 'in-flight' }
    const first = till.ask(1, more)
    await pollUntil('the handler to run', async () => (await world.effects('in-flight')) === 1, { intervalMs: 1 })
    const second = till.ask(1, more)
    // One writer: the duplicate comes after the first one.
    if (!world.isSerial) {
      expectProblem(await second, 409, 'idempotency-in-progress')
      expect(problemIn(await second).detail).toContain('Ask again with the same number')
    }
    world.fixture.gate('in-flight').open()
    expectReplay(await first, world.isSerial ? await second : await till.ask(1, more))
    expect(await world.effects('in-flight')).toBe(1)
  },
  async 'a client that registers again while its request runs gets no answer to it'(world) {
    const zombie = await register(world, 'zombie')
    const running = zombie.ask(1, { path: '/gate/zombie', tag: 'zombie' })
    await pollUntil('the handler to run', async () => (await world.effects('zombie')) === 1, { intervalMs: 1 })
    const next = await register(world, 'zombie')
    world.fixture.gate('zombie').open()
    const answer = await running
    expectProblem(answer, 409, 'idempotency-session-fenced')
    expect(problemIn(answer).executed).toBe('unknown')
    expect((await next.ask(1)).status).toBe(201)
  },
  async 'a session belongs to its tenant'(world) {
    const acme = await register(world, 'till')
    const other = await register(world, 'till', 'other-1')
    // Neither fences the other, and one number of each has its own effect.
    expect((await acme.ask(1)).status).toBe(201)
    expect((await other.ask(1)).status).toBe(201)
    expect([await world.effects('acme-1-till-1'), await world.effects('other-1-till-1')]).toEqual([1, 1])
    const mine = await register(world, 'only-acme')
    expectProblem(await mine.ask(1, { as: 'other-1' }), 410, 'idempotency-session-expired')
    const headers = { 'Idempotency-Epoch': `${mine.epoch}` }
    for (const method of ['PUT', 'DELETE']) {
      const theirs = await world.ask({ method, path: `${sessionsPath}/only-acme`, as: 'other-1', headers })
      expectProblem(theirs, 410, 'idempotency-session-expired')
    }
    expect((await mine.ask(1)).status).toBe(201)
    // A refreshed credential is still the same account.
    expectReplay(await mine.ask(2), await mine.ask(2, { as: 'acme-2' }))
  },
  async 'a caller without a tenant can neither register nor use a session'(world) {
    const headers = { Authorization: undefined }
    expectProblem(await world.ask({ path: sessionsPath, headers }), 400, 'idempotency-scope-missing')
    const asked = world.ask({ path: '/anonymous', headers: { ...headers, ...numbers('till', 1, 1) } })
    expectProblem(await asked, 400, 'idempotency-scope-missing')
  },
  async 'a request with a key and a session is refused, and so is one whose headers are not all there'(world) {
    const till = await register(world, 'malformed')
    const both = await till.ask(1, { headers: { 'Idempotency-Key': 'k1' } })
    expectProblem(both, 400, 'idempotency-session-and-key')
    expect(problemIn(both).detail).toBe('Send either the key, or the headers of the session.')
    const wrong: readonly (readonly [name: string, value: string | undefined])[] = [
      ['Idempotency-Session', undefined],
      ['Idempotency-Session', '""'],
      ['Idempotency-Session', '"a", "b"'],
      ['Idempotency-Epoch', undefined],
      ['Idempotency-Epoch', '0'],
      ['Idempotency-Sequence', undefined],
      ...['', '0', '-1', '+1', '01', '1.0', '1e1', '0x1', '"1"', '1, 1', '1000000000000000', '1;', 'one'].map(
        (value) => ['Idempotency-Sequence', value] as const,
      ),
      ['Idempotency-Acknowledged', undefined],
      ['Idempotency-Acknowledged', '-1'],
      ['Idempotency-Acknowledged', '1'],
    ]
    for (const [name, value] of wrong) {
      const answer = await till.ask(1, { headers: { [name]: value } })
      expectProblem(answer, 400, 'idempotency-session-invalid')
      expect(problemIn(answer).detail.startsWith(name), `${name}: ${value}`).toBe(true)
    }
    expect(await world.effects('acme-1-malformed-1')).toBe(0)
    // Items of structured fields, with parameters that nothing defines.
    const items = {
      'Idempotency-Session': 'malformed',
      'Idempotency-Sequence': ' 1;a=b',
      'Idempotency-Acknowledged': '0; c',
    }
    expect((await till.ask(1, { headers: items })).status).toBe(201)
  },
  async 'a client gets a name if it has none, and a registration that makes no sense is refused'(world) {
    const seen = new Set<string>()
    for (const body of ['', '{}', '{"client":"a/b é"}'.replace(' é', '~ "'.replace('"', '\\"'))]) {
      const answer = await world.ask({ path: sessionsPath, body })
      const registered = JSON.parse(answer.body.toString()) as { session: string; epoch: number }
      expect([answer.status, registered]).toEqual([
        201,
        { session: expect.any(String), epoch: expect.any(Number), window, leaseMs },
      ])
      expect([valueOf(answer, 'cache-control'), valueOf(answer, 'content-type')]).toEqual([
        'no-store',
        'application/json',
      ])
      seen.add(registered.session)
      const path = `${sessionsPath}/${encodeURIComponent(registered.session)}`
      const headers = { 'Idempotency-Epoch': `${registered.epoch}` }
      expect((await world.ask({ method: 'PUT', path, headers })).status, registered.session).toBe(200)
    }
    expect(seen.size).toBe(3)
    const wrong = [
      'no JSON',
      '[]',
      '"till"',
      '{"client":7}',
      '{"client":""}',
      '{"client":"é"}',
      `{"client":"${'x'.repeat(5_000)}"}`,
    ]
    for (const body of wrong) {
      expectProblem(await world.ask({ path: sessionsPath, body }), 400, 'idempotency-session-invalid')
    }
    const headers = { 'Idempotency-Epoch': '1' }
    const path = `${sessionsPath}/%C3%A9`
    expectProblem(await world.ask({ method: 'PUT', path, headers }), 400, 'idempotency-session-invalid')
  },
  async 'the published rules say that sessions are offered'(world) {
    const path = '/.well-known/idempotency'
    const rules = await world.ask({ method: 'GET', path, headers: { Accept: 'application/json' }, body: '' })
    const { sessions } = JSON.parse(rules.body.toString()) as { sessions: unknown }
    expect(sessions).toEqual({ path: sessionsPath, window, leaseMs })
  },
}

/** A database with one writer registers nobody while a request runs. */
const casesOfSeveralWriters: readonly string[] = [
  'a client that registers again while its request runs gets no answer to it',
]

/** The cases for a store of this kind. */
export const sessionCasesOn = ({ name }: StoreKind): readonly (readonly [string, SessionCase])[] =>
  Object.entries(sessionCases).filter(([what]) => name !== 'sqlite' || !casesOfSeveralWriters.includes(what))

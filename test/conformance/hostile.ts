// The hostile cases whose precondition is more than knobs: clients that go away at each phase of an exchange, scopes that name
// nobody, several requests on one connection, what the caller of a handler left in its context.
import { connect } from 'node:net'
import { expect } from 'vitest'
import { pollUntil } from '../servers/poll.ts'
import { type Case, type CaseRequest, bodyBytes, onTheWire } from './cases.ts'
import { type Exchange, send, type WireResponse } from './client.ts'
import { sum } from './ledger.ts'
import { expectProblem, isReplayed } from './prose.ts'
import type { Subject } from './runner.ts'
import { nested } from './variants.ts'
import { openWorld, type World } from './world.ts'

export const hostile: Readonly<Record<string, (subject: Subject, theCase: Case) => Promise<void>>> = {
  'AB-h1': goneInTheMiddleOfAnUpload,
  'AB-h2': goneAtEachPhase,
  'AB-h3': goneBeforeTheHandler,
  'TS-h1': weirdTenants,
  'IF-h1': onOneConnection,
  'FX-h1': contextOfTheCaller,
  'FX-h2': wrongAfterItsAnswer,
}

async function inWorld(subject: Subject, theCase: Case, body: (world: World) => Promise<void>): Promise<void> {
  const { start, storeKind } = subject
  const world = await openWorld({ start, storeKind, config: nested(theCase.config) })
  try {
    await body(world)
  } finally {
    await world.close()
  }
}

function ask(world: World, request: CaseRequest, how: 'all' | 'half' = 'all'): Exchange {
  const wire = onTheWire(request, new Map(), () => bodyBytes(request.body)!)
  return send({ port: world.port, method: request.method, ...wire, sends: how })
}

/** The whole body is promised by its digest, the handler runs while it comes in, and the client is gone half-way. */
async function goneInTheMiddleOfAnUpload(subject: Subject, theCase: Case): Promise<void> {
  await inWorld(subject, theCase, async (world) => {
    const request = theCase.requests[0]!
    const upload = ask(world, request, 'half')
    // Adapters that parse before they claim never come to a claim.
    await pollUntil('the head', () => world.requestsSeen() > 0, { intervalMs: 1 })
    await world.quiet()
    upload.abort()
    await pollUntil('the server to see the client go', () => world.clientsGone() > 0, { intervalMs: 1 })
    await world.quiet()
    await expectOnceThenReplay(world, request)
  })
}

/** The upload breaks off while the claim is on its way: there is no request that a handler could run for. */
async function goneBeforeTheHandler(subject: Subject, theCase: Case): Promise<void> {
  await inWorld(subject, theCase, async (world) => {
    const request = theCase.requests[0]!
    const gate = stopAt(world, 'claim')
    const upload = ask(world, request, 'half')
    await pollUntil('the head', () => world.requestsSeen() > 0, { intervalMs: 1 })
    await world.quiet()
    upload.abort()
    await pollUntil('the server to see the client go', () => world.clientsGone() > 0, { intervalMs: 1 })
    gate.open()
    await world.quiet()
    await expectOnceThenReplay(world, request)
    expect(sum(await world.fixture.ledger.counts(), 'invocations')).toBe(1)
  })
}

async function goneAtEachPhase(subject: Subject, theCase: Case): Promise<void> {
  for (const phase of ['scope', 'claim', 'settle'] as const) {
    await inWorld(subject, theCase, async (world) => {
      const request = theCase.requests[0]!
      const gate = stopAt(world, phase)
      const first = ask(world, request)
      await pollUntil(`the ${phase}`, gate.isReached, { intervalMs: 1 })
      first.abort()
      await world.quiet()
      gate.open()
      await world.quiet()
      const [answer, again] = [await ask(world, request).response, await ask(world, request).response]
      expect([answer.status, again.status, isReplayed(again)], phase).toEqual([201, 201, true])
      expect(again.body.equals(answer.body), phase).toBe(true)
      expect(sum(await world.fixture.ledger.counts(), 'effects'), `effects, gone in ${phase}`).toBe(1)
    })
  }
}

/** Whoever comes there first waits; all others pass. */
function stopAt({ fixture, line }: World, phase: 'scope' | 'claim' | 'settle'): { isReached(): boolean; open(): void } {
  const { promise, resolve } = Promise.withResolvers<void>()
  let reached = false
  const once = async (): Promise<void> => {
    if (reached) return
    reached = true
    await promise
  }
  const on = (phase === 'scope' ? fixture : line.store) as unknown as Record<string, (...args: unknown[]) => unknown>
  const name = phase === 'scope' ? 'scopeOf' : phase
  const own = on[name]!
  on[name] = async (...args) => {
    await once()
    return own.apply(on, args)
  }
  return { isReached: () => reached, open: resolve }
}

/** What the framework does about the error (Express ends the connection) comes before the answer is settled. */
async function wrongAfterItsAnswer(subject: Subject, theCase: Case): Promise<void> {
  await inWorld(subject, theCase, async (world) => {
    const request = theCase.requests[0]!
    const gate = stopAt(world, 'settle')
    const asking = ask(world, request)
    await pollUntil('the answer', gate.isReached, { intervalMs: 1 })
    await world.quiet()
    gate.open()
    const [first, again] = [await asking.response, await ask(world, request).response]
    expect([first.status, first.complete, again.status, isReplayed(again)]).toEqual([201, true, 201, true])
    expect(again.body.equals(first.body)).toBe(true)
    expect(sum(await world.fixture.ledger.counts(), 'effects')).toBe(theCase.effects)
  })
}

async function weirdTenants(subject: Subject, theCase: Case): Promise<void> {
  await inWorld(subject, theCase, async (world) => {
    const request = theCase.requests[0]!
    const name = (scopeOf: () => unknown): void => void Object.assign(world.fixture, { scopeOf })
    for (const nobody of [() => undefined, () => null, () => '', async () => undefined]) {
      name(nobody)
      expectProblem(await ask(world, request).response, 400, 'idempotency-scope-missing')
    }
    // A mistake of the program, not of the client.
    for (const mistake of [() => 42, () => ({}), () => ['a'], () => true, async () => lost(), lost]) {
      name(mistake)
      expect((await ask(world, request).response).status).toBe(500)
    }
    expect(sum(await world.fixture.ledger.counts(), 'invocations')).toBe(0)
    const tenants = [
      '\ud800',
      '\udc00',
      '\ufffd',
      'a\0\r\nb',
      '../x',
      '..%2Fx',
      'x'.repeat(10_000),
      '\u{1f600}'.repeat(90),
    ]
    for (const [index, tenant] of tenants.entries()) {
      name(() => tenant)
      await expectOnceThenReplay(world, request)
      expect(sum(await world.fixture.ledger.counts(), 'effects')).toBe(index + 1)
    }
  })
}

function lost(): never {
  throw new Error('nobody knows')
}

async function expectOnceThenReplay(world: World, request: CaseRequest): Promise<void> {
  const [first, again]: WireResponse[] = [await ask(world, request).response, await ask(world, request).response]
  expect([first!.status, isReplayed(first!)], first!.body.toString('latin1')).toEqual([201, false])
  expect([again!.status, isReplayed(again!)], again!.body.toString('latin1')).toEqual([201, true])
  expect(again!.body.equals(first!.body)).toBe(true)
}

/** A client that does not wait for its answers, and sends some requests twice. */
async function onOneConnection(subject: Subject, theCase: Case): Promise<void> {
  await inWorld(subject, theCase, async (world) => {
    const all = theCase.requests.map((request, index) => {
      const { path, headerLines, body } = onTheWire(request, new Map(), () => Buffer.alloc(0))
      const last = index === theCase.requests.length - 1 ? ['Connection: close'] : []
      const lines = [
        `${request.method} ${path} HTTP/1.1`,
        'Host: a',
        `Content-Length: ${body!.length}`,
        ...headerLines,
        ...last,
      ]
      return `${lines.join('\r\n')}\r\n\r\n${body!.toString('latin1')}`
    })
    const socket = connect({ port: world.port, host: '127.0.0.1' })
    let received = ''
    socket.setEncoding('latin1').on('data', (chunk: string) => (received += chunk))
    let closed = false
    socket.on('close', () => (closed = true)).write(all.join(''))
    // A duplicate that is told to wait asks again by the clock of the world.
    await pollUntil('all answers', async () => closed || (await world.advance(50), closed), { intervalMs: 1 })
    const statuses = [...received.matchAll(/HTTP\/1\.1 (\d+)/g)].map(([, status]) => Number(status))
    expect(statuses).toEqual(theCase.requests.map(({ id }) => (theCase.expect[id] as { status: number }).status))
    expect(sum(await world.fixture.ledger.counts(), 'effects')).toBe(theCase.effects)
  })
}

/** Twenty at once, so that what stores and duplicates do together cannot mix up whose request it is. */
async function contextOfTheCaller(subject: Subject, theCase: Case): Promise<void> {
  await inWorld(subject, theCase, async (world) => {
    const [request] = theCase.requests
    const keys = Array.from({ length: 20 }, (_, index) => `fx-h1-${index}`)
    const answers = await Promise.all(
      keys.map((key) => ask(world, { ...request!, headers: { 'Idempotency-Key': key } }).response),
    )
    const contexts = answers.map(({ body }) => (JSON.parse(body.toString('utf8')) as { context: string }).context)
    expect(contexts).toEqual(keys)
  })
}

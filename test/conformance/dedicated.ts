// The cases whose precondition is more than knobs: processes that share a store or die, a wall clock that is set back, and
// the six conditions that one case asks for at once.
import { spawn } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect } from 'vitest'
import { manualClock } from '../../src/testing/manual-clock.ts'
import { pollUntil } from '../servers/poll.ts'
import type { AppName } from './apps/index.ts'
import { type Case, type CaseRequest, type Expected, onTheWire } from './cases.ts'
import { ConnectionError, type Exchange, send, type WireResponse } from './client.ts'
import { checkAnswer } from './expectations.ts'
import { fileLedger, sum } from './ledger.ts'
import { expectOneWinner, expectProblem, isReplayed } from './prose.ts'
import type { Subject } from './runner.ts'
import type { ProcessOptions } from './server-process.ts'
import type { Place } from './stores.ts'
import { nested } from './variants.ts'
import { openWorld, type World } from './world.ts'

export const dedicated: Readonly<Record<string, (subject: Subject, theCase: Case) => Promise<void>>> = {
  'IF-03': raceAcrossProcesses,
  'CT-02': killedAfterCommit,
  'CT-03': killedAfterEffect,
  'CS-02': clockSetBack,
  'PJ-02': sixConditions,
  'ST-m3': eventsUnbuffered,
  'CT-m1': zombie,
  'CT-m2': transactions,
}

async function raceAcrossProcesses(subject: Subject, theCase: Case): Promise<void> {
  await withProcesses(subject, theCase, async ({ start, ledgerPath, place }) => {
    if (!place.address) return raceInOneProcess(subject, theCase)
    const [first, second] = await Promise.all([start('never'), start('never')])
    const request = theCase.requests[0]!
    const exchanges = Array.from({ length: 50 }, (_, index) => ask(index % 2 === 0 ? first : second, request))
    expectOneWinner(await Promise.all(exchanges.map((each) => each.response)), 50)
    expect(sum(await fileLedger(ledgerPath).counts(), 'effects')).toBe(1)
  })
}

/** What lives in one process can only be shared by two instances there. */
async function raceInOneProcess({ start, storeKind }: Subject, theCase: Case): Promise<void> {
  const world = await openWorld({ start, storeKind, config: nested(theCase.config) })
  try {
    const other = await world.another()
    const request = theCase.requests[0]!
    const exchanges = Array.from({ length: 50 }, (_, index) => ask(index % 2 === 0 ? world.port : other.port, request))
    const claims = (): number => world.line.seen.claimsAsked + other.line.seen.claimsAsked
    await pollUntil('fifty claims', () => claims() >= 50, { intervalMs: 1 })
    let open = exchanges.length
    for (const each of exchanges) void each.response.finally(() => open--)
    // The handler sleeps 200 ms, and the other instance looks again within 500 ms.
    await pollUntil('all answers', async () => (open === 0 ? true : (await world.advance(50), false)), {
      intervalMs: 1,
    })
    expectOneWinner(await Promise.all(exchanges.map((each) => each.response)), 50)
    const effects = [world, other].map(async (each) => sum(await each.fixture.ledger.counts(), 'effects'))
    expect((await Promise.all(effects)).reduce((a, b) => a + b)).toBe(1)
  } finally {
    await world.close()
  }
}

async function killedAfterCommit(subject: Subject, theCase: Case): Promise<void> {
  await withProcesses(subject, theCase, async ({ start, place }) => {
    const dying = await start('after the commit')
    await expect(ask(dying, theCase.requests[0]!).response).rejects.toThrow(ConnectionError)
    expect(await place.countEffects('ct02')).toBe(1)
    const restarted = await start('never')
    const answer = await ask(restarted, theCase.requests[1]!).response
    check(theCase, 'R2', answer)
    expect(await place.countEffects('ct02')).toBe(1)
  })
}

/** Long enough that the claim is seen to be alive, short enough to wait for it: the second request waits in the server. */
const leaseMs = 1_000

async function killedAfterEffect(subject: Subject, theCase: Case): Promise<void> {
  await withProcesses(subject, theCase, async ({ start, ledgerPath, place }) => {
    const dying = await start('after the effect')
    await expect(ask(dying, theCase.requests[0]!).response).rejects.toThrow(ConnectionError)
    await place.advance(leaseMs + 500)
    const restarted = await start('never')
    const answer = await ask(restarted, theCase.requests[1]!).response
    check(theCase, 'R2', answer)
    expect(sum(await fileLedger(ledgerPath).counts(), 'effects')).toBe(1)
  })
}

async function clockSetBack({ start, storeKind }: Subject, theCase: Case): Promise<void> {
  const [settled, , abandoned] = theCase.requests
  const config = { ...nested(theCase.config), leaseMs: 2_000, keepMs: 24 * 3_600_000 }
  const world = await openWorld({ start, storeKind, config })
  try {
    expect((await ask(world.port, settled!).response).status).toBe(201)
    expect(isReplayed(await ask(world.port, settled!).response)).toBe(true)
    await world.advance(config.keepMs + 1_000)
    world.clock.setNow(world.clock.now() - 3_600_000)
    check(theCase, 'R2', await ask(world.port, theCase.requests[1]!).response)
    expect((await world.fixture.ledger.counts()).get('cs02')!.effects).toBe(2)

    await killWhileItSleeps(world, abandoned!)
    world.clock.setNow(world.clock.now() - 3_600_000)
    await world.advance(config.leaseMs)
    const retried = ask(world.port, abandoned!)
    await takeover(world, retried)
    expect((await retried.response).status).toBe(201)
    expect((await world.fixture.ledger.counts()).get('cs02b')!.effects).toBe(1)
  } finally {
    await world.close()
  }
}

/** To the store a process whose line is cut for ever is a dead one. */
async function killWhileItSleeps(world: World, request: CaseRequest): Promise<void> {
  const process = await world.another()
  ask(process.port, request)
  await pollUntil('the handler to start', async () => (await process.fixture.ledger.counts()).size > 0, {
    intervalMs: 1,
  })
  process.line.setMode('cut')
}

/** Within a second after the lease the handler runs again; then it may sleep its sixty seconds. */
async function takeover(world: World, retried: Exchange): Promise<void> {
  let answered = false
  retried.response.then(() => void (answered = true)).catch(() => {})
  const startedMs = world.clock.elapsed()
  while (world.fixture.nextWakeMs() === undefined) {
    expect(world.clock.elapsed() - startedMs, 'time until the takeover').toBeLessThanOrEqual(1_000)
    expect(answered, 'the retry runs').toBe(false)
    await world.advance(50)
  }
  await world.advance(world.fixture.nextWakeMs()!)
}

async function sixConditions({ start, storeKind }: Subject): Promise<void> {
  const world = await openWorld({ start, storeKind, config: { waitMs: 0 } })
  const post = (path: string, key: string | string[] | undefined, amount = 1): Promise<WireResponse> => {
    const rawHeaderLines = [key ?? []].flat().map((each) => `Idempotency-Key: ${each}`)
    return ask(world.port, { id: 'R', method: 'POST', path, rawHeaderLines, body: { tag: 'pj02', amount }, as: 'A' })
      .response
  }
  try {
    await post('/effects', 'used')
    await post('/effects', 'old')
    void post('/gate/pj02', 'running')
    await pollUntil('the gate', async () => sum(await world.fixture.ledger.counts(), 'invocations') === 3)
    const provoke = async (): Promise<WireResponse[]> => {
      world.line.setMode('cut')
      const down = await post('/effects', 'down')
      world.line.setMode('restore')
      return [
        await post('/required', undefined),
        await post('/effects', ['one', 'two']),
        await post('/gate/pj02', 'running'),
        await post('/effects', 'used', 2),
        down,
      ]
    }
    const [once, twice] = [await provoke(), await provoke()]
    expect(once.map(typeOf)).toEqual(twice.map(typeOf))
    world.fixture.openAllGates()
    await world.advance(24 * 3_600_000 + 1_000)
    const gone = [await post('/effects', 'old'), await post('/effects', 'old')]
    expect(typeOf(gone[0]!)).toBe(typeOf(gone[1]!))
    const all = [...once, gone[0]!]
    expect(all.map((each) => each.status)).toEqual([400, 400, 409, 422, 503, 410])
    expect(new Set(all.map(typeOf)).size).toBe(6)
  } finally {
    await world.close()
  }
}

/** The line of the first process is cut until another has taken over; what it then comes to reaches nobody as an answer. */
async function zombie({ start, storeKind }: Subject, theCase: Case): Promise<void> {
  const world = await openWorld({ start, storeKind, config: { ...nested(theCase.config), leaseMs: 2_000 } })
  try {
    const request = theCase.requests[0]!
    const other = await world.another()
    const first = ask(world.port, request)
    await pollUntil('the handler', async () => (await world.fixture.ledger.counts()).size > 0, { intervalMs: 1 })
    world.line.setMode('cut')
    await world.advance(2_001)
    other.fixture.openAllGates()
    const second = ask(other.port, request)
    await pollUntil('the handler', async () => (await other.fixture.ledger.counts()).size > 0, { intervalMs: 1 })
    other.fixture.openAllGates()
    const winner = await second.response
    expect(winner.status).toBe(201)
    world.line.setMode('restore')
    world.fixture.openAllGates()
    expectProblem(await first.response, 409, 'idempotency-in-progress')
    const replayed = await ask(world.port, request).response
    expect(isReplayed(replayed)).toBe(true)
    expect(replayed.body.equals(winner.body)).toBe(true)
  } finally {
    await world.close()
  }
}

/** A refusal is committed without what led to it; a server failure leaves nothing. */
async function transactions(subject: Subject, theCase: Case): Promise<void> {
  await withProcesses(subject, theCase, async ({ start, place, ledgerPath }) => {
    const port = await start('never')
    for (const [index, request] of theCase.requests.entries()) {
      const [once, twice] = [await ask(port, request).response, await ask(port, request).response]
      const status = [201, 402, 500][index]!
      expect([once.status, twice.status]).toEqual([status, status])
      expect([isReplayed(once), isReplayed(twice)]).toEqual([false, status < 500])
      if (status < 500) expect(twice.body.equals(once.body)).toBe(true)
      const tag = (request.body as { tag: string }).tag
      expect(await place.countEffects(tag), `effects of ${tag}`).toBe(status === 201 ? 1 : 0)
      const { invocations } = (await fileLedger(ledgerPath).counts()).get(tag)!
      expect(invocations, `invocations of ${tag}`).toBe(status < 500 ? 1 : 2)
    }
  })
}

/** Settled before the first octet: whoever has seen an event can never make it run again. */
async function eventsUnbuffered({ start, storeKind }: Subject, theCase: Case): Promise<void> {
  const world = await openWorld({ start, storeKind, config: nested(theCase.config) })
  try {
    const exchange = ask(world.port, theCase.requests[0]!)
    await pollUntil('the first event', () => exchange.received().includes('id: 0'), {
      intervalMs: 1,
      timeoutMs: 20_000,
    })
    expect(world.line.seen.settles).toBe(1)
    expect(exchange.received().includes('id: 1')).toBe(false)
    world.fixture.openAllGates()
    const answer = await exchange.response
    expect(answer).toMatchObject({ status: 200, complete: true })
    expect(answer.body.toString('utf8')).toMatch(/^id: 0\ndata: before\n\nid: 1\ndata: after\n\n$/)
    expect(sum(await world.fixture.ledger.counts(), 'effects')).toBe(theCase.effects)
  } finally {
    await world.close()
  }
}

function typeOf(answer: WireResponse): string {
  const { type, code } = JSON.parse(answer.body.toString('utf8')) as { type: string; code: string }
  expect(type).toContain(code)
  return type
}

function ask(port: number, request: CaseRequest): Exchange {
  return send({ port, method: request.method, ...onTheWire(request, new Map(), () => Buffer.alloc(0)) })
}

function check(theCase: Case, id: string, answer: WireResponse): void {
  const name = `${theCase.id} ${id}`
  checkAnswer({ ...answer, tookMs: 0 }, theCase.expect[id] as Expected, {
    name,
    answers: new Map(),
    profile: undefined,
  })
  if (theCase.id === 'CS-02') expect(isReplayed(answer)).toBe(false)
}

interface Processes {
  readonly place: Place
  readonly ledgerPath: string
  /** Resolves to the port of a new process on the place. */
  start(dies: ProcessOptions['dies']): Promise<number>
}

async function withProcesses(
  { adapter, storeKind }: Subject,
  theCase: Case,
  body: (processes: Processes) => Promise<void>,
): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-conformance-'))
  const place = await storeKind.open(manualClock())
  const stops: (() => Promise<void>)[] = []
  const ledgerPath = join(folder, 'ledger')
  const { store: _store, ...config } = nested(theCase.config)
  try {
    await body({
      place,
      ledgerPath,
      async start(dies) {
        const address = place.address!
        const options = { adapter: adapter as AppName, address, ledgerPath, config, once: { leaseMs }, dies }
        const started = startProcess(options)
        stops.push(started.stop)
        return started.port
      },
    })
  } finally {
    await Promise.all(stops.map((stop) => stop()))
    await place.close()
    rmSync(folder, { recursive: true, force: true })
  }
}

function startProcess(options: ProcessOptions): { port: Promise<number>; stop(): Promise<void> } {
  const program = join(import.meta.dirname, 'server-process.ts')
  const child = spawn(process.execPath, [program, JSON.stringify(options)], { stdio: ['pipe', 'pipe', 'inherit'] })
  child.stdin.on('error', () => {}) // it may be dead already
  const exited = new Promise<void>((resolve) => child.on('exit', () => resolve()))
  const port = new Promise<number>((resolve, reject) => {
    child.stdout.once('data', (first: Buffer) => resolve(Number(first.toString('utf8'))))
    void exited.then(() => reject(new Error(`the process of ${options.adapter} ended before it listened`)))
  })
  return {
    port,
    async stop() {
      child.stdin.end()
      await exited
    },
  }
}

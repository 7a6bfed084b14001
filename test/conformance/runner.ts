// Plays a case against an application and checks what came back. Time is the world's: the runner waits for what it can see
// (a handler entered, a claim answered, a client gone) and moves the clock only where the case or a sleeping handler says so.
import { expect } from 'vitest'
import { pollUntil } from '../servers/poll.ts'
import type { StartApp } from './apps/app.ts'
import { bodyBytes, type Case, type CaseRequest, type Expected, namesIn, onTheWire } from './cases.ts'
import { ConnectionError, type Exchange, send, valueOf } from './client.ts'
import { checkAnswer, type Answered } from './expectations.ts'
import { sum } from './ledger.ts'
import { checkEffects, moreProseChecks, proseChecks } from './prose.ts'
import { dedicated } from './dedicated.ts'
import { hostile } from './hostile.ts'
import type { StoreKind } from './stores.ts'
import { type Variant, variantsOf } from './variants.ts'
import { openWorld, type World } from './world.ts'

export interface Subject {
  readonly adapter: string
  readonly start: StartApp
  readonly storeKind: StoreKind
  /** How long anything is waited for. It bounds a hang; nothing that works comes near it. */
  readonly patienceMs?: number
}

const defaultPatienceMs = 20_000

export async function runCase(subject: Subject, theCase: Case): Promise<void> {
  const own = dedicated[theCase.id] ?? hostile[theCase.id]
  if (own) return own(subject, theCase)
  for (const variant of variantsOf(theCase)) await runVariant(subject, theCase, variant)
}

async function runVariant(subject: Subject, theCase: Case, variant: Variant): Promise<void> {
  const { start, storeKind, patienceMs = defaultPatienceMs } = subject
  const { config, settings, once } = variant
  const world = await openWorld({ start, storeKind, config, settings, once })
  try {
    variant.before?.(world)
    const play = new Map<string, Answered>()
    const failed = new Map<string, Error>()
    await playRequests(theCase, { world, patienceMs, requests: theCase.requests, answers: play, failed })
    await checkAll(theCase, variant, play, failed)
    const counts = await world.fixture.ledger.counts()
    checkEffects(theCase, variant, counts)
    if (theCase.invocations !== undefined) expect(sum(counts, 'invocations'), 'invocations').toBe(theCase.invocations)
  } finally {
    await world.close()
  }
}

interface Play {
  readonly world: World
  readonly patienceMs: number
  readonly requests: readonly CaseRequest[]
  readonly answers: Map<string, Answered>
  /** Requests whose connection broke before there was a head. */
  readonly failed: Map<string, Error>
}

async function playRequests(theCase: Case, play: Play): Promise<void> {
  const running: Sent[] = []
  const twice = (theCase.expect['each'] as { first?: unknown } | undefined)?.first !== undefined
  const expanded = twice ? theCase.requests.flatMap(firstAndRepeat) : theCase.requests
  for (const request of expanded) {
    if (/^R\d+ answered/.test(request.when ?? '')) await settle(running.splice(0), play)
    await untilMoment(request.when, request, play)
    if (request.note === 'client goes away in the middle of the body') {
      await breakOff(request, play)
      continue
    }
    const sent = await sendAll(request, play)
    const aborts = /client (?:destroys the socket|aborts)\D*(\d+) ms/.exec(request.note ?? '')
    if (aborts) {
      await arrival(sent, play)
      await play.world.advance(Number(aborts[1]))
      for (const each of sent) each.exchange.abort()
    } else if (isLeftRunning(request, theCase)) {
      await arrival(sent, play)
      running.push(...sent)
    } else {
      if (sent.length > 1) await arrival(sent, play)
      await settle(sent, play)
    }
  }
  play.world.fixture.openAllGates()
  await settle(running, play)
}

async function breakOff(request: CaseRequest, play: Play): Promise<void> {
  const { world } = play
  const seenBefore = world.requestsSeen()
  const wire = onTheWire(request, new Map(), () => Buffer.alloc(0))
  const exchange = send({ port: world.port, method: request.method, ...wire, sends: 'half' })
  await until(play, 'the head to arrive', () => world.requestsSeen() > seenBefore)
  exchange.abort()
}

/** The n-th key is sent as Rn/first, then as Rn/repeat. */
function firstAndRepeat(request: CaseRequest, index: number): CaseRequest[] {
  return ['first', 'repeat'].map((name) => ({ ...request, id: `R${index + 1}/${name}` }))
}

function isLeftRunning({ id }: CaseRequest, { requests }: Case): boolean {
  return requests.some(({ when = '' }) => new RegExp(`while ${id} runs|\\d ms after ${id}\\b`).test(when))
}

interface Sent {
  readonly id: string
  readonly exchange: Exchange
  /** How many claims and entered handlers there were before. */
  readonly claimsBefore: number
  readonly invocationsBefore: number
  readonly busyBefore: number
  readonly done: Promise<void>
}

async function sendAll(request: CaseRequest, play: Play): Promise<Sent[]> {
  const { world, answers, failed } = play
  const { seen } = world.line
  const bodyOf = (id: string): Buffer =>
    bodyBytes(play.requests.find((each) => each.id === id)?.body) ?? Buffer.alloc(0)
  const wire = onTheWire(request, answers, bodyOf)
  const invocationsBefore = sum(await world.fixture.ledger.counts(), 'invocations')
  const [claimsBefore, busyBefore] = [seen.claimsAsked, seen.busy]
  return namesIn(request.id).map((id) => {
    const sentMs = world.clock.elapsed()
    const exchange = send({ port: world.port, method: request.method, ...wire })
    const done = exchange.response.then(
      (answer) => void answers.set(id, { ...answer, tookMs: world.clock.elapsed() - sentMs }),
      (error: Error) => {
        if (!(error instanceof ConnectionError)) throw error
        failed.set(id, error)
      },
    )
    return { id, exchange, claimsBefore, invocationsBefore, busyBefore, done }
  })
}

/** Each has asked the store or is answered; a single one has entered its handler, or has been told to wait. */
async function arrival(sent: readonly Sent[], play: Play): Promise<void> {
  const { line, fixture } = play.world
  const { claimsBefore, invocationsBefore, busyBefore } = sent[0]!
  await pollUntil(
    `${sent.map(({ id }) => id).join(', ')} to arrive`,
    async () => {
      const answered = sent.filter(({ id }) => play.answers.has(id) || play.failed.has(id)).length
      const entered = sum(await fixture.ledger.counts(), 'invocations') - invocationsBefore
      if (sent.length === 1) return answered + entered + line.seen.busy - busyBefore >= 1
      return answered + line.seen.claimsAsked - claimsBefore >= sent.length
    },
    { intervalMs: 1, timeoutMs: play.patienceMs },
  )
  await play.world.quiet()
}

/** Until each is answered: sleeping handlers are woken by the clock, and duplicates that wait use their time up. */
async function settle(sent: readonly Sent[], play: Play): Promise<void> {
  const { world } = play
  let open = sent.length
  for (const each of sent) void each.done.finally(() => open--)
  await pollUntil(
    `answers to ${sent.map(({ id }) => id).join(', ')}`,
    async () => {
      if (open === 0) return true
      await world.quiet()
      if (open === 0) return true
      const sleepMs = world.fixture.nextWakeMs()
      const { seen, mode } = world.line
      const waits = seen.slow > 0 || seen.busy > sent[0]!.busyBefore || mode() === 'cut'
      if (sleepMs !== undefined) await world.advance(sleepMs)
      else if (waits) await world.advance(50)
      return false
    },
    { intervalMs: 1, timeoutMs: play.patienceMs },
  )
  await Promise.all(sent.map(({ done }) => done))
}

type Moment = (play: Play, request: CaseRequest, match: RegExpExecArray) => Promise<void> | void

const moments: readonly (readonly [RegExp, Moment])[] = [
  [
    /^after (R\d+)(?: completes| on a different connection| -> \d+)?$/,
    ({ answers, failed }, _request, [, id]) =>
      expect(answers.has(id!) || failed.has(id!), `${id} is answered`).toBe(true),
  ],
  [/^all at once$|^while R\d+ runs$|^after the cause is removed$|^budget exhausted$/, () => {}],
  [/^(\d+) ms after R\d+(?:, all at once)?$/, ({ world }, _request, [, ms]) => world.advance(Number(ms))],
  [
    /^(\d+) s after (R\d+)$/,
    async (play, _request, [, seconds, id]) => {
      await play.world.advance(Number(seconds) * 1_000)
      await untilLaterThan(play, valueOf(play.answers.get(id!)!, 'Date')!)
    },
  ],
  [
    /^clock \+(\d+):(\d+):(\d+)$/,
    ({ world }, _request, [, hours, minutes, seconds]) =>
      world.advance((Number(hours) * 3_600 + Number(minutes) * 60 + Number(seconds)) * 1_000),
  ],
  [/^after revocation$/, ({ world }, { as }) => void world.fixture.revoked.add(as)],
  [/^after the window resets$/, ({ world }) => void (world.fixture.limiter.left = 100)],
  [/^(?:R\d+ answered, )?store restored$/, ({ world }) => world.line.setMode('restore')],
  [/^store cut while R\d+ runs$/, ({ world }) => world.line.setMode('cut')],
  [/^after the abort$/, (play) => until(play, 'the server to see the client go', () => play.world.clientsGone() > 0)],
  [
    /^after the handler finished$/,
    (play) => until(play, 'the outcome to be settled', () => play.world.line.seen.settles > 0),
  ],
  [
    /^after rollback finished$/,
    (play) => until(play, 'the key to be released', () => play.world.line.seen.releases > 0),
  ],
]

async function untilMoment(when: string | undefined, request: CaseRequest, play: Play): Promise<void> {
  if (when === undefined) return
  for (const [pattern, moment] of moments) {
    const match = pattern.exec(when)
    if (match) return moment(play, request, match)
  }
  throw new Error(`nobody can read when "${when}" is`)
}

async function until({ patienceMs }: Play, what: string, probe: () => boolean): Promise<void> {
  await pollUntil(what, probe, { intervalMs: 1, timeoutMs: patienceMs })
}

/** The Date field is the server's own, of real time, and has a resolution of a second. */
async function untilLaterThan({ world }: Play, date: string): Promise<void> {
  await pollUntil('the next second', async () => {
    const asked = send({ port: world.port, method: 'GET', path: '/__ctl/logs', headerLines: [], body: undefined })
    return Date.parse(valueOf(await asked.response, 'Date')!) > Date.parse(date)
  })
}

async function checkAll(
  theCase: Case,
  variant: Variant,
  answers: ReadonlyMap<string, Answered>,
  failed: ReadonlyMap<string, Error>,
): Promise<void> {
  const profile = variant.config['profile']
  for (const [target, expected] of Object.entries(variant.expect)) {
    if (typeof expected === 'string') {
      const check = { ...proseChecks, ...moreProseChecks }[`${theCase.id} ${target}`]
      if (!check) throw new Error(`nobody can read what ${theCase.id} says of ${target}: "${expected}"`)
      check({ answers, failed })
      continue
    }
    for (const [id, each] of expectedOf(target, expected as Expected, answers)) {
      const name = `${theCase.id}${variant.name ? ` (${variant.name})` : ''} ${id}`
      const answer = answers.get(id)
      if (!answer) throw new Error(`${name} was not answered: ${failed.get(id)?.message}`)
      checkAnswer(answer, each, { name, answers, profile })
    }
  }
}

function expectedOf(target: string, expected: Expected, answers: ReadonlyMap<string, Answered>): [string, Expected][] {
  if (target !== 'each') return namesIn(target).map((id) => [id, expected])
  const parts = expected as { first?: Expected; repeat?: Expected }
  return [...answers.keys()].map((id) => [
    id,
    id.endsWith('/first') ? parts.first! : id.endsWith('/repeat') ? parts.repeat! : expected,
  ])
}

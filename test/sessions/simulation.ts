// One schedule of sessions from its seed to its judgement: the shipped core and rules over the memory, on a simulated clock. Requests and
// replies are lost, come twice and come late. Servers die and stand still in the middle of an effect. Clients crash, with their counters
// and without, leave ghosts that go on sending, and fall silent until their session has ended. Then everything heals.
import type { Clock } from '../../src/core/clock.ts'
import { OnceError } from '../../src/index.ts'
import { createSessions, type ClientSession, type Sessions } from '../../src/sessions/sessions.ts'
import { memoryData, memoryStore } from '../../src/stores/memory.ts'
import type { ManualClock } from '../../src/testing/manual-clock.ts'
import { seededRandom, type SeededRandom } from '../../src/testing/seeded-random.ts'
import { simulatedClock } from '../messages/simulation/world.ts'

const leaseMs = 60_000
const attemptLeaseMs = 3_000
const waitMs = 2_000
const steps = 40

export interface JudgedSessions {
  readonly counts: Readonly<Record<string, number>>
  readonly violations: readonly string[]
  readonly story: readonly string[]
}

interface Life {
  isDead: boolean
  pausedUntilMs: number
  // An attempt of a life that ever stood still may have lost its number.
  wasPaused: boolean
  readonly sessions: Sessions<undefined>
  readonly clock: Clock
}

interface Attempt {
  readonly life: Life
  state: 'running' | 'threw' | 'answered' | 'refused'
}

interface SimulatedClient {
  readonly name: string
  session: ClientSession | undefined
  // Of the current epoch. A number that was drawn is never drawn again.
  next: number
  acknowledged: number
  readonly pending: Map<number, string>
  silentUntilMs: number
}

interface SessionWorld {
  readonly clock: ManualClock
  readonly random: SeededRandom
  readonly window: number
  faults: number
  lives: Life[]
  readonly clients: readonly SimulatedClient[]
  readonly counts: Record<string, number>
  readonly violations: string[]
  readonly story: string[]
  // By client, epoch and number.
  readonly attempts: Map<string, Attempt[]>
  readonly answers: Map<string, string>
  readonly epochs: Map<string, number>
  readonly activeMs: Map<string, number>
  start(): Life
}

export async function judgeSessions(seed: number): Promise<JudgedSessions> {
  const world = createWorld(seed)
  world.start()
  world.start()
  for (let step = 0; step < steps; step++) {
    await world.clock.advance(world.random.integer(10, 1_500))
    act(world)
    await judgeRows(world)
  }
  await heal(world)
  const { counts, violations, story } = world
  return { counts, violations, story }
}

function createWorld(seed: number): SessionWorld {
  const clock = simulatedClock()
  const random = seededRandom(seed)
  const data = memoryData(clock)
  const window = random.integer(1, 4)
  const strict = random.chance(0.3)
  let started = 0
  const world: SessionWorld = {
    clock,
    random,
    window,
    faults: 1,
    lives: [],
    clients: ['till-1', 'till-2', 'till-3'].map((name) => emptyClient(name)),
    counts: {},
    violations: [],
    story: [],
    attempts: new Map(),
    answers: new Map(),
    epochs: new Map(),
    activeMs: new Map(),
    start() {
      const life: { -readonly [Name in keyof Life]?: Life[Name] } = {
        isDead: false,
        pausedUntilMs: 0,
        wasPaused: false,
      }
      life.clock = clockOf(clock, life as Life)
      const limits = { window, strict, leaseMs, attemptLeaseMs, waitMs, tombstoneMs: leaseMs }
      const store = memoryStore({ data })
      life.sessions = createSessions({
        store,
        scope: 'tills',
        clock: life.clock,
        random: random.fork(++started),
        ...limits,
      })
      world.lives = [...world.lives.filter(({ isDead }) => !isDead), life as Life]
      return life as Life
    },
  }
  return world
}

const emptyClient = (name: string): SimulatedClient => ({
  name,
  session: undefined,
  next: 1,
  acknowledged: 0,
  pending: new Map(),
  silentUntilMs: 0,
})

// Nothing of a dead process happens, and what belongs to one that stands still happens later.
function clockOf(clock: ManualClock, life: Life): Clock {
  const schedule = (run: () => void, ms: number): (() => void) => {
    let cancel = clock.schedule(function due() {
      const leftMs = life.pausedUntilMs - clock.elapsed()
      if (life.isDead) return
      if (leftMs > 0) cancel = clock.schedule(due, leftMs)
      else run()
    }, ms)
    return () => cancel()
  }
  return { now: () => clock.now(), elapsed: () => clock.elapsed(), schedule }
}

function count(world: SessionWorld, what: string): void {
  world.counts[what] = (world.counts[what] ?? 0) + 1
}

function tell(world: SessionWorld, line: string): void {
  world.story.push(`${world.clock.elapsed()} ${line}`)
}

function violated(world: SessionWorld, what: string): void {
  world.violations.push(what)
  tell(world, `VIOLATED ${what}`)
}

function act(world: SessionWorld): void {
  const { random, clock } = world
  const client = random.pick(world.clients)
  const what = random.weighted({
    send: 60,
    retry: 30,
    kill: 4,
    pause: 4,
    forget: 2,
    ghost: 4,
    silence: 2,
    close: 1,
    sweep: 3,
  })
  if (what === 'send') send(world, client)
  else if (what === 'retry') retry(world, client)
  else if (what === 'forget') {
    // It crashed, and its counters are gone.
    count(world, 'client lost its memory')
    client.session = undefined
  } else if (what === 'ghost' && client.session) ghost(world, client)
  else if (what === 'silence') {
    count(world, 'client silent')
    client.silentUntilMs = clock.elapsed() + random.integer(leaseMs / 2, leaseMs * 2)
  } else if (what === 'kill' || what === 'pause') harm(world, what)
  else if (what === 'close' && client.session)
    void alive(world)
      ?.sessions.close(client.session)
      .catch(() => {})
  else if (what === 'sweep') void alive(world)?.sessions.sweep()
}

function harm(world: SessionWorld, what: 'kill' | 'pause'): void {
  const life = alive(world)
  if (!life) return
  count(world, `server ${what}`)
  tell(world, `a server is hit: ${what}`)
  if (what === 'pause') {
    life.pausedUntilMs = world.clock.elapsed() + world.random.integer(500, attemptLeaseMs * 3)
    life.wasPaused = true
    return
  }
  life.isDead = true
  world.start()
}

function alive({ random, lives }: SessionWorld): Life | undefined {
  const living = lives.filter(({ isDead }) => !isDead)
  return living.length > 0 ? random.pick(living) : undefined
}

// A client sends its next request, or registers first where it has no session.
function send(world: SessionWorld, client: SimulatedClient): void {
  if (world.clock.elapsed() < client.silentUntilMs) return
  if (!client.session) return void register(world, client)
  if (client.next > client.acknowledged + world.window) return retry(world, client)
  const sequence = client.next++
  client.pending.set(sequence, `${client.name} sells ${sequence} in ${client.session.epoch}`)
  transmit(world, client, sequence)
}

function retry(world: SessionWorld, client: SimulatedClient): void {
  if (world.clock.elapsed() < client.silentUntilMs) return
  for (const sequence of client.pending.keys()) transmit(world, client, sequence)
}

async function register(world: SessionWorld, client: SimulatedClient): Promise<void> {
  const life = alive(world)
  if (!life) return
  const { session, epoch } = await life.sessions.register(client.name)
  world.activeMs.set(`${client.name} ${epoch}`, world.clock.elapsed())
  if (epoch <= (world.epochs.get(client.name) ?? 0))
    violated(world, `epoch-grows: ${client.name} was given ${epoch} again`)
  world.epochs.set(client.name, Math.max(epoch, world.epochs.get(client.name) ?? 0))
  count(world, 'registered')
  tell(world, `${client.name} registers: ${epoch}`)
  client.session = { session, epoch }
  client.next = 1
  client.acknowledged = 0
  client.pending.clear()
}

// What was sent before goes on arriving, with what was acknowledged at that time.
function ghost(world: SessionWorld, client: SimulatedClient): void {
  count(world, 'ghost')
  const before = { ...client, session: client.session, pending: new Map(client.pending) }
  for (const sequence of before.pending.keys()) {
    world.clock.schedule(() => transmit(world, before, sequence), world.random.integer(1_000, leaseMs * 2))
  }
}

// A request on its way: lost, late, twice.
function transmit(world: SessionWorld, client: SimulatedClient, sequence: number): void {
  const { random, clock, faults } = world
  const content = client.pending.get(sequence)
  const { session, acknowledged } = client
  if (content === undefined || !session) return
  const copies = random.chance(0.2 * faults) ? 2 : random.chance(0.15 * faults) ? 0 : 1
  if (copies === 0) count(world, 'request lost')
  if (copies === 2) count(world, 'request twice')
  for (let copy = 0; copy < copies; copy++) {
    const isLate = random.chance(0.1 * faults)
    if (isLate) count(world, 'request late')
    const delayMs = isLate ? random.integer(5_000, leaseMs * 2) : random.integer(1, 200)
    clock.schedule(() => void arrive(world, client, { session, sequence, acknowledged, content }), delayMs)
  }
}

interface Sent {
  readonly session: ClientSession
  readonly sequence: number
  readonly acknowledged: number
  readonly content: string
}

async function arrive(world: SessionWorld, client: SimulatedClient, sent: Sent): Promise<void> {
  const life = alive(world)
  if (!life || life.pausedUntilMs > world.clock.elapsed()) return
  const { session, sequence, acknowledged, content } = sent
  const name = `${session.session} ${session.epoch} ${sequence}`
  const owner = `${session.session} ${session.epoch}`
  // A waiting duplicate asks the store until its time has passed, and keeps the session alive by it.
  const idleMs = world.clock.elapsed() - (world.activeMs.get(owner) ?? 0)
  world.activeMs.set(owner, world.clock.elapsed() + waitMs)
  const request = { ...session, sequence, acknowledged, fingerprint: content }
  let own: Attempt | undefined
  const asked = life.sessions.apply(request, async () => {
    own = begin(world, name, life)
    judgeBegin(world, { name, session, idleMs })
    await new Promise<void>((resolve) => life.clock.schedule(resolve, world.random.integer(1, 6_000)))
    if (world.random.chance(0.15 * world.faults)) {
      own.state = 'threw'
      throw new Error('no printer')
    }
    return `${content}, receipt ${world.attempts.get(name)!.length}`
  })
  try {
    const { value, replayed } = await asked
    if (own) own.state = 'answered'
    count(world, replayed ? 'replayed' : 'answered')
    tell(world, `${name}: ${value}${replayed ? ' again' : ''}`)
    const before = world.answers.get(name)
    if (before !== undefined && before !== value) violated(world, `answers-agree: ${name} was ${before}, then ${value}`)
    world.answers.set(name, value)
    if (world.random.chance(0.2 * world.faults)) return count(world, 'reply lost')
    receive(client, sent)
  } catch (error) {
    const code = error instanceof OnceError ? error.code : 'no printer'
    if (own && own.state === 'running') own.state = 'refused'
    count(world, code)
    tell(world, `${name}: ${code}`)
    // Its outcome is unknown. This client decides to begin anew.
    const isEnded = code === 'SESSION_EXPIRED' || code === 'FENCED'
    if (isEnded && client.session?.epoch === session.epoch) client.session = undefined
  }
}

function begin(world: SessionWorld, name: string, life: Life): Attempt {
  const attempts = world.attempts.get(name) ?? []
  const running = attempts.filter(({ state }) => state === 'running')
  if (attempts.some(({ state }) => state === 'answered')) violated(world, `one-effect: ${name} runs after its answer`)
  if (running.some(({ life: { isDead, wasPaused } }) => !isDead && !wasPaused))
    violated(world, `one-effect: ${name} runs while it runs in a process that lives`)
  if (attempts.length > 0) count(world, 'ran again')
  if (running.length > 0) count(world, 'taken over')
  const attempt: Attempt = { life, state: 'running' }
  world.attempts.set(name, [...attempts, attempt])
  count(world, 'effects')
  tell(world, `${name} begins`)
  return attempt
}

function judgeBegin(
  world: SessionWorld,
  { name, session, idleMs }: { readonly name: string; readonly session: ClientSession; readonly idleMs: number },
): void {
  if (session.epoch < (world.epochs.get(session.session) ?? 0)) violated(world, `fenced: ${name} runs in an old epoch`)
  if (idleMs > leaseMs)
    violated(world, `expired-not-run: ${name} runs ${idleMs} ms after its session was last heard of`)
}

function receive(client: SimulatedClient, { session, sequence }: Sent): void {
  if (client.session?.epoch !== session.epoch) return
  client.pending.delete(sequence)
  const open = Math.min(client.next, ...client.pending.keys())
  client.acknowledged = Math.max(client.acknowledged, open - 1)
}

async function judgeRows(world: SessionWorld): Promise<void> {
  const life = alive(world)
  for (const shown of (await life?.sessions.list()) ?? []) {
    if (shown.requests > world.window) violated(world, `rows-bounded: ${shown.session} has ${shown.requests} rows`)
  }
}

// No more faults: whoever has a request without an answer gets one, or is told that its session has ended.
async function heal(world: SessionWorld): Promise<void> {
  world.faults = 0
  world.start()
  for (const client of world.clients) client.silentUntilMs = 0
  for (let round = 0; round < 60; round++) {
    for (const client of world.clients) retry(world, client)
    await world.clock.advance(5_000)
    if (world.clients.every(({ session, pending }) => !session || pending.size === 0)) break
  }
  for (const { name, session, pending } of world.clients) {
    if (session && pending.size > 0)
      violated(world, `not-locked-out: ${name} has no answer to ${[...pending.keys()].join(', ')}`)
  }
  await judgeRows(world)
}

// One schedule of sessions from its seed to its judgement: the shipped core and rules over the memory, on a simulated clock. Requests and
// replies are lost, come twice and come late. Servers die and stand still in the middle of an effect, and their clocks are wrong. Clients
// crash, with their counters and without, use a number for something else, leap beyond their window, leave ghosts that go on sending, and fall silent until their
// session has ended. Then everything heals.
import { FinalError, OnceError } from '../../src/index.ts'
import { refusalCounts } from './simulation/counts.ts'
import { judgeAnswer, judgeBegin, judgeEpoch, judgeRefusal, judgeRemains, judgeRows } from './simulation/judge.ts'
import { createSessionWorld, nameOf, times } from './simulation/world.ts'
import type {
  SentRequest,
  SessionAttempt,
  SessionViolation,
  SessionWorld,
  SimulatedClient,
} from './simulation/world.ts'

const steps = 40

export interface JudgedSessions {
  readonly counts: Readonly<Record<string, number>>
  readonly violations: readonly SessionViolation[]
  story(): string
}

export async function judgeSessions(seed: number): Promise<JudgedSessions> {
  const world = createSessionWorld(seed)
  world.start()
  world.start()
  for (let step = 0; step < steps; step++) {
    await world.clock.advance(idleFor(world))
    act(world)
    await judgeRows(world)
  }
  await heal(world)
  await judgeRemains(world)
  const { counts, violations, told } = world
  return { counts: { ...counts }, violations, story: () => told.join('\n') }
}

/** Mostly a moment, and rarely so long that sessions end, and that their tombstones do. */
function idleFor({ random, counts }: SessionWorld): number {
  if (!random.chance(0.01)) return random.integer(10, 1_500)
  counts.idleTimes++
  return random.integer(times.leaseMs / 2, 3 * times.leaseMs)
}

const deeds: Readonly<Record<string, (world: SessionWorld, client: SimulatedClient) => void>> = {
  send,
  retry,
  reuse,
  leap,
  ghost,
  kill(world) {
    world.counts.kills++
    world.alive().isDead = true
    world.tell('a server dies')
    world.start()
  },
  pause(world) {
    world.counts.pauses++
    const life = world.alive()
    life.wasPaused = true
    life.pausedUntil = world.clock.elapsed() + world.random.integer(500, times.attemptLeaseMs * 3)
    world.tell('a server stands still')
  },
  // It crashed, and its counters are gone.
  forget({ counts }, client) {
    counts.memoryLosses++
    client.session = undefined
  },
  silence({ counts, clock, random }, client) {
    counts.silences++
    client.silentUntilMs = clock.elapsed() + random.integer(times.leaseMs / 2, times.leaseMs * 2)
  },
  close(world, { session }) {
    if (!session) return
    world.counts.closed++
    void world.alive().sessions.close(session).catch(refusedOnly)
  },
  async sweep(world) {
    world.counts.evictions += await world.alive().sessions.sweep()
  },
}

const chances: Readonly<Record<keyof typeof deeds, number>> = {
  send: 60,
  retry: 30,
  reuse: 4,
  leap: 2,
  ghost: 4,
  kill: 4,
  pause: 4,
  forget: 2,
  silence: 2,
  close: 1,
  sweep: 3,
}

function act(world: SessionWorld): void {
  const client = world.random.pick(world.clients)
  deeds[world.random.weighted(chances)]!(world, client)
}

function refusedOnly(error: unknown): void {
  if (!(error instanceof OnceError)) throw error
}

/** A client sends its next request, or registers first where it has no session. */
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
  const { session, epoch } = await world.alive().sessions.register(client.name)
  world.counts.registered++
  world.tell(`${client.name} registers: ${epoch}`)
  judgeEpoch(world, session, epoch)
  heardOf(world, `${session}/${epoch}`)
  client.session = { session, epoch }
  client.next = 1
  client.acknowledged = 0
  client.pending.clear()
}

/** A client whose counters went back uses a number that has run for something else. */
function reuse(world: SessionWorld, { name, session, acknowledged, next }: SimulatedClient): void {
  if (!session || next === 1) return
  const sequence = world.random.integer(1, next - 1)
  const sent = { session, sequence, acknowledged: Math.min(acknowledged, sequence - 1) }
  const content = `${name} sells something else`
  if (!world.attempts.has(nameOf({ ...sent, content }))) return
  world.counts.reusedNumbers++
  void arrive(world, undefined, { ...sent, content })
}

/** A client that does not keep to its window. */
function leap(world: SessionWorld, { name, session, acknowledged }: SimulatedClient): void {
  if (!session) return
  const sequence = acknowledged + world.window + world.random.integer(1, 3)
  void arrive(world, undefined, { session, sequence, acknowledged, content: `${name} leaps` })
}

/** What was sent before goes on arriving, with what was acknowledged at that time. */
function ghost(world: SessionWorld, client: SimulatedClient): void {
  if (!client.session) return
  world.counts.ghosts++
  const before = { ...client, pending: new Map(client.pending) }
  for (const sequence of before.pending.keys()) {
    world.clock.schedule(() => transmit(world, before, sequence), world.random.integer(1_000, times.leaseMs * 2))
  }
}

/** A request on its way: lost, late, twice. */
function transmit(world: SessionWorld, client: SimulatedClient, sequence: number): void {
  const { random, clock, counts, faults } = world
  const content = client.pending.get(sequence)
  const { session, acknowledged } = client
  if (content === undefined || !session) return
  const copies = random.chance(0.2 * faults) ? 2 : random.chance(0.15 * faults) ? 0 : 1
  if (copies === 0) counts.lostRequests++
  if (copies === 2) counts.duplicates++
  for (let copy = 0; copy < copies; copy++) {
    const isLate = random.chance(0.1 * faults)
    if (isLate) counts.lateRequests++
    const delayMs = isLate ? random.integer(5_000, times.leaseMs * 2) : random.integer(1, 200)
    clock.schedule(() => void arrive(world, client, { session, sequence, acknowledged, content }), delayMs)
  }
}

/** A request at a server. `client` is who waits for its answer. */
async function arrive(world: SessionWorld, client: SimulatedClient | undefined, sent: SentRequest): Promise<void> {
  const { clock, counts, random, faults } = world
  const life = world.alive()
  if (life.pausedUntil > clock.elapsed()) return
  const { session, sequence, acknowledged, content } = sent
  const owner = `${session.session}/${session.epoch}`
  const idleMs = clock.elapsed() - (world.activeUntilMs.get(owner) ?? 0)
  // A waiting duplicate asks the store until its time has passed, and keeps the session alive by it.
  heardOf(world, owner, times.waitMs)
  world.acknowledged.set(owner, Math.max(acknowledged, world.acknowledged.get(owner) ?? 0))
  let own: SessionAttempt | undefined
  const request = { ...session, sequence, acknowledged, fingerprint: content }
  const asked = life.sessions.apply(request, async () => {
    own = judgeBegin(world, life, sent, idleMs)
    heardOf(world, owner)
    const receipt = `${content}, receipt ${world.attempts.get(nameOf(sent))!.length}`
    await life.wait(random.integer(1, 6_000))
    if (random.chance(0.15 * world.faults)) {
      own.state = 'failed'
      throw new Error('no printer')
    }
    if (random.chance(0.1 * world.faults)) throw new FinalError(`declined: ${receipt}`)
    return receipt
  })
  const answer = await asked.then(({ value, replayed }) => {
    if (replayed) counts.replays++
    return value
  }, declinedAs(counts))
  // If its process stood still meanwhile, it has asked once more just now.
  heardOf(world, owner)
  if (answer instanceof Error) return refused(world, client, { sent, own, error: answer })
  if (own) own.state = 'answered'
  judgeAnswer(world, sent, answer)
  if (random.chance(0.2 * faults)) counts.lostReplies++
  else if (client) receive(client, sent)
}

function heardOf({ clock, activeUntilMs }: SessionWorld, owner: string, forMs = 0): void {
  activeUntilMs.set(owner, Math.max(clock.elapsed() + forMs, activeUntilMs.get(owner) ?? 0))
}

/** A final failure is an answer. */
const declinedAs =
  (counts: SessionWorld['counts']) =>
  (error: Error): string | Error => {
    if (!(error instanceof FinalError)) return error
    counts.declined++
    return error.message
  }

interface Refused {
  readonly sent: SentRequest
  readonly own: SessionAttempt | undefined
  readonly error: Error
}

function refused(world: SessionWorld, client: SimulatedClient | undefined, { sent, own, error }: Refused): void {
  const code = error instanceof OnceError ? error.code : undefined
  world.counts[code ? (refusalCounts[code] ?? 'failed') : 'failed']++
  if (own?.state === 'running') own.state = 'refused'
  judgeRefusal(world, sent, error, own)
  // Its outcome is unknown. This client decides to begin anew.
  const isEnded = code === 'SESSION_EXPIRED' || code === 'FENCED'
  if (isEnded && client?.session?.epoch === sent.session.epoch) client.session = undefined
}

function receive(client: SimulatedClient, { session, sequence }: SentRequest): void {
  if (client.session?.epoch !== session.epoch) return
  client.pending.delete(sequence)
  const open = Math.min(client.next, ...client.pending.keys())
  client.acknowledged = Math.max(client.acknowledged, open - 1)
}

/** No more faults: every request without an answer gets one, or its client learns that its session has ended. */
async function heal(world: SessionWorld): Promise<void> {
  world.faults = 0
  world.start()
  const isWaiting = ({ session, pending }: SimulatedClient): boolean => session !== undefined && pending.size > 0
  for (const client of world.clients) client.silentUntilMs = 0
  for (let round = 0; round < 60 && world.clients.some(isWaiting); round++) {
    for (const client of world.clients) retry(world, client)
    await world.clock.advance(5_000)
  }
  for (const { name, pending } of world.clients.filter(isWaiting))
    world.violated('not-locked-out', `${name} has no answer to ${[...pending.keys()].join(', ')}`)
  await judgeRows(world)
}

// One schedule of the inbox in a way that does not commit the mark with the effect, from its seed to its judgement. Its effects are outside of
// every database. What each way promises then: 'by-claim' (effectively once, on a store without SQL) has one effect, unless a process was lost
// between effect and record, which is told as a takeover; 'at-most-once' never has two; 'at-least-once' always has one.
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { offerDatabase } from '../../../src/clients/sql-database.ts'
import type { SqlDialect } from '../../../src/clients/sql-database.ts'
import { sleep } from '../../../src/core/clock.ts'
import type { Clock } from '../../../src/core/clock.ts'
import { hashKey } from '../../../src/core/key.ts'
import { createOnce } from '../../../src/core/once.ts'
import { createInbox } from '../../../src/messages/inbox.ts'
import type { Inbox, Message } from '../../../src/messages/inbox.ts'
import { memoryData, memoryStore } from '../../../src/stores/memory.ts'
import { acknowledge, createPartition, deliverable, publish } from './broker-model.ts'
import type { Assignment, Entry, Partition, Queue } from './broker-model.ts'
import { databaseFor } from './connection.ts'
import { observed } from './inbox-schedule.ts'
import { sqlModel } from './sql-model.ts'
import { clockOf, createWorld } from './world.ts'
import type { JudgedSchedule, Life, World } from './world.ts'

const ways = ['by-claim', 'by-claim', 'at-most-once', 'at-least-once'] as const
type Way = (typeof ways)[number]

const steps = 30
const processCount = 3
const attemptMs = 2_000
const leaseMs = 3_000
const healMsMax = 3_600_000
const scope = 'shop/inbox/mail'

/** How the handler takes a message. Whatever it is, it is cured when the world is healed. */
const natures = { good: 75, flaky: 8, throws: 4, dies: 4, diesAfter: 4, hangs: 5 }

interface WayCounts {
  /** Of a message that had an effect. */
  again: number
  takeovers: number
  /** Messages that the handler failed for good, or that were acknowledged and never run. */
  withoutEffect: number
  deadLetters: number
}

interface WaysWorld {
  readonly world: World
  readonly way: Way
  readonly partitions: readonly Partition[]
  readonly processes: Running[]
  readonly natures: Map<string, keyof typeof natures>
  readonly effects: Map<string, number>
  readonly deadLetters: Set<string>
  /** Takeovers that were told and have not been used up by an effect. */
  readonly told: Map<string, number>
  readonly more: WayCounts
  isHealed: boolean
  open(life: Life, own: Clock): Inbox<unknown>
}

interface Running {
  readonly life: Life
  readonly own: Clock
  readonly inbox: Inbox<unknown>
}

export async function judgeWaysSchedule(seed: number): Promise<JudgedSchedule> {
  const ways = createWaysWorld(seed)
  const { world, more } = ways
  const hear = (event: unknown): void => {
    const { keyHash } = event as { readonly keyHash: string }
    more.takeovers++
    ways.told.set(keyHash, (ways.told.get(keyHash) ?? 0) + 1)
  }
  subscribe('onceonly:taken-over', hear)
  const judged = await observed(world, async () => {
    world.tell(`the way is ${ways.way}`)
    for (let count = 0; count < processCount; count++) start(ways)
    for (const { queues } of ways.partitions) assign(ways, queues[0]!)
    for (let step = 0; step < steps; step++) {
      await world.clock.advance(world.random.integer(5, 800))
      act(ways)
    }
    await heal(ways)
    judge(ways)
  }).finally(() => unsubscribe('onceonly:taken-over', hear))
  return { ...judged, counts: { ...judged.counts, ...more } }
}

function createWaysWorld(seed: number): WaysWorld {
  const world = createWorld(seed)
  const { random } = world
  const way = random.pick(ways)
  const dialect =
    way === 'by-claim' ? undefined : random.pick<SqlDialect | undefined>([undefined, 'postgres', 'sqlite'])
  const data = memoryData(world.clock)
  const pause = (): Promise<void> => (random.chance(0.3) ? world.wait(random.integer(1, 5)) : Promise.resolve())
  const model = dialect && sqlModel({ dialect, nowMs: () => world.clock.now(), pause })
  const deadLetters = new Set<string>()
  return {
    world,
    way,
    partitions: [0, 1].map((number) => createPartition(number, 1)),
    processes: [],
    natures: new Map(),
    effects: new Map(),
    deadLetters,
    told: new Map(),
    more: { again: 0, takeovers: 0, withoutEffect: 0, deadLetters: 0 },
    isHealed: false,
    open(life, own) {
      const memory = memoryStore({ data })
      const store = dialect ? offerDatabase(memory, databaseFor(world, model!, dialect, life)) : memory
      const once = createOnce({
        store,
        scope: 'shop',
        clock: own,
        random: random.fork(random.integer(0, 1_000_000)),
        leaseMs,
        sweepEveryMs: false,
      })
      return createInbox(once, {
        consumer: 'mail',
        delivery: way === 'by-claim' ? 'effectively-once' : way,
        attempts: 4,
        attemptMs,
        clock: own,
        random: random.fork(random.integer(0, 1_000_000)),
        deadLetter: async (message) => void deadLetters.add(nameOf(message)),
      }) as unknown as Inbox<unknown>
    },
  }
}

const nameOf = ({ body }: Message): string => Buffer.from(body).toString()

function start(ways: WaysWorld): Running {
  const { world, processes } = ways
  const life: Life = { isDead: false, pausedUntil: 0, skewMs: world.random.integer(-3_000, 3_000) }
  const own = clockOf(world, life)
  const running: Running = { life, own, inbox: ways.open(life, own) }
  processes.push(running)
  return running
}

const alive = (ways: WaysWorld): Running => ways.world.random.pick(ways.processes.filter(({ life }) => !life.isDead))

function kill(ways: WaysWorld, { life }: Running): void {
  if (life.isDead) return
  life.isDead = true
  ways.world.counts.crashes++
  ways.world.tell('a process dies')
  start(ways)
}

/** Gives a queue to a process. The owner before it learns of it later. */
function assign(ways: WaysWorld, queue: Queue): void {
  const { clock, random } = ways.world
  const before = queue.assignment
  if (before) clock.schedule(() => (before.isOurs = false), random.integer(0, 8_000))
  const assignment: Assignment = { isOurs: true }
  queue.assignment = assignment
  queue.wake()
  void consume(ways, alive(ways), queue, assignment)
}

function act(ways: WaysWorld): void {
  const { world, partitions } = ways
  const { random, counts } = world
  const queue = random.pick(partitions).queues[0]!
  const what = random.weighted({ publish: 50, again: 5, kill: 5, pause: 6, assign: 8, rewind: 4 })
  if (what === 'publish') {
    const id = `message-${ways.natures.size + 1}`
    ways.natures.set(id, random.weighted(natures))
    send(ways, id)
  } else if (what === 'again' && ways.natures.size > 0) send(ways, random.pick([...ways.natures.keys()]))
  else if (what === 'kill') kill(ways, alive(ways))
  else if (what === 'pause') {
    counts.pauses++
    alive(ways).life.pausedUntil = world.clock.elapsed() + random.integer(500, 9_000)
  } else if (what === 'rewind') {
    counts.rewinds++
    queue.acknowledged.clear()
    assign(ways, queue)
  } else assign(ways, queue)
}

function send({ world, partitions, natures }: WaysWorld, id: string): void {
  world.counts.published++
  world.tell(`${id} is sent, and is ${natures.get(id)}`)
  const body = Buffer.from(id)
  const partition = partitions[Number(id.split('-')[1]) % partitions.length]!
  publish(partition, {
    id,
    topic: 'mail',
    body,
    headers: {},
    sentAtMs: world.clock.now(),
    raw: undefined,
  } satisfies Message)
}

async function consume(ways: WaysWorld, running: Running, queue: Queue, assignment: Assignment): Promise<void> {
  const { world, way } = ways
  const { life, own, inbox } = running
  let next = queue.floor()
  let pending: readonly Entry[] = []
  while (!life.isDead && assignment.isOurs) {
    const fresh = deliverable('queue', queue, next).slice(0, world.random.integer(1, 4))
    if (fresh.length > 0) next = fresh.at(-1)!.position + 1
    const batch = [...pending, ...fresh]
    if (batch.length === 0) {
      await queue.arrival()
      continue
    }
    let isAcknowledged = false
    const delivered = await inbox.deliverBatch(
      batch.map(({ message }) => message),
      (_tx, messages) => {
        if (way === 'at-most-once' && !isAcknowledged)
          world.violated('acknowledged-first', `${nameOf(messages[0]!)} is run before it is acknowledged`)
        return handle(ways, running, messages)
      },
      async (positions) => {
        const entries = positions.map((position) => batch[position]!)
        if (way !== 'at-most-once') for (const { message } of entries) checkDone(ways, message)
        await acknowledge(
          { world, life, queue, assignment },
          entries.map(({ position }) => position),
        )
        isAcknowledged = true
      },
    )
    pending = batch.filter((_, index) => !delivered[index]!.acknowledged)
    const retry = delivered.flatMap((each) => (each.acknowledged ? [] : [each.retryAfterMs]))
    if (retry.length > 0) await sleep(own, Math.min(...retry))
  }
}

/** The handler sends a mail per message, which nothing takes back. */
async function handle(ways: WaysWorld, running: Running, messages: readonly Message[]): Promise<void> {
  const { world, isHealed } = ways
  const { random } = world
  for (const message of messages) {
    const id = nameOf(message)
    const nature = isHealed ? 'good' : ways.natures.get(id)!
    await sleep(running.own, random.integer(0, 400))
    if (nature === 'throws' || (nature === 'flaky' && random.chance(0.5))) throw new Error(`${id} cannot be handled`)
    if (nature === 'hangs') {
      world.counts.hangs++
      await sleep(running.own, attemptMs + random.integer(1, 3_000))
    }
    if (nature === 'dies' && random.chance(0.7)) return dieIn(ways, running)
    takeEffect(ways, id)
    if (nature === 'diesAfter' && random.chance(0.7)) return dieIn(ways, running)
    await sleep(running.own, random.integer(0, 100))
  }
}

function dieIn(ways: WaysWorld, running: Running): Promise<never> {
  kill(ways, running)
  return new Promise(() => {})
}

function takeEffect({ world, way, effects, told, more }: WaysWorld, id: string): void {
  const before = effects.get(id) ?? 0
  effects.set(id, before + 1)
  world.counts.effects++
  world.tell(`${id} has effect ${before + 1}`)
  if (before === 0) return
  more.again++
  if (way === 'at-most-once')
    world.violated('one-effect', `${id} has ${before + 1} effects, and at most one was asked for`)
  if (way === 'by-claim' && (told.get(hashKey({ scope, id })) ?? 0) < before)
    world.violated(
      'one-effect',
      `${id} has ${before + 1} effects, and ${told.get(hashKey({ scope, id })) ?? 0} takeovers were told`,
    )
}

function checkDone({ world, effects, deadLetters }: WaysWorld, message: Message): void {
  const id = nameOf(message)
  if (effects.has(id) || deadLetters.has(id)) return
  world.violated(
    'acknowledged-is-done',
    `${id} is acknowledged, and neither done nor handed to the dead-letter function`,
  )
}

const isRead = ({ partitions }: WaysWorld): boolean =>
  partitions.every(({ log, queues }) => queues[0]!.floor() === log.length)

async function heal(ways: WaysWorld): Promise<void> {
  const { world } = ways
  world.tell('everything is healed')
  world.faults = 0
  ways.isHealed = true
  for (let waited = 0; waited < healMsMax && !(isRead(ways) && waited > 20_000); waited += 5_000) {
    for (const { queues } of ways.partitions)
      if (queues[0]!.floor() < queues[0]!.partition.log.length) assign(ways, queues[0]!)
    await world.clock.advance(60_000)
  }
}

function judge(ways: WaysWorld): void {
  const { world, way, natures, effects, deadLetters, more } = ways
  if (!isRead(ways)) world.violated('nothing-lost', 'messages are not acknowledged an hour after all was healed')
  more.deadLetters = deadLetters.size
  for (const id of natures.keys()) {
    if (effects.has(id)) continue
    more.withoutEffect++
    if (way === 'at-most-once' || (way === 'by-claim' && deadLetters.has(id))) continue
    world.violated('nothing-lost', `${id} has no effect, and ${way} was asked for`)
  }
}

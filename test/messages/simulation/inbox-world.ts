// A world for the inbox: processes with the shipped inbox on a clock that only the test moves, a model of the database and one of the
// broker. Everything follows from the seed. What is seen while it runs is judged at once; the rest in inbox-schedule.ts.
import { offerDatabase } from '../../../src/clients/sql-database.ts'
import type { SqlDialect } from '../../../src/clients/sql-database.ts'
import { sleep } from '../../../src/core/clock.ts'
import { createOnce } from '../../../src/core/once.ts'
import { handling } from '../../../src/messages/in-hand.ts'
import type { HeldMessage } from '../../../src/messages/in-hand.ts'
import { createInbox } from '../../../src/messages/inbox.ts'
import type { Inbox, Message } from '../../../src/messages/inbox.ts'
import { memoryStore } from '../../../src/stores/memory.ts'
import type { ManualClock } from '../../../src/testing/manual-clock.ts'
import { acknowledge, createPartition, deliverable } from './broker-model.ts'
import type { Assignment, Entry, Partition, Queue } from './broker-model.ts'
import { databaseFor } from './connection.ts'
import type { EffectClient } from './connection.ts'
import { ModelConflict, sqlModel } from './sql-model.ts'
import type { SqlModel } from './sql-model.ts'
import { clockOf, createWorld } from './world.ts'
import type { Life, World } from './world.ts'

/** How the handler takes a message. Whatever it is, it is cured when the world is healed. */
export type Nature = 'good' | 'flaky' | 'throws' | 'kills' | 'hangs'

/** What is sent. Its text is the body, so two with one id and another text are two. */
export interface Sent {
  readonly uid: string
  readonly id: string
  readonly key: string | undefined
  readonly partition: number
  readonly sentAtMs: number
  readonly entity: string | undefined
  readonly version: number
  readonly nature: Nature
}

export interface Effect {
  readonly sent: Sent
  readonly isRedriven: boolean
}

export interface Group {
  readonly number: number
  readonly scope: string
  readonly windowMs: number
  readonly effects: Effect[]
  /** By uid: the codes with which it was given to the dead-letter function. */
  readonly deadLetters: Map<string, Set<string>>
  /** By id: the deliveries in which its handler was called. */
  readonly tries: Map<string, Set<object>>
  readonly processes: Process[]
  started: number
}

export interface Process {
  readonly name: string
  readonly life: Life
  readonly inbox: SimulatedInbox
  kill(): void
  pause(ms: number): void
  /** Takes no more, ends what it has, and is not there any more. */
  stop(): Promise<void>
  own(queue: Queue): void
  /** Runs what was redriven. */
  runRedriven(): void
}

type SimulatedInbox = Inbox<EffectClient>

export interface InboxWorld {
  readonly world: World
  readonly model: SqlModel
  readonly partitions: readonly Partition[]
  readonly groups: readonly Group[]
  readonly sent: ReadonlyMap<string, Sent>
  readonly attempts: number
  readonly dialect: SqlDialect
  readonly brokerKind: 'log' | 'queue'
  isHealed: boolean
  add(sent: Sent): Message
  startProcess(group: Group): Process
  /** Gives a queue to a process. The owner before it learns of it later, or never. */
  assign(queue: Queue, process: Process): void
}

export interface InboxWorldOptions {
  readonly clock?: ManualClock
  readonly groups?: number
  readonly partitions?: number
  readonly windowMs?: number
}

const attemptMs = 2_000
/** Consumers that may meet at a new message, beside the first. */
const atOnceMax = 4

export function createInboxWorld(seed: number, options: InboxWorldOptions = {}): InboxWorld {
  const world = createWorld(seed, options.clock)
  const { random } = world
  const dialect = random.pick<SqlDialect>(['postgres', 'postgres', 'mysql', 'sqlite'])
  const model = sqlModel({
    dialect,
    nowMs: () => world.clock.now(),
    pause: () => (random.chance(0.3) ? world.wait(random.integer(1, 5)) : Promise.resolve()),
  })
  const groups = Array.from({ length: options.groups ?? (random.chance(0.3) ? 2 : 1) }, (_, number): Group => {
    const windowMs = options.windowMs ?? (number === 0 ? random.pick([20_000, 60_000]) : 86_400_000)
    return {
      number,
      scope: `shop/inbox/consumer-${number}`,
      windowMs,
      effects: [],
      deadLetters: new Map(),
      tries: new Map(),
      processes: [],
      started: 0,
    }
  })
  const partitions = Array.from({ length: options.partitions ?? 2 }, (_, number) =>
    createPartition(number, groups.length),
  )
  const sent = new Map<string, Sent>()
  const inboxWorld: InboxWorld = {
    world,
    model,
    partitions,
    groups,
    sent,
    attempts: random.integer(2, 4),
    dialect,
    brokerKind: random.pick(['log', 'queue']),
    isHealed: false,
    add(given) {
      sent.set(given.uid, given)
      return messageOf(given)
    },
    startProcess: (group) => startProcess(inboxWorld, group),
    assign(queue, process) {
      const before = queue.assignment
      if (before) {
        world.counts.takeovers++
        // It works on with what it has until it hears of it.
        world.clock.schedule(() => (before.isOurs = false), random.integer(0, 8_000))
      }
      process.own(queue)
    },
  }
  return inboxWorld
}

function messageOf({ uid, id, key, partition, sentAtMs }: Sent): Message {
  return {
    id,
    topic: `partition ${partition}`,
    ...(key !== undefined && { key }),
    body: Buffer.from(uid),
    headers: {},
    sentAtMs,
    raw: undefined,
  }
}

function startProcess(inboxWorld: InboxWorld, group: Group): Process {
  const { world, model, dialect, attempts, sent } = inboxWorld
  const { random, clock } = world
  const life: Life = { isDead: false, pausedUntil: 0, skewMs: random.chance(0.3) ? random.integer(-3_000, 3_000) : 0 }
  const name = `process ${++group.started} of consumer-${group.number}`
  const own = clockOf(world, life)
  const store = offerDatabase(memoryStore({ clock: own }), databaseFor(world, model, dialect, life))
  const once = createOnce({ store, scope: 'shop', clock: own, sweepEveryMs: false })
  const inbox = createInbox(once, {
    consumer: `consumer-${group.number}`,
    windowMs: group.windowMs,
    attempts,
    attemptMs,
    clock: own,
    random: random.fork(random.integer(0, 1_000_000)),
    versionOf({ body }: Message) {
      const { entity, version } = sent.get(Buffer.from(body).toString())!
      return entity === undefined ? undefined : { entity, version }
    },
    async deadLetter({ body }, { code }) {
      const uid = Buffer.from(body).toString()
      await sleep(own, random.integer(0, 5))
      if (random.chance(world.faults / 4)) throw new Error('the dead-letter function failed')
      const codes = group.deadLetters.get(uid) ?? new Set()
      group.deadLetters.set(uid, codes.add(code))
    },
  }) as unknown as SimulatedInbox
  const stopping = new AbortController()
  const work = new Set<Promise<void>>()
  const kill = (): void => {
    if (life.isDead) return
    world.counts.crashes++
    world.tell(`${name} dies`)
    life.isDead = true
  }
  const running: Running = { inboxWorld, group, name, life, inbox, stop: stopping.signal, kill, own }
  const process: Process = {
    name,
    life,
    inbox,
    kill,
    pause(ms) {
      world.counts.pauses++
      world.tell(`${name} stands still for ${ms} ms`)
      life.pausedUntil = clock.elapsed() + ms
    },
    async stop() {
      stopping.abort()
      for (const partition of inboxWorld.partitions) partition.queues[group.number]!.wake()
      await Promise.all(work)
    },
    own(queue) {
      const assignment: Assignment = { isOurs: true }
      queue.assignment = assignment
      world.tell(`${name} has partition ${queue.partition.number} from ${queue.floor()} on`)
      queue.wake()
      const consume = random.chance(0.5) ? consumeBatches : consumeOneByOne
      work.add(consume(running, queue, assignment))
    },
    runRedriven() {
      const isRedriven = true
      const delivery = { beganAtMs: Infinity }
      const done = inbox.runRedriven((tx, message) => handle(running, tx, [message], { isRedriven, delivery }))
      // A database that is down is met again.
      void done.then((count) => (world.counts.redriven += count)).catch(() => {})
    },
  }
  group.processes.push(process)
  return process
}

interface Running {
  readonly inboxWorld: InboxWorld
  readonly group: Group
  readonly name: string
  readonly life: Life
  readonly inbox: SimulatedInbox
  readonly stop: AbortSignal
  readonly kill: () => void
  readonly own: ReturnType<typeof clockOf>
}

interface Delivery {
  /** By the clock of the process. */
  readonly beganAtMs: number
}

const isGoing = ({ stop, life }: Running, assignment: Assignment): boolean =>
  !life.isDead && !stop.aborted && assignment.isOurs

async function consumeBatches(running: Running, queue: Queue, assignment: Assignment): Promise<void> {
  const { inboxWorld, life, inbox, own, stop } = running
  const { world, brokerKind } = inboxWorld
  let next = queue.floor()
  let pending: Entry[] = []
  while (isGoing(running, assignment)) {
    const room = world.random.integer(1, 8) - pending.length
    const fresh = room > 0 ? deliverable(brokerKind, queue, next).slice(0, room) : []
    if (fresh.length > 0) next = fresh.at(-1)!.position + 1
    const batch = [...pending, ...fresh]
    if (batch.length === 0) {
      await queue.arrival()
      continue
    }
    const delivery: Delivery = { beganAtMs: own.now() }
    const delivered = await inbox.deliverBatch(
      batch.map(({ message }) => message),
      (tx, messages) => handle(running, tx, messages, { delivery }),
      async (positions) => {
        const entries = positions.map((position) => batch[position]!)
        for (const { message } of entries) checkDone(running, message)
        await acknowledge(
          { world, life, queue, assignment },
          entries.map(({ position }) => position),
        )
      },
    )
    pending = batch.filter((_, index) => !delivered[index]!.acknowledged)
    const retry = delivered.flatMap((each) => (each.acknowledged ? [] : [each.retryAfterMs]))
    if (retry.length > 0) await sleep(own, Math.min(...retry), { signal: stop })
  }
}

async function consumeOneByOne(running: Running, queue: Queue, assignment: Assignment): Promise<void> {
  const { inboxWorld, life, inbox, own, stop } = running
  const { world, brokerKind } = inboxWorld
  const inHand = handling<EffectClient>({
    inbox: {
      ...inbox,
      // Each try is a delivery of its own.
      deliver: (message, _handler, acknowledged) => {
        const delivery: Delivery = { beganAtMs: own.now() }
        return inbox.deliver(message, (tx, given) => handle(running, tx, [given], { delivery }), acknowledged)
      },
    },
    handler: () => {},
    atOnce: 3,
    clock: own,
    stop,
  })
  const held = ({ position, message }: Entry): HeldMessage => ({
    message,
    isOurs: () => assignment.isOurs,
    acknowledge: () => {
      checkDone(running, message)
      return acknowledge({ world, life, queue, assignment }, [position])
    },
    canWaitAtBroker: brokerKind === 'queue',
    giveBack(afterMs) {
      const again = (): void => {
        if (!isGoing(running, assignment) || queue.assignment !== assignment) return
        inHand.take(held({ position, message }))
      }
      if (!stop.aborted && assignment.isOurs) world.clock.schedule(again, afterMs)
    },
  })
  let next = queue.floor()
  while (isGoing(running, assignment)) {
    const [entry] = deliverable(brokerKind, queue, next)
    if (!entry) {
      await queue.arrival()
      continue
    }
    next = entry.position + 1
    inHand.take(held(entry))
    await inHand.below(5)
  }
  await inHand.empty()
}

interface Called {
  readonly delivery: Delivery
  readonly isRedriven?: boolean
}

// The handler. Everything that the inbox promises about calling it is judged here.
async function handle(running: Running, tx: EffectClient, messages: readonly Message[], called: Called): Promise<void> {
  const { inboxWorld, group, own } = running
  const { world, sent } = inboxWorld
  const { random } = world
  const all = messages.map(({ body }) => sent.get(Buffer.from(body).toString())!)
  // A transaction that has ended under the feet of its handler takes nothing.
  if (tx.isOpen()) for (const each of all) checkCall(running, each, called)
  for (const each of all) {
    await sleep(own, random.chance(0.05) ? random.integer(200, 1_900) : random.integer(0, 4))
    await misbehave(running, each)
    await tx.write(() => {
      group.effects.push({ sent: each, isRedriven: called.isRedriven === true })
      world.counts.effects++
      world.tell(`${running.name} has committed the effect of ${each.uid}`)
      checkEffect(inboxWorld, group, each, called)
    })
  }
}

async function misbehave({ inboxWorld, kill, own }: Running, { nature, uid }: Sent): Promise<void> {
  const { world, isHealed } = inboxWorld
  const { random, counts } = world
  if (isHealed) return
  if (nature === 'kills') {
    kill()
    return new Promise(() => {})
  }
  if (nature === 'throws' || (nature === 'flaky' && random.chance(0.5))) throw new Error(`${uid} cannot be handled`)
  if (random.chance(world.faults / 4)) throw new ModelConflict('a statement of the handler lost against another')
  if (nature === 'hangs' && random.chance(0.7)) {
    counts.hangs++
    await sleep(own, attemptMs + random.integer(1, 3_000))
  }
}

function checkCall(running: Running, sent: Sent, { delivery, isRedriven = false }: Called): void {
  const { inboxWorld, group, name } = running
  const { world, model, dialect } = inboxWorld
  world.tell(`${name} handles ${sent.uid}${isRedriven ? ', redriven' : ''}`)
  if (isRedriven) return
  const ageMs = delivery.beganAtMs - sent.sentAtMs
  if (ageMs > group.windowMs)
    world.violated('too-old-not-run', `${sent.uid} was run ${ageMs} ms after it was sent, by ${name}`)
  if (isParked(inboxWorld, group, sent))
    world.violated('parked-not-run', `${sent.uid} is parked, and was run by ${name}`)
  const tries = (group.tries.get(sent.id) ?? new Set()).add(delivery)
  group.tries.set(sent.id, tries)
  const counted = Number(model.find('inbox', group.scope, sent.id)?.['attempts'] ?? 0)
  // On MySQL and SQLite consumers that receive a new message at one moment count one attempt. A crash of PostgreSQL may forget the first.
  const uncounted = dialect === 'postgres' ? model.lost('inbox', group.scope, sent.id) : atOnceMax
  if (tries.size > counted + uncounted)
    world.violated(
      'attempt-counted-first',
      `${sent.uid} is tried for the ${tries.size}th time, and ${counted} are counted`,
    )
}

function isParked({ model }: InboxWorld, { scope }: Group, { id, uid }: Sent): boolean {
  return model
    .rows('inbox_parked')
    .some((row) => row['scope'] === scope && row['id'] === id && row['code'] === 'ATTEMPTS' && textOf(row) === uid)
}

export function textOf(parked: Readonly<Record<string, unknown>>): string {
  const { body } = JSON.parse(String(parked['message'])) as { readonly body: { readonly $bytes: string } }
  return Buffer.from(body.$bytes, 'base64').toString()
}

function checkEffect(inboxWorld: InboxWorld, group: Group, sent: Sent, { isRedriven = false }: Called): void {
  const { world } = inboxWorld
  const count = group.effects.filter((each) => each.sent === sent).length
  if (count > 1) world.violated('one-effect', `${sent.uid} has ${count} effects at ${group.scope}`)
  if (!isRedriven && isParked(inboxWorld, group, sent))
    world.violated('parked-not-run', `${sent.uid} is parked at ${group.scope}, and has an effect`)
  if (sent.entity === undefined) return
  const newer = group.effects
    .slice(0, -1)
    .find((each) => each.sent.entity === sent.entity && each.sent.version >= sent.version)
  if (newer && newer.sent !== sent)
    world.violated('versions-grow', `version ${sent.version} of ${sent.entity} was applied after ${newer.sent.version}`)
}

/** How a message has ended at a group, if it has. */
export function endOf(inboxWorld: InboxWorld, group: Group, uid: string): 'effect' | 'stale' | 'parked' | undefined {
  const { model, sent } = inboxWorld
  const { id, entity, version } = sent.get(uid)!
  if (group.effects.some((each) => each.sent.uid === uid)) return 'effect'
  if (model.rows('inbox_parked').some((row) => row['scope'] === group.scope && row['id'] === id && textOf(row) === uid))
    return 'parked'
  const isStale =
    entity !== undefined &&
    group.effects.some((each) => each.sent.entity === entity && each.sent.version >= version && each.sent.uid !== uid)
  return isStale ? 'stale' : undefined
}

function checkDone({ inboxWorld, group, name }: Running, { body }: Message): void {
  const { world } = inboxWorld
  const uid = Buffer.from(body).toString()
  if (endOf(inboxWorld, group, uid) !== undefined) return
  world.violated('acknowledged-is-done', `${uid} is acknowledged by ${name}, and is neither done nor parked`)
}

// One schedule of the inbox, from its seed to its judgement: messages are published, sent again and redelivered, processes die, stand
// still and are replaced, the database goes away, time jumps past the window, people redrive. Then everything heals, and every message
// must have come to its end.
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { setImmediate } from 'node:timers/promises'
import { publish } from './broker-model.ts'
import type { InboxCounts } from './counts.ts'
import { createInboxWorld, endOf, textOf } from './inbox-world.ts'
import type { Group, InboxWorld, Nature, Process, Sent } from './inbox-world.ts'
import type { JudgedSchedule, World } from './world.ts'

const steps = 20
const hourMs = 3_600_000
/** The longest pause between two tries is a minute, and a key can have several messages that fail. */
const healMsMax = hourMs

export async function judgeInboxSchedule(seed: number): Promise<JudgedSchedule> {
  const inboxWorld = createInboxWorld(seed)
  const { world } = inboxWorld
  return observed(world, async () => {
    for (const group of inboxWorld.groups) startGroup(inboxWorld, group)
    for (let step = 0; step < steps; step++) {
      await world.clock.advance(world.random.integer(5, 800))
      await act(inboxWorld)
      look(inboxWorld)
    }
    await heal(inboxWorld)
    judge(inboxWorld)
    await judgeMarks(inboxWorld)
  })
}

/** Counts what the inbox says, and what nobody caught. */
export async function observed(world: World, run: () => Promise<void>): Promise<JudgedSchedule> {
  const count = (event: unknown): void => countMessage(world.counts, event as { is: string; code?: string })
  const collect = (reason: unknown): void => world.violated('no-unhandled-rejection', String(reason))
  subscribe('onceonly:message', count)
  process.on('unhandledRejection', collect)
  try {
    await run()
    await setImmediate() // Node reports what was rejected at the end of its turn
  } finally {
    unsubscribe('onceonly:message', count)
    process.off('unhandledRejection', collect)
  }
  const { counts, violations, told } = world
  return { counts: { ...counts }, violations, story: () => told.join('\n') }
}

const counted: Readonly<Record<string, keyof InboxCounts>> = {
  duplicate: 'duplicates',
  busy: 'busy',
  failed: 'failed',
  PARKED: 'parked',
  STALE: 'stale',
  TOO_OLD: 'tooOld',
  MISMATCH: 'mismatches',
}

function countMessage(counts: InboxCounts, { is, code = is }: { readonly is: string; readonly code?: string }): void {
  const name = counted[code]
  if (name) counts[name]++
}

export function startGroup(inboxWorld: InboxWorld, group: Group): void {
  const started = [inboxWorld.startProcess(group), inboxWorld.startProcess(group)]
  inboxWorld.partitions.forEach((partition, index) =>
    inboxWorld.assign(partition.queues[group.number]!, started[index % started.length]!),
  )
}

const alive = (group: Group): readonly Process[] => group.processes.filter(({ life }) => !life.isDead)

async function act(inboxWorld: InboxWorld): Promise<void> {
  const { random } = inboxWorld.world
  const what = random.weighted({ publish: 50, publishAgain: 6, mismatch: 2, consumers: 31, jump: 2 })
  if (what === 'publish')
    for (let some = random.integer(1, 4); some > 0; some--) send(inboxWorld, newMessage(inboxWorld))
  else if (what === 'publishAgain') sendAgain(inboxWorld, {})
  else if (what === 'mismatch') sendAgain(inboxWorld, { uid: `other ${inboxWorld.sent.size}` })
  else if (what === 'jump') await jump(inboxWorld)
  else actOnConsumers(inboxWorld)
}

const weights = { kill: 5, pause: 6, assign: 7, rewind: 3, redrive: 5, stop: 2, crash: 2, outage: 1 }

export function actOnConsumers(inboxWorld: InboxWorld): void {
  const { world, groups, partitions } = inboxWorld
  const { random, counts } = world
  const group = random.pick(groups)
  const queue = random.pick(partitions).queues[group.number]!
  const what = random.weighted(weights)
  if (what === 'kill') random.pick(group.processes).kill()
  else if (what === 'pause') random.pick(group.processes).pause(random.integer(500, 9_000))
  else if (what === 'assign') inboxWorld.assign(queue, random.pick(alive(group)) ?? inboxWorld.startProcess(group))
  else if (what === 'rewind') {
    counts.rewinds++
    queue.acknowledged.clear()
    inboxWorld.assign(queue, random.pick(alive(group)) ?? inboxWorld.startProcess(group))
  } else if (what === 'redrive') redrive(inboxWorld, group)
  else if (what === 'stop') stop(inboxWorld, random.pick(group.processes))
  else if (what === 'crash') {
    counts.outages++
    world.tell('the database restarts')
    inboxWorld.model.crash()
  } else {
    inboxWorld.model.crash()
    world.isDatabaseDown = true
    world.clock.schedule(() => (world.isDatabaseDown = false), random.integer(100, 8_000))
  }
  replaceTheDead(inboxWorld)
}

const natures: Readonly<Record<Nature, number>> = { good: 80, flaky: 8, throws: 4, kills: 4, hangs: 4 }

function newMessage({ world, sent, partitions }: InboxWorld): Sent {
  const { random, clock } = world
  const key = random.chance(0.2) ? undefined : `key-${random.integer(0, 3)}`
  const partition =
    key === undefined ? random.integer(0, partitions.length - 1) : Number(key.slice(4)) % partitions.length
  const id = `message-${sent.size + 1}`
  // The version that its sender gave it, which may be an old one.
  const entity = random.chance(0.25) ? `entity-${random.integer(0, 1)}` : undefined
  const version = Math.max(1, sent.size + 1 - (random.chance(0.3) ? random.integer(1, 8) : 0))
  return { uid: id, id, key, partition, sentAtMs: clock.now(), entity, version, nature: random.weighted(natures) }
}

function send({ world, partitions, ...inboxWorld }: InboxWorld, sent: Sent): void {
  world.counts.published++
  world.tell(`${sent.uid} is sent: ${JSON.stringify(sent)}`)
  publish(partitions[sent.partition]!, inboxWorld.add(sent))
}

/** Its sender sends it again: the same, or another one under the same id. */
function sendAgain(inboxWorld: InboxWorld, changed: Partial<Sent>): void {
  const known = [...inboxWorld.sent.values()]
  if (known.length === 0) return
  const before = inboxWorld.world.random.pick(known)
  send(inboxWorld, changed.uid === undefined ? before : { ...before, ...changed, entity: undefined, key: undefined })
}

function redrive({ world }: InboxWorld, group: Group): void {
  const process = world.random.pick(group.processes)
  if (process.life.isDead) return
  world.tell(`${process.name} redrives`)
  // What is too old waits: only a person knows whether it is to run.
  for (const code of ['ATTEMPTS', 'MISMATCH'] as const) void process.inbox.redrive({ code }).catch(() => {})
  process.runRedriven()
}

function stop(inboxWorld: InboxWorld, process: Process): void {
  if (process.life.isDead) return
  inboxWorld.world.counts.stops++
  void process.stop().then(() => (process.life.isDead = true))
}

/** Past the window, and past the time for which marks are kept. */
async function jump({ world }: InboxWorld): Promise<void> {
  world.counts.clockJumps++
  await world.clock.advance(world.random.pick([25_000, 70_000, hourMs + 130_000]))
}

function replaceTheDead(inboxWorld: InboxWorld): void {
  const { world, groups, partitions } = inboxWorld
  for (const group of groups) {
    const dead = group.processes.filter(({ life }) => life.isDead)
    for (const each of dead) {
      group.processes.splice(group.processes.indexOf(each), 1)
      const process = inboxWorld.startProcess(group)
      const give = (): void => {
        if (process.life.isDead) return
        for (const { queues } of partitions) inboxWorld.assign(queues[group.number]!, process)
      }
      world.clock.schedule(give, world.random.integer(0, 3_000))
    }
  }
}

/** What must hold at any time. */
function look({ world, model, groups }: InboxWorld): void {
  for (const row of model.rows('inbox_parked')) {
    const group = groups.find(({ scope }) => scope === row['scope'])!
    const uid = textOf(row)
    if (group.deadLetters.get(uid)?.has(String(row['code']))) continue
    world.violated(
      'dead-letter-first',
      `${uid} is parked as ${row['code']}, and was not handed to the dead-letter function`,
    )
  }
}

/** Until all that was published is acknowledged, and no more is to come. */
export async function heal(inboxWorld: InboxWorld, isPublished = (): boolean => true): Promise<void> {
  const { world, groups, partitions } = inboxWorld
  world.tell('everything is healed')
  Object.assign(world, { faults: 0, isDatabaseDown: false })
  inboxWorld.isHealed = true
  for (let waited = 0; waited < healMsMax; waited += 5_000) {
    replaceTheDead(inboxWorld)
    for (const group of groups) redrive(inboxWorld, group)
    await world.clock.advance(5_000)
    const isRead = partitions.every(({ log, queues }) => queues.every((queue) => queue.floor() === log.length))
    if (isPublished() && isRead && waited > 20_000 && !groups.some((group) => waitsForPerson(inboxWorld, group))) return
  }
}

function waitsForPerson({ model }: InboxWorld, { scope }: Group): boolean {
  return model.rows('inbox_parked').some((row) => row['scope'] === scope && row['code'] === 'ATTEMPTS')
}

function judge(inboxWorld: InboxWorld): void {
  const { world, groups, partitions, sent } = inboxWorld
  for (const group of groups) {
    for (const { number, log, queues } of partitions) {
      const floor = queues[group.number]!.floor()
      if (floor === log.length) continue
      const stuck = Buffer.from(log[floor]!.message.body).toString()
      world.violated(
        'nothing-lost',
        `partition ${number} stands at ${stuck} for ${group.scope} an hour after all was healed`,
      )
    }
    for (const uid of sent.keys()) {
      if (endOf(inboxWorld, group, uid) === undefined)
        world.violated('nothing-lost', `${uid} has come to no end at ${group.scope}`)
    }
    if (waitsForPerson(inboxWorld, group))
      world.violated('nothing-lost', `a message that was redriven is still parked at ${group.scope}`)
    judgeOrder(inboxWorld, group, firstPositions(inboxWorld))
  }
}

/** By the position in the log where a message first stands. */
function firstPositions({ partitions }: InboxWorld): (uid: string) => number | undefined {
  const positions = new Map<string, number>()
  for (const { log } of partitions) {
    for (const { position, message } of log) {
      const uid = Buffer.from(message.body).toString()
      if (!positions.has(uid)) positions.set(uid, position)
    }
  }
  return (uid) => positions.get(uid)
}

/**
 * What was redriven came late, because a person decided so. What one process refused as too old, another may have begun within the
 * window, and end after those that came behind it.
 */
export function judgeOrder({ world }: InboxWorld, group: Group, positionOf: (uid: string) => number | undefined): void {
  const isTooOld = (uid: string): boolean => group.deadLetters.get(uid)?.has('TOO_OLD') === true
  const effects = group.effects
    .filter(({ sent, isRedriven }) => !isRedriven && !isTooOld(sent.uid))
    .map(({ sent }) => sent)
  for (const [key, own] of Map.groupBy(effects, (each) => each.key)) {
    if (key === undefined) continue
    const positions = own.flatMap(({ uid }) => positionOf(uid) ?? [])
    if (positions.every((position, index) => index === 0 || position >= positions[index - 1]!)) continue
    const told = own.map(({ uid }) => uid).join(', ')
    world.violated('in-order', `the effects of ${key} at ${group.scope} are not in the order of its messages: ${told}`)
  }
}

/** Marks are kept for the window and an hour, and then swept with the work that makes new ones. Those of parked messages stay. */
async function judgeMarks(inboxWorld: InboxWorld): Promise<void> {
  const { world, groups, model } = inboxWorld
  await world.clock.advance(Math.max(...groups.map(({ windowMs }) => windowMs)) + hourMs + 200_000)
  const beforeMs = world.clock.now()
  const left = (): number =>
    model.rows('inbox').filter((row) => Number(row['at_ms']) < beforeMs && row['state'] !== 'p').length
  world.counts.sweeps += left()
  for (const { partition } of inboxWorld.partitions.flatMap(({ queues }) => queues))
    publish(partition, inboxWorld.add({ ...newMessage(inboxWorld), entity: undefined, nature: 'good' }))
  await world.clock.advance(10_000)
  if (left() > 0) world.violated('marks-bounded', `${left()} marks are left when all windows are over`)
}

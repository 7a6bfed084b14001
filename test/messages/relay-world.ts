// A world for the relay: the shipped relays on a clock that only the test moves, a model of the outbox that keeps the promises of
// RelaySource, and a broker. Requests and replies travel separately, so "done but not answered" exists. A process can die at any await,
// and can stand still while its lease runs out. Everything follows from the seed.
import type { Clock } from '../../src/core/clock.ts'
import { inOrderOfKeys, type Outgoing } from '../../src/messages/broker.ts'
import { createRelay, type FailurePolicy, type Relay, type RelaySource } from '../../src/messages/outbox.ts'
import type { ManualClock } from '../../src/testing/manual-clock.ts'
import { type SeededRandom, seededRandom } from '../../src/testing/seeded-random.ts'

const lanes = 8
const shards = 2
const leaseMs = 3_000
const publishMs = 5_000

type Row = Parameters<RelaySource['mark']>[1]['hold'][number]['row']
type Held = Parameters<RelaySource['mark']>[1]['hold'][number] & { shard: number; dueAt: number | undefined }

export interface Counts {
  committed: number
  rolledBack: number
  kills: number
  pauses: number
  takeovers: number
  fenced: number
  lostReplies: number
  repeated: number
  held: number
  dead: number
}

export const noCounts = (): Counts => ({
  committed: 0,
  rolledBack: 0,
  kills: 0,
  pauses: 0,
  takeovers: 0,
  fenced: 0,
  lostReplies: 0,
  repeated: 0,
  held: 0,
  dead: 0,
})

export interface RelayWorld {
  readonly clock: ManualClock
  readonly random: SeededRandom
  readonly counts: Counts
  /** Rows in the order of their commits. */
  readonly committed: readonly Row[]
  /** Ids in the order of their first arrival. */
  readonly firsts: readonly string[]
  readonly dead: ReadonlySet<string>
  readonly violations: readonly string[]
  addTransaction(): Promise<void>
  startRelay(): RelayProcess
  /** Some messages are refused from now on, until the world is healed. */
  poison(key: string): void
  setOutage(isDown: boolean): void
  /** No more faults. */
  heal(): void
  /** What a person does about parked rows. */
  redrive(): void
  isDone(): boolean
}

export interface RelayProcess {
  kill(): void
  pause(ms: number): void
  readonly relay: Relay
}

interface Life {
  isDead: boolean
  pausedUntil: number
}

/** What goes wrong, and when. */
interface Weather {
  faults: number
  isDown: boolean
  readonly poisoned: Set<string>
}

/** What all parts of the world know. */
interface Ground {
  readonly clock: ManualClock
  readonly random: SeededRandom
  readonly counts: Counts
  readonly violations: string[]
  readonly weather: Weather
  wait(ms: number): Promise<void>
  now(): number
}

interface ShardRow {
  epoch: number
  owner: string
  until: number
  readonly cursors: Map<number, number>
}

/** The outbox, as the database has it. */
interface OutboxModel {
  readonly rows: Row[][]
  readonly locks: Promise<void>[]
  readonly committed: Row[]
  readonly shardRows: ShardRow[]
  readonly relays: Map<string, number>
  readonly held: Map<string, Held>
  positions: number
}

export interface RelayWorldOptions {
  readonly clock: ManualClock
  /** The broker has taken a message, perhaps not for the first time. */
  onArrive?(id: string, key: string | undefined): void
}

export function createRelayWorld(
  seed: number,
  policy: FailurePolicy,
  { clock, onArrive }: RelayWorldOptions,
): RelayWorld {
  const ground: Ground = {
    clock,
    random: seededRandom(seed),
    counts: noCounts(),
    violations: [],
    weather: { faults: 0.04, isDown: false, poisoned: new Set() },
    wait: (ms) => new Promise((resolve) => clock.schedule(resolve, ms)),
    now: () => clock.elapsed(),
  }
  const { random, counts, violations, weather, now } = ground
  const outbox: OutboxModel = {
    rows: Array.from({ length: lanes }, (): Row[] => []),
    locks: Array.from({ length: lanes }, () => Promise.resolve()),
    committed: [],
    shardRows: Array.from({ length: shards }, () => ({ epoch: 0, owner: '', until: 0, cursors: new Map() })),
    relays: new Map(),
    held: new Map(),
    positions: 0,
  }
  const { committed, shardRows, held } = outbox
  const firsts: string[] = []
  return {
    clock,
    random,
    counts,
    committed,
    firsts,
    get dead() {
      return new Set([...held.values()].filter(({ state }) => state === 'dead').map(({ row }) => row.id))
    },
    violations,
    addTransaction: () => addTransaction(ground, outbox),
    startRelay: () =>
      startRelay(ground, outbox, policy, (message) => {
        arrive(ground, outbox, firsts, message)
        onArrive?.(message.id, message.key)
      }),
    poison: (key) => void weather.poisoned.add(key),
    setOutage: (isDown) => void (weather.isDown = isDown),
    heal() {
      Object.assign(weather, { faults: 0, isDown: false })
      weather.poisoned.clear()
    },
    redrive() {
      for (const each of held.values()) {
        if (each.state === 'parked')
          Object.assign(each, { state: 'waiting', dueAt: now(), row: { ...each.row, tries: 0 } })
      }
    },
    isDone() {
      const isSent = (row: Row): boolean => row.position <= (shardRows[row.lane % shards]!.cursors.get(row.lane) ?? 0)
      return committed.every(isSent) && [...held.values()].every(({ state }) => state === 'dead')
    },
  }
}

async function addTransaction({ random, counts, wait }: Ground, outbox: OutboxModel): Promise<void> {
  const { rows, locks, committed } = outbox
  const key = random.chance(0.1) ? undefined : `key-${random.integer(0, 6)}`
  const lane = key === undefined ? random.integer(0, lanes - 1) : key.charCodeAt(4) % lanes
  const before = locks[lane]!
  const lock = Promise.withResolvers<void>()
  locks[lane] = lock.promise
  await before
  const added = Array.from({ length: random.integer(1, 3) }, (): Row => {
    const id = `${key ?? 'none'}/${++outbox.positions}`
    return {
      lane,
      position: outbox.positions,
      id,
      topic: 'orders',
      key,
      body: Buffer.from(id),
      headers: {},
      ageMs: 0,
      tries: 0,
    }
  })
  await wait(random.chance(0.1) ? random.integer(500, 4_000) : random.integer(0, 60))
  if (random.chance(0.15)) counts.rolledBack++
  else {
    counts.committed++
    rows[lane]!.push(...added)
    committed.push(...added)
  }
  lock.resolve()
}

// What a process asks of the database or of the broker. A process that is dead gets no answer, one that is
// paused gets it later, and now and then nobody answers at all.
async function call<T>(ground: Ground, life: Life, work: () => T | Promise<T>): Promise<T> {
  const { random, counts, weather, wait } = ground
  const { faults } = weather
  if (life.isDead || random.chance(faults / 20)) return new Promise(() => {})
  await wait(random.integer(0, 4))
  if (random.chance(faults / 2)) return answer(ground, life, () => Promise.reject(new Error('the request is lost')))
  const value = await work()
  await wait(random.chance(faults / 2) ? random.integer(1_000, 8_000) : random.integer(0, 4))
  if (random.chance(faults / 2)) {
    counts.lostReplies++
    return answer(ground, life, () => Promise.reject(new Error('the reply is lost')))
  }
  return answer(ground, life, () => Promise.resolve(value))
}

async function answer<T>({ clock, wait }: Ground, life: Life, give: () => Promise<T>): Promise<T> {
  while (!life.isDead && clock.elapsed() < life.pausedUntil) await wait(life.pausedUntil - clock.elapsed())
  return life.isDead ? new Promise(() => {}) : give()
}

function blockedOf({ held }: OutboxModel, shard: number): Set<string> {
  const blocking = [...held.values()].filter((each) => each.shard === shard && each.state !== 'dead')
  return new Set(blocking.map(({ row }) => row.key ?? row.id))
}

function mark(
  { counts, violations, now }: Ground,
  { shardRows, held }: OutboxModel,
  ...[holding, made, lease]: Parameters<RelaySource['mark']>
): 'done' | 'lost' {
  const own = shardRows[holding.shard]!
  if (own.epoch !== holding.epoch) {
    counts.fenced++
    return 'lost'
  }
  own.until = now() + lease
  for (const [lane, position] of made.cursors) {
    if (position < (own.cursors.get(lane) ?? 0)) violations.push(`the cursor of lane ${lane} went back`)
    own.cursors.set(lane, position)
  }
  for (const id of made.sent) if (!held.delete(id)) violations.push(`${id} was not held`)
  for (const each of [...made.hold, ...made.again]) {
    counts.held++
    const dueAt = each.dueInMs === undefined ? undefined : now() + each.dueInMs
    held.set(each.row.id, { ...each, row: { ...each.row, tries: each.tries }, shard: holding.shard, dueAt })
    if (each.state === 'dead') counts.dead++
  }
  return 'done'
}

function sourceFor(ground: Ground, outbox: OutboxModel, life: Life): RelaySource {
  return {
    ...shardCalls(ground, outbox, life),
    ...rowCalls(ground, outbox, life),
    retain: async () => {},
    status: async () => ({
      unsent: 0,
      lagMs: undefined,
      blockedKeys: 0,
      headOfLineMs: undefined,
      parked: 0,
      dead: 0,
      waiting: 0,
      shards,
      shardsIdle: 0,
    }),
  }
}

function shardCalls(
  ground: Ground,
  outbox: OutboxModel,
  life: Life,
): Pick<RelaySource, 'attend' | 'take' | 'give' | 'leave'> {
  const { counts, now } = ground
  const { shardRows, relays } = outbox
  return {
    attend: (owner, lease, working) =>
      call(ground, life, () => {
        relays.set(owner, now() + lease)
        shardRows.forEach((each, shard) => {
          if (each.owner === owner && working.includes(shard)) each.until = now() + lease
        })
        return {
          shards: shardRows.map((each, shard) => ({ shard, owner: each.owner, isFree: each.until <= now() })),
          relays: [...relays.values()].filter((until) => until > now()).length,
        }
      }),
    take: (shard, owner, lease) =>
      call(ground, life, () => {
        const own = shardRows[shard]!
        if (own.until > now() && own.owner !== owner) return undefined
        if (own.owner !== '' && own.owner !== owner) counts.takeovers++
        Object.assign(own, { epoch: own.epoch + 1, owner, until: now() + lease })
        return { shard, epoch: own.epoch, cursors: new Map(own.cursors), blocked: blockedOf(outbox, shard) }
      }),
    give: (given) =>
      call(ground, life, () => {
        for (const { shard, epoch } of given) {
          if (shardRows[shard]!.epoch === epoch) Object.assign(shardRows[shard]!, { owner: '', until: 0 })
        }
      }),
    leave: (owner) => call(ground, life, () => void relays.delete(owner)),
  }
}

function rowCalls(
  ground: Ground,
  outbox: OutboxModel,
  life: Life,
): Pick<RelaySource, 'read' | 'blocked' | 'heldAmong' | 'readDue' | 'mark'> {
  const { rows, held } = outbox
  const { now } = ground
  return {
    read: (holding, from, limit) =>
      call(ground, life, () => {
        const own = rows.map((_, lane) => lane).filter((lane) => lane % shards === holding.shard)
        const turned = [...own.filter((lane) => lane >= from), ...own.filter((lane) => lane < from)]
        const fresh = turned.flatMap((lane) =>
          rows[lane]!.filter(({ position }) => position > (holding.cursors.get(lane) ?? 0)).slice(
            0,
            Math.ceil(limit / 2),
          ),
        )
        return fresh.slice(0, limit)
      }),
    blocked: (shard) => call(ground, life, () => blockedOf(outbox, shard)),
    heldAmong: (ids) => call(ground, life, () => new Set(ids.filter((id) => held.has(id)))),
    readDue: (shard, limit) =>
      call(ground, life, () => {
        const blocking = [...held.values()]
          .filter((each) => each.shard === shard && each.state !== 'dead')
          .toSorted((a, b) => a.row.position - b.row.position)
        const found = [...Map.groupBy(blocking, ({ row }) => row.key ?? row.id).values()]
          .filter(([head]) => head!.state === 'waiting' && head!.dueAt! <= now())
          .flatMap((own) => own.filter(({ state }) => state === 'waiting').map(({ row }) => row))
        return found.toSorted((a, b) => a.position - b.position).slice(0, limit)
      }),
    mark: (...given) => call(ground, life, () => mark(ground, outbox, ...given)),
  }
}

// The broker.
function arrive(
  { counts, violations, weather }: Ground,
  { committed }: OutboxModel,
  firsts: string[],
  { id, key }: Outgoing,
): void {
  if (weather.isDown || (key !== undefined && weather.poisoned.has(key))) throw new Error('refused')
  if (!committed.some((row) => row.id === id)) violations.push(`${id} was published and is not committed`)
  if (firsts.includes(id)) counts.repeated++
  else firsts.push(id)
}

function startRelay(
  ground: Ground,
  outbox: OutboxModel,
  policy: FailurePolicy,
  arriving: (message: Outgoing) => void,
): RelayProcess {
  const { clock, random, counts } = ground
  const life: Life = { isDead: false, pausedUntil: 0 }
  const relay = createRelay({
    outbox: { rows: sourceFor(ground, outbox, life), onAdded: () => () => {} },
    publisher: {
      name: 'broker',
      publish: (messages) => inOrderOfKeys(messages, (message) => call(ground, life, () => arriving(message))),
    },
    batch: 4,
    leaseMs,
    publishMs,
    onFailure: policy,
    clock: clockOf(clock, life),
    random: random.fork(random.integer(0, 1_000_000)),
  })
  relay.start()
  return {
    relay,
    kill() {
      counts.kills++
      life.isDead = true
    },
    pause(ms) {
      counts.pauses++
      life.pausedUntil = clock.elapsed() + ms
    },
  }
}

/** Time goes on for everybody. The timers of a process fire when it runs, and not at all when it is dead. */
function clockOf(clock: ManualClock, life: Life): Clock {
  return {
    now: () => clock.now(),
    elapsed: () => clock.elapsed(),
    schedule(run, delayMs) {
      let cancel = (): void => {}
      const fire = (): void => {
        if (life.isDead) return
        if (clock.elapsed() >= life.pausedUntil) return run()
        cancel = clock.schedule(fire, life.pausedUntil - clock.elapsed())
      }
      cancel = clock.schedule(fire, delayMs)
      return () => cancel()
    },
  }
}

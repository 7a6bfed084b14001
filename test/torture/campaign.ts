// The whole of the torture: what is done to which store, in which order, and the result. All that is done to one store is one
// history, judged at the end, when every key has been asked for once more.
import { join } from 'node:path'
import { servers } from '../servers/index.ts'
import { startDynamodb } from '../servers/dynamodb.ts'
import { startMariadb } from '../servers/mariadb.ts'
import { startMongodb } from '../servers/mongodb.ts'
import { startPostgres } from '../servers/postgres.ts'
import { startRedis } from '../servers/redis.ts'
import type { Running } from '../servers/server.ts'
import { durable } from '../subjects/redis.ts'
import type { Flow } from './asking.ts'
import { clocksMissing, moveClockOf, moveClocksOfProcesses, type WithClock } from './clocks.ts'
import { type Counts, countHistory, noCounts } from './counts.ts'
import { crashAtCommits, cutCommits, cutEverywhere, type Link } from './cuts.ts'
import { fillDisk } from './disk.ts'
import { fillDiskOfPostgres } from './disk/postgres.ts'
import { fillDiskOfServer, serversWithDisks } from './disk/servers.ts'
import { gatewayStores } from './gateways.ts'
import { type Judged, judge } from './judge.ts'
import { type Kill, kill, killsOf, type Left } from './kills.ts'
import { tellStory } from '../../src/testing/history-checker.ts'
import { type Place, type StoreName, storeNames } from './place.ts'
import { startTorturedPostgres } from './postgres-server.ts'
import { crashUnderLoad } from './restarts.ts'
import { missedBySessions, tortureSessions } from './sessions.ts'
import { inTurns, prepare, supervise, type Supervisor, tortureFolder } from './supervisor.ts'
import { raise, zombiesOf } from './zombies.ts'

export interface CampaignOptions {
  readonly only: readonly StoreName[]
  /** How often everything is done: 1 in CI. */
  readonly scale: number
  readonly seed: number
  say(line: string): void
}

export interface Campaign {
  readonly counts: Counts
  readonly byStore: Record<string, Counts>
  /** How often each point was met, as `sqlite run: settle before`. */
  readonly points: Record<string, number>
  readonly violations: readonly (Judged['violations'][number] & { readonly store: string })[]
  readonly skipped: readonly string[]
  /** What the torture of sessions met too little of. */
  readonly missed: readonly string[]
}

/** Processes that are killed at the same time, on all stores together: two cores have no more to give. */
const killLanes = 5
/** Every point is met once, whatever the number. What is above that is met twice. */
const killsWanted = 560
const zombieTimes = 4
const serverCrashes = 6
/** Of PostgreSQL and MariaDB, each with several COMMITs under way. */
const commitCrashes = 2
const commitCuts = 8

interface Front {
  readonly store: StoreName
  readonly supervisor: Supervisor
  readonly server: Running | undefined
  /** What can be asked of this store. */
  readonly flows: readonly Flow[]
}

interface State extends CampaignOptions {
  readonly fronts: Front[]
  readonly byStore: Record<string, Counts>
  readonly points: Record<string, number>
  readonly violations: (Judged['violations'][number] & { store: string })[]
  readonly skipped: string[]
  readonly missed: string[]
  readonly stops: (() => Promise<unknown>)[]
}

export async function runCampaign(options: CampaignOptions): Promise<Campaign> {
  const lists = { fronts: [], violations: [], skipped: [], missed: [], stops: [] }
  const state: State = { ...options, ...lists, byStore: {}, points: {} }
  const folder = await tortureFolder()
  try {
    await openFronts(state)
    await timed(state, 'kills', () => killAll(state))
    await timed(state, 'zombies', () => raiseAll(state))
    await timed(state, 'server restarts', () => crashAll(state))
    await timed(state, 'cut connections', () => cutAll(state))
    await timed(state, 'convergence and judgement', () => judgeAll(state))
    await timed(state, 'sessions', () => killSessions(state))
    await timed(state, 'full disks', () => fillAll(state))
    await timed(state, 'moved clocks', () => moveClocks(state))
  } finally {
    for (const stop of state.stops.toReversed()) await stop()
    await folder.remove()
  }
  const counts = noCounts()
  for (const more of Object.values(state.byStore)) addAll(counts, more)
  return { counts, ...state }
}

function addAll(sum: Counts, more: Counts): void {
  for (const [name, count] of Object.entries(more)) sum[name as keyof Counts] += count as number
}

async function timed(state: State, what: string, work: () => Promise<void>): Promise<void> {
  const beganMs = performance.now()
  await work()
  state.say(`${what}: ${((performance.now() - beganMs) / 1_000).toFixed(1)} s`)
}

const countsOf = (state: State, store: string): Counts => (state.byStore[store] ??= noCounts())

/** A server for each store. PostgreSQL serves two. */
async function openFronts(state: State): Promise<void> {
  const wanted = storeNames.filter((name) => state.only.includes(name) && isThere(state, name))
  const servers = new Map<string, Promise<Running & { createDatabase?(): Promise<string> }>>()
  const server = async <T extends Running>(name: string, start: () => Promise<T>): Promise<T> => {
    if (!servers.has(name)) {
      const started = start()
      servers.set(name, started)
      state.stops.push(async () => (await started).stop())
    }
    return (await servers.get(name)) as T
  }
  const open = async (store: StoreName): Promise<void> => {
    const [place, running] = await placeOf(store, server)
    await prepare(place)
    const supervisor = await supervise(place)
    state.stops.push(() => supervisor.close())
    state.fronts.push({ store, supervisor, server: running, flows: flowsOf(state, supervisor) })
  }
  await Promise.all(wanted.map(open))
}

/** In CI gateways are killed in front of one store of each kind. What they do is the same in front of all. */
const gatewayStoresInCi: readonly StoreName[] = ['sqlite', 'postgres', 'redis']

function flowsOf({ scale }: State, { place, asker }: Supervisor): Flow[] {
  const flows: Flow[] = ['run', 'refuse', 'http']
  if ((scale > 1 ? gatewayStores : gatewayStoresInCi).includes(place.store)) flows.push('gateway', 'gatewayRefuse')
  if ('begin' in asker.opened.store) flows.push('transaction')
  if ('enlist' in asker.opened.store) flows.push('operation')
  return flows
}

/** Under load, or with cut connections: HTTP adds nothing to them there. */
const loadFlows = ({ flows }: Front): Flow[] =>
  flows.filter((flow) => flow === 'run' || flow === 'transaction' || flow === 'operation')

function isThere(state: State, store: StoreName): boolean {
  const needed = { sqlite: [], mysql: ['mariadb'], 'redis-postgres': ['redis', 'postgres'] } as const
  const names = store in needed ? needed[store as keyof typeof needed] : [store as keyof typeof servers]
  for (const name of names) {
    const found = servers[name].find()
    if (found.found && found.ours) continue
    state.skipped.push(`${store}: ${found.found ? `${name} is given by URL` : `${found.reason}; cure: ${found.cure}`}`)
    return false
  }
  return true
}

type Serve = <T extends Running>(name: string, start: () => Promise<T>) => Promise<T>

async function placeOf(store: StoreName, server: Serve): Promise<[Place, Running | undefined]> {
  if (store === 'sqlite') return [{ store, url: join((await tortureFolder()).path, 'store.db') }, undefined]
  if (store === 'mysql') {
    const mariadb = await server('mariadb', startMariadb)
    return [{ store, url: await mariadb.createDatabase() }, mariadb]
  }
  if (store === 'postgres' || store === 'redis-postgres') {
    const postgres = await server('postgres', startPostgres)
    const url = await postgres.createDatabase()
    if (store === 'postgres') return [{ store, url }, postgres]
    const cache = await server('cache', () => startRedis({ config: { appendonly: 'no' } }))
    return [{ store, url, redisUrl: cache.url }, postgres]
  }
  const starts = { redis: () => startRedis({ config: durable }), dynamodb: startDynamodb, mongodb: startMongodb }
  const running = await server(store, starts[store])
  return [{ store, url: running.url }, running]
}

/** Every point of every store, in an order that the seed decides, until each was tried often enough. */
async function killAll(state: State): Promise<void> {
  const lefts = new Map<StoreName, Left>()
  const round = state.fronts.flatMap((front) => killsOf(front.flows).map((plan) => ({ front, plan })))
  const wanted = Math.max(round.length, Math.min(killsWanted, round.length * 2)) * state.scale
  const rounds = Array.from({ length: Math.ceil(wanted / round.length) }, (_, index) =>
    shuffled(round, state.seed + index),
  )
  const plans = rounds.flat().slice(0, wanted)
  await inTurns(plans, killLanes, async ({ front, plan }) => {
    const left = lefts.get(front.store) ?? new Map()
    lefts.set(front.store, left)
    let point: string | undefined
    // Another process may have been faster with its keys, so that it had nothing to do at its point.
    for (let tries = 0; point === undefined && tries < 4; tries++) point = await kill(front.supervisor, plan, left)
    if (point === undefined) return
    countsOf(state, front.store).kills++
    const name = `${front.store} ${point}`
    state.points[name] = (state.points[name] ?? 0) + 1
  })
  notePoints(state, plans)
}

function notePoints(state: State, plans: readonly { front: Front; plan: Kill }[]): void {
  for (const { front, plan } of plans) {
    const name = `${front.store} ${plan.flow}: ${plan.die.call} ${plan.die.side}`
    state.points[name] ??= 0
  }
}

/** Fisher and Yates, with a small generator: the same seed gives the same order. */
function shuffled<T>(items: readonly T[], seed: number): T[] {
  const result = [...items]
  let random = seed >>> 0
  for (let index = result.length - 1; index > 0; index--) {
    random = (Math.imul(random, 1_664_525) + 1_013_904_223) >>> 0
    const other = Math.floor((random / 2 ** 32) * (index + 1))
    ;[result[index], result[other]] = [result[other]!, result[index]!]
  }
  return result
}

async function raiseAll(state: State): Promise<void> {
  const plans = state.fronts.flatMap((front) => zombiesOf(front.flows).map((zombie) => ({ front, zombie })))
  await inTurns(plans, 8, async ({ front, zombie }) => {
    const woken = await raise(front.supervisor, zombie, zombieTimes * state.scale)
    countsOf(state, front.store).zombies += woken
  })
}

/** PostgreSQL under two stores, Redis and MariaDB. Most of the time is waiting: what is apart is done at the same time. */
async function crashAll(state: State): Promise<void> {
  await Promise.all((['postgres', 'redis', 'mysql'] as const).map((name) => crash(state, name)))
}

async function crash(state: State, name: 'postgres' | 'redis' | 'mysql'): Promise<void> {
  const front = state.fronts.find(({ store }) => store === name)
  if (!front?.server) return
  const loaded = state.fronts.filter(({ server }) => server === front.server)
  const loads = loaded.map((each) => ({ supervisor: each.supervisor, flows: loadFlows(each) }))
  const counts = countsOf(state, name)
  counts.restarts += await crashUnderLoad(front.server, loads, serverCrashes * state.scale)
  if (!front.flows.includes('transaction')) return
  const times = commitCrashes * state.scale
  counts.restarts += await crashAtCommits(front.supervisor, front.server, links[name][0]!, times)
}

/** Every connection that each store has. Of HTTP, MySQL and MongoDB a chunk is a message: both sides send one at a time. */
const links: Readonly<Record<StoreName, readonly Link[]>> = {
  sqlite: [],
  postgres: [{ to: 'url', framer: 'postgres' }],
  mysql: [{ to: 'url', framer: 'chunk' }],
  redis: [{ to: 'url', framer: 'redis' }],
  'redis-postgres': [
    { to: 'url', framer: 'postgres' },
    { to: 'redisUrl', framer: 'redis' },
  ],
  dynamodb: [{ to: 'url', framer: 'chunk' }],
  mongodb: [{ to: 'url', framer: 'chunk' }],
}

async function cutAll(state: State): Promise<void> {
  await Promise.all(state.fronts.map((front) => cut(state, front)))
}

async function cut(state: State, front: Front): Promise<void> {
  const { store, supervisor } = front
  const counts = countsOf(state, store)
  for (let round = 0; round < state.scale; round++) {
    for (const link of links[store]) {
      const met = await cutEverywhere(supervisor, link, loadFlows(front))
      if (met === 0) throw new Error(`no message of ${store} was cut at ${link.to}: the proxy sees no traffic`)
      counts.cuts += met
    }
    const [toDatabase] = links[store]
    if (toDatabase && front.flows.includes('transaction')) {
      counts.cuts += await cutCommits(supervisor, toDatabase, commitCuts)
    }
  }
}

// One store after the other. All of them ask from this one process, and a hundred askers at once keep its heartbeats from their turn: with
// leases of half a second nothing ends then, which looks as if a key were wedged.
async function judgeAll(state: State): Promise<void> {
  for (const { store, supervisor } of state.fronts) {
    await supervisor.converge()
    note(state, store, await judge(supervisor.place, supervisor.folder, supervisor.asker.opened, 'true'))
  }
}

/** When all else on these servers has been judged: they are killed once more. */
async function killSessions(state: State): Promise<void> {
  const torture = async ({ store, supervisor: { place }, server }: Front): Promise<void> => {
    if (!server || (store !== 'postgres' && store !== 'mysql' && store !== 'redis')) return
    const name = `${store}, sessions`
    const met = await tortureSessions({ place, server, link: links[store][0]!, scale: state.scale })
    const { points, violations, ...counts } = met
    addAll(countsOf(state, name), { ...noCounts(), ...counts })
    Object.assign(state.points, points)
    state.violations.push(...violations.map((found) => ({ ...found, store: name })))
    state.missed.push(...missedBySessions(met, state.scale).map((line) => `${name}: ${line}`))
  }
  await Promise.all(state.fronts.map(torture))
}

/** The first tell enough. The rest are mostly the same. */
const storiesMax = 3

/** All that happened to one key. */
function storyOf({ history }: Judged, key: string): string {
  const id = key.split('\n').at(-1)!
  const executions = history.executions.map((execution, index) => ({ execution, index }))
  const own = new Map(
    executions.filter(({ execution }) => execution.call.key.id === id).map(({ index }, place) => [index, place]),
  )
  return tellStory({
    ...history,
    calls: history.calls.filter((call) => call.key.id === id),
    operations: history.operations.filter((operation) => operation.key.split('\n').at(-1) === id),
    executions: history.executions.filter(({ call }) => call.key.id === id),
    effects: history.effects.flatMap((effect) =>
      own.has(effect.execution) ? [{ ...effect, execution: own.get(effect.execution)! }] : [],
    ),
  })
}

function note(state: State, name: string, judged: Judged): void {
  countHistory(countsOf(state, name), judged)
  for (const found of judged.violations) state.violations.push({ ...found, store: name })
  for (const { key, assertion, message } of judged.violations.slice(0, storiesMax)) {
    if (key) state.say(`\n${assertion}: ${message}\n${key.replace('\n', '/')} on ${name}:\n${storyOf(judged, key)}\n`)
  }
}

async function fillAll(state: State): Promise<void> {
  for (const store of serversWithDisks) await fillServer(state, store)
  if (state.only.includes('sqlite')) {
    const { skipped, refused, judged } = await fillDisk(12 * state.scale)
    if (skipped) state.skipped.push(`full disk: ${skipped}`)
    countsOf(state, 'sqlite, full disk').diskFull += refused
    if (judged) note(state, 'sqlite, full disk', judged)
  }
  if (!state.fronts.some(({ store }) => store === 'postgres')) return
  const { skipped, refused, crashes, judged } = await fillDiskOfPostgres(8 * state.scale)
  if (skipped) state.skipped.push(`full disk of PostgreSQL: ${skipped}`)
  const counts = countsOf(state, 'postgres, full disk')
  counts.diskFull += refused
  counts.restarts += crashes
  if (judged) note(state, 'postgres, full disk', judged)
}

async function fillServer(state: State, store: (typeof serversWithDisks)[number]): Promise<void> {
  if (!isWanted(state, store)) return
  const { skipped, refused, crashes, judged } = await fillDiskOfServer(store, state.scale)
  if (skipped) state.skipped.push(`full disk of ${store}: ${skipped}`)
  const name = `${store}, full disk`
  const counts = countsOf(state, name)
  counts.diskFull += refused
  counts.restarts += crashes
  if (judged) note(state, name, judged)
}

async function moveClocks(state: State): Promise<void> {
  const missing = clocksMissing()
  if (missing) return void state.skipped.push(`moved clocks: ${missing}`)
  const jumps = 12 * state.scale
  const add = async (name: string, jumping: ReturnType<typeof moveClockOf>): Promise<void> => {
    const jumped = await jumping
    countsOf(state, name).clockJumps += jumped.jumps
    note(state, name, jumped.judged)
  }
  // A few at a time: a jump waits for answers under load.
  const lanes = 3
  await inTurns(
    storeNames.filter((store) => isWanted(state, store)),
    lanes,
    async (store) => {
      const [place, stop] = await placeOfItsOwn(store)
      const flows = movedFlows[store]
      try {
        await add(`${store}, moved clocks`, moveClocksOfProcesses(place, flows, jumps))
      } finally {
        await stop()
      }
      const start = serversWithClocks[store]
      if (start) await add(`${store}, its clock moved`, moveClockOf(start, flows, jumps))
    },
  )
}

const isWanted = (state: State, store: StoreName): boolean =>
  store === 'sqlite' ? state.only.includes(store) : state.fronts.some((front) => front.store === store)

const movedFlows: Readonly<Record<StoreName, readonly Flow[]>> = {
  sqlite: ['run', 'transaction'],
  postgres: ['run', 'transaction', 'operation'],
  mysql: ['run', 'transaction', 'operation'],
  redis: ['run'],
  'redis-postgres': ['run', 'transaction', 'operation'],
  dynamodb: ['run'],
  mongodb: ['run'],
}

/** Separate servers: what is judged before has been judged. */
async function placeOfItsOwn(store: StoreName): Promise<[Place, () => Promise<unknown>]> {
  if (store === 'sqlite')
    return [{ store, url: join((await tortureFolder()).path, 'clocks.db') }, async () => undefined]
  const stops: (() => Promise<unknown>)[] = []
  const [place] = await placeOf(store, async (_name, start) => {
    const server = await start()
    stops.push(() => server.stop())
    return server
  })
  return [place, () => Promise.all(stops.map((stop) => stop()))]
}

/** Servers that decide by their clock and can be given another. Redis cannot: its allocator, jemalloc, clashes with libfaketime. */
const serversWithClocks: Partial<Readonly<Record<StoreName, WithClock>>> = {
  async postgres(env) {
    const server = await startTorturedPostgres({ env })
    return [{ store: 'postgres', url: server.url }, server]
  },
  async mysql(env) {
    const server = await startMariadb({ surroundings: { env } })
    return [{ store: 'mysql', url: await server.createDatabase() }, server]
  },
}

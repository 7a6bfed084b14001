// The whole of the torture: what is done to which store, in which order, and what came of it. All that is done to one store is
// one history, judged at the end, when every key has been asked for once more.
import { join } from 'node:path'
import { servers } from '../servers/index.ts'
import { startDynamodb } from '../servers/dynamodb.ts'
import { startMariadb } from '../servers/mariadb.ts'
import { startMongodb } from '../servers/mongodb.ts'
import { startPostgres } from '../servers/postgres.ts'
import { startRedis } from '../servers/redis.ts'
import type { Running } from '../servers/server.ts'
import { durable } from '../redis-subject.ts'
import type { Flow } from './asking.ts'
import { clocksMissing, moveClockOfPostgres, moveClocksOfProcesses } from './clocks.ts'
import { type Counts, countHistory, noCounts } from './counts.ts'
import { cutEverywhere } from './cuts.ts'
import { fillDisk } from './disk.ts'
import { type Judged, judge } from './judge.ts'
import { type Kill, kill, killsOf, type Left } from './kills.ts'
import { tellStory } from '../../src/testing/history-checker-story.ts'
import { type Place, type StoreName, storeNames } from './place.ts'
import { crashUnderLoad } from './restarts.ts'
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
}

/** Processes that are killed at the same time, on all stores together: two cores have no more to give. */
const killLanes = 5
const killRounds = 2
const zombieTimes = 4
const serverCrashes = 8

interface Front {
  readonly store: StoreName
  readonly supervisor: Supervisor
  readonly server: Running | undefined
  readonly hasOperations: boolean
}

interface State extends CampaignOptions {
  readonly fronts: Front[]
  readonly byStore: Record<string, Counts>
  readonly points: Record<string, number>
  readonly violations: (Judged['violations'][number] & { store: string })[]
  readonly skipped: string[]
  readonly stops: (() => Promise<unknown>)[]
}

export async function runCampaign(options: CampaignOptions): Promise<Campaign> {
  const state: State = { ...options, fronts: [], byStore: {}, points: {}, violations: [], skipped: [], stops: [] }
  const folder = await tortureFolder()
  try {
    await openFronts(state)
    await timed(state, 'kills', () => killAll(state))
    await timed(state, 'zombies', () => raiseAll(state))
    await timed(state, 'server restarts', () => crashAll(state))
    await timed(state, 'cut connections', () => cutAll(state))
    await timed(state, 'convergence and judgement', () => judgeAll(state))
    await timed(state, 'full disk and moved clocks', () => moveAndFill(state))
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

/** A server for each store; PostgreSQL serves two. */
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
    const hasOperations = 'enlist' in supervisor.asker.opened.store
    state.fronts.push({ store, supervisor, server: running, hasOperations })
  }
  await Promise.all(wanted.map(open))
}

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
  const plans = state.fronts.flatMap((front) =>
    Array.from({ length: killRounds * state.scale }, () => killsOf(front.store, front.hasOperations))
      .flat()
      .map((plan) => ({ front, plan })),
  )
  await inTurns(shuffled(plans, state.seed), killLanes, async ({ front, plan }) => {
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

/** Fisher and Yates, by a small generator of its own: the seed tells the order again. */
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
  const plans = state.fronts.flatMap((front) => zombiesOf(front.hasOperations).map((zombie) => ({ front, zombie })))
  await inTurns(plans, 8, async ({ front, zombie }) => {
    const woken = await raise(front.supervisor, zombie, zombieTimes * state.scale)
    countsOf(state, front.store).zombies += woken
  })
}

/** PostgreSQL under two stores, Redis and MariaDB. */
async function crashAll(state: State): Promise<void> {
  const flowsOf = ({ hasOperations, store }: Front): Flow[] => [
    'run',
    ...(store === 'redis' ? [] : (['transaction'] as const)),
    ...(hasOperations ? (['operation'] as const) : []),
  ]
  for (const name of ['postgres', 'redis', 'mysql'] as const) {
    const front = state.fronts.find(({ store }) => store === name)
    if (!front?.server) continue
    const loaded = state.fronts.filter(({ server }) => server === front.server)
    const loads = loaded.map((each) => ({ supervisor: each.supervisor, flows: flowsOf(each) }))
    const restarts = await crashUnderLoad(front.server, loads, serverCrashes * state.scale)
    countsOf(state, name).restarts += restarts
  }
}

async function cutAll(state: State): Promise<void> {
  const framers = { postgres: 'postgres', mysql: 'chunk', redis: 'redis' } as const
  for (const { store, supervisor, hasOperations } of state.fronts) {
    if (!(store in framers)) continue
    const flows: Flow[] = ['run']
    if (store !== 'redis') flows.push('transaction')
    if (hasOperations) flows.push('operation')
    const framer = framers[store as keyof typeof framers]
    for (let round = 0; round < state.scale; round++) {
      const cuts = await cutEverywhere(supervisor, framer, flows)
      countsOf(state, store).cuts += cuts
    }
  }
}

async function judgeAll(state: State): Promise<void> {
  for (const { store, supervisor } of state.fronts) {
    await supervisor.converge()
    note(state, store, await judge(supervisor.place, supervisor.folder, supervisor.asker.opened, 'true'))
  }
}

/** The first tell; the rest are mostly the same. */
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

async function moveAndFill(state: State): Promise<void> {
  if (state.only.includes('sqlite')) {
    const { skipped, refused, judged } = await fillDisk(12 * state.scale)
    if (skipped) state.skipped.push(`full disk: ${skipped}`)
    countsOf(state, 'sqlite, full disk').diskFull += refused
    if (judged) note(state, 'sqlite, full disk', judged)
  }
  const missing = clocksMissing()
  if (missing) return void state.skipped.push(`moved clocks: ${missing}`)
  const jumps = 12 * state.scale
  const add = (name: string, jumped: Awaited<ReturnType<typeof moveClockOfPostgres>>): void => {
    countsOf(state, name).clockJumps += jumped.jumps
    note(state, name, jumped.judged)
  }
  if (state.only.includes('sqlite')) {
    const url = join((await tortureFolder()).path, 'clocks.db')
    add('sqlite, moved clocks', await moveClocksOfProcesses({ store: 'sqlite', url }, ['run', 'transaction'], jumps))
  }
  const postgres = state.fronts.find(({ store }) => store === 'postgres')?.server
  if (postgres && 'createDatabase' in postgres) {
    const url = await (postgres as { createDatabase(): Promise<string> }).createDatabase()
    const flows = ['run', 'transaction', 'operation'] as const
    add('postgres, moved clocks', await moveClocksOfProcesses({ store: 'postgres', url }, flows, jumps))
    add('postgres, its clock moved', await moveClockOfPostgres(jumps))
  }
}

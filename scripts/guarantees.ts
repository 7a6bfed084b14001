// npm run guarantees: writes the figures of docs/guarantees.md, between their markers, from the reports of the last runs in
// reports/: torture.json, simulate-keys.json, simulate-redis.json, simulate-operations.json, seeded-bugs.json. Each program writes its own
// with --json, and the tests with ONCEONLY_LONG=1 write long-*.json. Searches with fresh seeds are in
// test/simulation/searches.json and test/orders/searches.json.
// A report that is not there leaves its figures as they are. The sizes of the contract are counted. No figure of that page is typed.
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { brokenStores, storeContractCases } from '../src/testing/index.ts'
import { percent, readScore } from '../test/mutants/score.ts'
import type { FileScore } from '../test/mutants/score.ts'
import { readOrders } from '../test/orders/searches.ts'
import { readSearches } from '../test/simulation/searches.ts'
import type { Search } from '../test/simulation/searches.ts'

const root = join(import.meta.dirname, '..')
const page = join(root, 'docs/guarantees.md')

type Counts = Readonly<Record<string, number>>

interface Torture {
  readonly seed: number
  readonly scale: number
  readonly seconds: number
  readonly counts: Counts
  readonly byStore: Readonly<Record<string, Counts>>
  readonly points: Counts
  readonly violations: readonly unknown[]
  readonly skipped: readonly string[]
  readonly missed: readonly string[]
}

interface Simulation {
  readonly seed: number
  readonly seconds: number
  readonly counts: Counts
  readonly failed: readonly unknown[]
}

interface SeededBugs {
  readonly caught: number
  readonly missed: number
  readonly skipped: number
}

function read<Report>(name: string): Report | undefined {
  const file = join(root, 'reports', `${name}.json`)
  return existsSync(file) ? (JSON.parse(readFileSync(file, 'utf8')) as Report) : undefined
}

const number = (value: number | undefined): string => (value ?? 0).toLocaleString('en')

/** What the killed processes met, under each guarantee: the faults that could have broken it. */
function faultsOf({ counts, points }: Torture): Readonly<Record<string, string>> {
  const of = (name: string): string => number(counts[name])
  const killsIn = (...flows: string[]): string =>
    number(
      Object.entries(points)
        .filter(([point]) => flows.some((flow) => point.includes(` ${flow}: `)))
        .reduce((sum, [, count]) => sum + count, 0),
    )
  const crashes = `${of('kills')} kills, ${of('restarts')} server restarts`
  return {
    G1: `${crashes}, ${of('zombies')} zombies, ${of('cuts')} cut connections; ${killsIn('transaction')} of the kills in a transaction`,
    G2: `${crashes}, ${of('diskFull')} calls on a full disk; ${of('replays')} replays compared`,
    G3: `${of('kills')} kills; ${of('takeovers')} keys taken over, all ${of('keys')} ended`,
    G4: `${of('zombies')} zombies; ${of('fenced')} late writes refused, ${of('auditedWrites')} accepted ones audited`,
    G5: `${of('mismatches')} requests under somebody else's key, all refused`,
    G9: `${killsIn('operation')} kills inside operations`,
    G10: `${killsIn('session')} kills inside requests of sessions, and what else the rows "sessions" of the table below have`,
    G11: `${of('cuts')} cuts, ${of('restarts')} restarts; ${of('unavailable')} times "not run", ${of('outcomeUnknown')} times "unknown", none a lie`,
    G12: `${killsIn('operation')} kills inside operations`,
    G16: `${killsIn('gateway', 'gatewayRefuse')} kills of gateways, ${killsIn('gatewayRefuse')} of them with \`--on-takeover refuse\``,
    G13: `${of('clockJumps')} jumps of up to two hours, of processes and of a server`,
  }
}

function tortureTable({ seed, scale, seconds, counts, byStore, points, violations, skipped, missed }: Torture): string {
  const columns = [
    'kills',
    'zombies',
    'restarts',
    'cuts',
    'diskFull',
    'clockJumps',
    'takeovers',
    'fenced',
    'calls',
  ] as const
  const heads = [
    'kills',
    'zombies',
    'restarts',
    'cuts',
    'disk full',
    'clock jumps',
    'takeovers',
    'writes refused',
    'calls',
  ]
  const row = (name: string, of: Counts): string =>
    `| ${[name, ...columns.map((each) => number(of[each]))].join(' | ')} |`
  const verdict = missed.length > 0 ? `INVALID (${missed.join('; ')})` : `**${violations.length} violations**`
  return [
    `| | ${heads.join(' | ')} |`,
    `|---|${heads.map(() => '---:|').join('')}`,
    ...Object.entries(byStore).map(([name, of]) => row(name, of)),
    row('all', counts),
    '',
    `Seed ${seed}, scale ${scale}, ${number(Math.round(seconds))} s: ${verdict}. ${number(Object.keys(points).length)} points, each met; ` +
      `${number(counts['linearized'])} of ${number(counts['keys'])} keys linearized, ${number(counts['undecided'])} searches given up, ` +
      `${number(counts['auditedWrites'])} writes in the audit trail.${skipped.map((line) => ` Skipped: ${line}.`).join('')}`,
  ].join('\n')
}

/** What `npm run simulate -- --what …` knows. */
export const simulated = {
  keys: 'The key protocol',
  redis: 'On Redis',
  operations: 'Operations',
  inbox: 'The inbox',
  ways: 'The inbox by claim, at most once and at least once',
  relay: 'The relay',
  chain: 'Outbox, relay, broker and inbox together',
  sessions: 'Sessions',
} as const

function simulationLine(what: string, { seed, seconds, counts, failed }: Simulation): string {
  const met = [
    'crashes',
    'pauses',
    'takeovers',
    'fenced',
    'lostRequests',
    'lostAcknowledgements',
    'duplicates',
    'clockJumps',
    // Of messages.
    'kills',
    'relayKills',
    'lostReplies',
    'zombies',
    'conflicts',
    'unknownCommits',
    'rewinds',
    'parked',
    'redriven',
    'stale',
    'tooOld',
    'repeated',
    // Of sessions.
    'lateRequests',
    'ghosts',
    'memoryLosses',
    'reusedNumbers',
    'evictions',
    'expired',
    'gaps',
  ]
  const told = met.flatMap((name) => (counts[name] ? [`${number(counts[name])} ${words(name)}`] : []))
  return `${what}: ${number(counts['schedules'])} schedules from seed ${seed} in ${number(Math.round(seconds))} s (${told.join(', ')}): **${failed.length} violations**.`
}

/** The last commit that was searched, and all before it. */
export function searchLine(what: string, searches: readonly Search[]): string {
  const { commit, schedules, found } = searches.at(-1)!
  const before = searches.slice(0, -1)
  const sum = (of: (each: Search) => number): number => before.reduce((all, each) => all + of(each), 0)
  const foundBefore = sum((each) => each.found)
  const mended = foundBefore === 0 ? '' : ', mended since'
  const earlier =
    before.length === 0
      ? ''
      : ` Before that ${number(sum((each) => each.schedules))}, which found ${foundBefore}${mended}.`
  return `${what}, seeds that no run had seen: ${number(schedules)} schedules at ${commit}, **${found} violations**.${earlier}`
}

/** What `npm run orders` searched on each store: at the last commit that was searched, and before it. test/figures.test.ts compares it with the page. */
export function ordersTable(): string {
  const rows = Object.entries(readOrders()).map(([store, searches]) => {
    const { commit, schedules, found } = searches.at(-1)!
    const before = searches.slice(0, -1)
    const sum = (of: (each: Search) => number): number => before.reduce((all, each) => all + of(each), 0)
    const earlier = before.length === 0 ? '' : `${number(sum((each) => each.schedules))} (${sum((each) => each.found)})`
    return `| ${store} | ${number(schedules)} | ${commit} | ${found} | ${earlier} |`
  })
  if (rows.length === 0) return 'No search was recorded yet.'
  return ['| | scenarios | at | without an order | before (found) |', '|---|---:|---|---:|---:|', ...rows].join('\n')
}

/** What was killed for long (test/long-run.ts), and what its line says. */
const longRuns = [
  'client-and-provider',
  'client-and-backend',
  'exactly-once',
  'kafka',
  'nats',
  'rabbitmq',
  'redis-streams',
  'sqs-cut-off',
  'sqs-killed',
  'webhooks',
] as const

/** test/figures.test.ts compares it with the page. */
export const contractSize: string = `${storeContractCases.length} cases and ${brokenStores.length} broken stores`

/** What became of the mutants of each room (src/core) and each store. test/figures.test.ts compares it with the page. */
export function mutantTable(): string {
  const rooms = Map.groupBy(Object.entries(readScore()), ([file]) => roomOf(file))
  if (rooms.size === 0) return 'No file was audited yet.'
  return [
    '| | files | mutants | tried | killed | by time-out | survived | equivalent | killed, of what is not equivalent | sample |',
    '|---|---:|---:|---:|---:|---:|---:|---:|---:|---|',
    ...[...rooms].map(([room, files]) =>
      mutantRow(
        room,
        files.map(([, each]) => each),
      ),
    ),
  ].join('\n')
}

/** Stores were audited one by one, each on its own server. What several of them share was audited with those that need none. */
function roomOf(file: string): string {
  const [, room = '', part = ''] = file.split('/')
  if (room !== 'stores') return `src/${room}`
  const store = part.replace(/\.ts$/, '')
  return storesOnServers.includes(store) ? `src/stores/${store}` : 'src/stores, without a server'
}

const storesOnServers: readonly string[] = ['dynamodb', 'mongodb', 'mysql', 'postgres', 'redis', 'redis-postgres']

function mutantRow(room: string, files: readonly FileScore[]): string {
  const sum = (of: (each: FileScore) => number): number => files.reduce((total, each) => total + of(each), 0)
  const [killed, survived] = [sum((each) => each.killed), sum((each) => each.survived.length)]
  const equivalent = sum((each) => each.equivalent)
  const counts = [files.length, sum((each) => each.mutants), killed + survived + equivalent, killed]
  // An audit that did not count them is told from one without any.
  const timedOut = files.some((each) => each.timedOut === undefined) ? '?' : number(sum((each) => each.timedOut!))
  const drawn = files.map(({ sample }) =>
    sample ? `${Math.round(100 * sample.share)} %, seed ${sample.seed}` : 'all of them',
  )
  const cells = [
    ...counts.map(number),
    timedOut,
    number(survived),
    number(equivalent),
    `${percent(files)} %`,
    [...new Set(drawn)].join(', '),
  ]
  return `| ${[`\`${room}\``, ...cells].join(' | ')} |`
}

const words = (name: string): string => name.replaceAll(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`)

function rewrite(text: string, marker: string, figures: string | undefined): string {
  if (figures === undefined) return text
  const [begin, end] = [`<!-- ${marker} -->`, `<!-- /${marker} -->`]
  const [from, to] = [text.indexOf(begin), text.indexOf(end)]
  if (from < 0 || to < from) throw new Error(`docs/guarantees.md has no ${begin} … ${end}`)
  // A table needs lines of its own; what stands in a sentence, or in a cell, does not.
  const gap = figures.includes('\n') ? '\n\n' : ''
  return text.slice(0, from + begin.length) + gap + figures + gap + text.slice(to)
}

function main(): void {
  const torture = read<Torture>('torture')
  const bugs = read<SeededBugs>('seeded-bugs')
  const searches = readSearches()
  let text = readFileSync(page, 'utf8')
  text = rewrite(text, 'figures: torture', torture && tortureTable(torture))
  for (const [what, name] of Object.entries(simulated)) {
    const simulation = read<Simulation>(`simulate-${what}`)
    text = rewrite(text, `figures: simulate ${what}`, simulation && simulationLine(name, simulation))
    const searched = searches[what]
    text = rewrite(text, `figures: fresh ${what}`, searched && searchLine(name, searched))
  }
  const caught =
    bugs &&
    `${bugs.caught} of ${bugs.caught + bugs.missed} caught${bugs.skipped > 0 ? `, ${bugs.skipped} skipped for want of a server` : ''}`
  text = rewrite(text, 'figures: seeded bugs', caught)
  for (const name of longRuns)
    text = rewrite(text, `figures: long ${name}`, read<{ readonly line: string }>(`long-${name}`)?.line)
  text = rewrite(text, 'figures: contract', contractSize)
  text = rewrite(text, 'figures: mutants', mutantTable())
  text = rewrite(text, 'figures: orders', ordersTable())
  for (const [name, faults] of Object.entries(torture ? faultsOf(torture) : {}))
    text = rewrite(text, `faults: ${name}`, faults)
  writeFileSync(page, text)
}

if (import.meta.main) main()

// npm run guarantees: writes the figures of docs/guarantees.md, between their markers, from the reports of the last runs in
// reports/: torture.json, simulate-keys.json, simulate-redis.json, simulate-operations.json, seeded-bugs.json, and fresh-keys.json and
// its like for the searches with --fresh. Each program writes its own with --json, and the tests with ONCEONLY_LONG=1 write long-*.json.
// A report that is not there leaves its figures as they are. The sizes of the contract are counted. No figure of that page is typed.
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { brokenStores, storeContractCases } from '../src/testing/index.ts'
import { percent, readScore } from '../test/mutants/score.ts'

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
const simulated = {
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

/** Runs of `npm run simulate -- --fresh`. Each counts for the commit that it ran on. */
interface Search {
  readonly runs: readonly (Simulation & { readonly commit: string })[]
}

function searchLine(what: string, { runs }: Search): string {
  const sum = (of: Search['runs']): string =>
    number(of.reduce((all, { counts }) => all + (counts['schedules'] ?? 0), 0))
  const found = (of: Search['runs']): number => of.reduce((all, { failed }) => all + failed.length, 0)
  const last = runs.at(-1)!.commit
  const [now, before] = [runs.filter(({ commit }) => commit === last), runs.filter(({ commit }) => commit !== last)]
  const mended = found(before) === 0 ? '' : ', mended since'
  const earlier = before.length === 0 ? '' : ` Before that ${sum(before)}, which found ${found(before)}${mended}.`
  return `${what}, seeds that no run had seen: ${sum(now)} schedules at ${last}, **${found(now)} violations**.${earlier}`
}

/** What was killed for long (test/long-run.ts), and what its line says. */
const longRuns = [
  'client-and-provider',
  'client-and-backend',
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

/** Every file that was audited, with what is left alive in it. test/figures.test.ts compares it with the page. */
export function mutantTable(): string {
  const audited = Object.entries(readScore())
  if (audited.length === 0) return 'No file was audited yet.'
  const sum = (of: (each: (typeof audited)[number][1]) => number): number =>
    audited.reduce((total, [, each]) => total + of(each), 0)
  const row = (name: string, [killed, survived, equivalent]: readonly number[], share: number): string =>
    `| ${[name, number(killed), number(survived), number(equivalent), `${share} %`].join(' | ')} |`
  return [
    '| | killed | survived | equivalent | killed, of what is not equivalent |',
    '|---|---:|---:|---:|---:|',
    ...audited.map(([file, each]) =>
      row(`\`${file}\``, [each.killed, each.survived.length, each.equivalent], percent([each])),
    ),
    row(
      'all that were audited',
      [sum((each) => each.killed), sum((each) => each.survived.length), sum((each) => each.equivalent)],
      percent(audited.map(([, each]) => each)),
    ),
  ].join('\n')
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
  let text = readFileSync(page, 'utf8')
  text = rewrite(text, 'figures: torture', torture && tortureTable(torture))
  for (const [what, name] of Object.entries(simulated)) {
    const simulation = read<Simulation>(`simulate-${what}`)
    text = rewrite(text, `figures: simulate ${what}`, simulation && simulationLine(name, simulation))
    const searched = read<Search>(`fresh-${what}`)
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
  for (const [name, faults] of Object.entries(torture ? faultsOf(torture) : {}))
    text = rewrite(text, `faults: ${name}`, faults)
  writeFileSync(page, text)
}

if (import.meta.main) main()

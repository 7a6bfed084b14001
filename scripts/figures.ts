// npm run figures: writes what `npm run bench` measured (bench/results/latest.json) into the docs, between their markers, and draws the
// plots. No figure of the bench is typed: test/figures.test.ts compares pages and plots with the results.

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { described } from '../bench/machine.ts'
import { chartsOf, svgOf } from '../bench/plots.ts'
import { aimOf, amountOf, digits, readResults, short, verdictOf } from '../bench/report.ts'
import type { ComparisonRow, PartResults, Results, Target, VariantRow } from '../bench/report.ts'
import { scalingTables } from '../bench/scaling.ts'
import { tried } from '../bench/tried.ts'

const docs = join(import.meta.dirname, '..', 'docs')

type Blocks = Readonly<Record<string, (results: Results) => string>>

const figuresOf = (...parts: string[]): Blocks =>
  Object.fromEntries(parts.map((part) => [`bench ${part}`, (results: Results) => figuresBlock(part, results)]))

const comparisonsOf = (...parts: string[]): Blocks =>
  Object.fromEntries(
    parts.map((part) => [`comparisons ${part}`, (results: Results) => comparisonsBlock(part, results)]),
  )

/** Which blocks stand on which page, by the name in their markers. */
const pages: Readonly<Record<string, Blocks>> = {
  'stores.md': figuresOf('postgres', 'redis', 'sqlite'),
  'operating.md': figuresOf('retention'),
  'http.md': figuresOf('http'),
  'messaging.md': figuresOf('outbox', 'messages'),
  'client.md': figuresOf('client'),
  'sessions.md': figuresOf('sessions'),
  'webhooks.md': figuresOf('webhooks'),
  'gateway.md': figuresOf('gateway'),
  'performance.md': {
    targets: targetsBlock,
    example: exampleBlock,
    machine: machineBlock,
    ...figuresOf('limits', 'growth'),
    ...comparisonsOf('core', 'postgres', 'redis', 'sqlite', 'http', 'gateway', 'operations', 'inbox', 'outbox'),
    tried: triedBlock,
  },
  'scaling.md': {
    'scaling load': (results) => scalingTables(results).load,
    'scaling inputs': (results) => scalingTables(results).inputs,
    'scaling plans': (results) => scalingTables(results).plans,
    'scaling shorter': (results) => scalingTables(results).shorter,
  },
}

export const measuredPages: readonly string[] = Object.keys(pages)

/** The page with its figures as the results have them. */
export function withFigures(page: string, text: string, results: Results = readResults()): string {
  return Object.entries(pages[page]!).reduce((sofar, [name, block]) => rewritten(sofar, name, block(results)), text)
}

/** The page without what a program writes. */
export function withoutFigures(text: string): string {
  return text.replaceAll(/<!-- figures: [^>]*-->[^]*?<!-- \/figures: [^>]*-->/g, '')
}

/** The plots by their file in docs/figures. */
export function plots(results: Results = readResults()): Readonly<Record<string, string>> {
  return Object.fromEntries(Object.entries(chartsOf(results)).map(([file, chart]) => [file, svgOf(chart)]))
}

const notRecorded = (part: string): string =>
  `Not recorded yet: \`npm run bench -- ${part}\`, then \`npm run figures\`.`

function measuredBy(part: string, { day, commit, effort }: PartResults): string {
  const flag = effort === 'huge' ? ' --huge' : ''
  return `\`npm run bench -- ${part}${flag}\` on ${day}${commit === undefined ? '' : ` at ${commit}`}, on a shared machine:`
}

function figuresBlock(part: string, results: Results): string {
  const found = results[part]
  if (!found) return notRecorded(part)
  const rows = found.figures.map((each) => `| ${each.what} | ${amountOf(each)} | ${aimOf(each)} |`)
  return [measuredBy(part, found), '', '| | measured | aimed at |', '|---|---:|---:|', ...rows].join('\n')
}

/** Every target of every part, P1 first. */
function targetsBlock(results: Results): string {
  const all = Object.values(results).flatMap(({ figures }) => figures.filter((each) => /^P\d+$/.test(each.id)))
  const aimed = all.filter((each) => verdictOf(each) !== '')
  if (aimed.length === 0) return notRecorded('')
  const number = ({ id }: Target): number => Number(id.slice(1))
  const rows = aimed
    .toSorted((a, b) => number(a) - number(b))
    .map((each) => `| ${each.id} | ${each.what} | ${aimOf(each)} | ${amountOf(each)} | ${verdictOf(each)} |`)
  const missed = aimed.filter((each) => verdictOf(each) === 'MISSED').length
  const said = `${aimed.length - missed} of ${aimed.length} are reached.`
  return [said, '', '| | what | target | measured (quartiles) | |', '|---|---|---:|---:|---|', ...rows].join('\n')
}

/** One row in a sentence. */
function exampleBlock(results: Results): string {
  const all = Object.values(results).flatMap(({ figures }) => figures)
  const found = all.find(({ spread, atLeast, unit }) => spread && atLeast !== undefined && unit === undefined)
  if (!found) return notRecorded('')
  const [low, high] = found.spread!.map(digits) as [string, string]
  return `For example, *${found.what}*: at least ${found.atLeast} times as much was aimed at. In the median of all rounds it was ${digits(found.measured)} times as much, and in half of the rounds between ${low} and ${high} times. The target is ${verdictOf(found) === 'reached' ? 'reached' : 'missed'}.`
}

/** Ratios of one part are of one machine. Parts may be of several. */
function machineBlock(results: Results): string {
  const known = Object.entries(results).flatMap(([part, { machine }]) => (machine ? [{ part, machine }] : []))
  if (known.length === 0) return notRecorded('')
  const machines = Map.groupBy(known, ({ machine: { cores, processor, system } }) => `${cores} ${processor} ${system}`)
  const lines = [...machines.values()].map((of) => {
    const servers = new Set(of.flatMap(({ machine }) => machine.servers))
    const parts = machines.size === 1 ? '' : ` (${of.map(({ part }) => part).join(', ')})`
    return `${described({ ...of[0]!.machine, servers: [...servers].toSorted() })}${parts}`
  })
  return `Measured on ${lines.join(', and on ')}.`
}

const columns: readonly [head: string, cell: (variant: VariantRow) => string][] = [
  ['per second', ({ perSecond }) => (perSecond === undefined ? '' : short(perSecond))],
  ['p50, ms', ({ p50Ms }) => (p50Ms === undefined ? '' : digits(p50Ms))],
  ['p99, ms', ({ p99Ms }) => (p99Ms === undefined ? '' : digits(p99Ms))],
  ['CPU, µs', ({ clientCpuUs }) => (clientCpuUs === undefined ? '' : digits(clientCpuUs))],
  ['CPU of servers, µs', ({ serverCpuUs }) => (serverCpuUs === undefined ? '' : digits(serverCpuUs))],
  ['calls of servers', ({ serverCalls }) => (serverCalls === undefined ? '' : digits(serverCalls))],
]

/** What ran side by side, one table for all comparisons of a part. A column that nothing stands in is left out. */
function comparisonsBlock(part: string, results: Results): string {
  const found = results[part]
  if (!found?.comparisons?.length) return notRecorded(part)
  const all = found.comparisons.flatMap(({ variants }) => variants)
  const shown = columns.filter(([, cell]) => all.some((variant) => cell(variant) !== ''))
  const rows = found.comparisons.flatMap((comparison) => comparisonRows(comparison, shown))
  const heads = ['', 'variant', ...shown.map(([head]) => head)]
  const table = [heads, ['---', '---', ...shown.map(() => '---:')], ...rows].map((row) => `| ${row.join(' | ')} |`)
  return [measuredBy(part, found), '', ...table].join('\n')
}

function comparisonRows({ title, variants }: ComparisonRow, shown: typeof columns): string[][] {
  return variants.map((variant, at) => [at === 0 ? title : '', variant.name, ...shown.map(([, cell]) => cell(variant))])
}

function triedBlock(): string {
  const rows = tried.map(({ where, what, gave, verdict }) => `| ${where} | ${what} | ${gave} | ${verdict} |`)
  return ['| where | what | what it gave | what was done |', '|---|---|---|---|', ...rows].join('\n')
}

function rewritten(text: string, name: string, block: string): string {
  const [begin, end] = [`<!-- figures: ${name} -->`, `<!-- /figures: ${name} -->`]
  const [from, to] = [text.indexOf(begin), text.indexOf(end)]
  if (from < 0 || to < from) throw new Error(`expected the markers ${begin} … ${end}, found none`)
  return `${text.slice(0, from + begin.length)}\n\n${block}\n\n${text.slice(to)}`
}

function main(): void {
  const results = readResults()
  for (const page of measuredPages) {
    const path = join(docs, page)
    writeFileSync(path, withFigures(page, readFileSync(path, 'utf8'), results))
  }
  mkdirSync(join(docs, 'figures'), { recursive: true })
  for (const [file, svg] of Object.entries(plots(results))) writeFileSync(join(docs, 'figures', file), svg)
}

if (import.meta.main) main()

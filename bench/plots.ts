// The pictures of the docs: horizontal bars as SVG, written from the results. Pure text in, pure text out.

import { short } from './report.ts'
import { isAimed, isReached } from './report.ts'
import type { ComparisonRow, Results, Target, VariantRow } from './report.ts'

export interface Bar {
  readonly name: string
  readonly value: number
  /** The part of the value that is drawn darker. */
  readonly first?: number
  readonly kind: 'ours' | 'other' | 'missed'
  /** Beside the bar. */
  readonly label: string
}

export interface Chart {
  readonly title: string
  readonly note: string
  /** Groups of bars, each with a name above. */
  readonly groups: readonly { readonly name: string; readonly bars: readonly Bar[] }[]
  /** A vertical line at this value. */
  readonly line?: { readonly at: number; readonly name: string }
  /** Values of very different size. */
  readonly isLogarithmic?: true
}

const width = 900
const labelWidth = 400
const barWidth = 360
const rowHeight = 20
const colours = { ours: '#2f6f4f', other: '#8a97a6', missed: '#b4483c' } as const

export function svgOf(chart: Chart): string {
  const x = scaleOf(chart)
  const rows: string[] = []
  let y = 64
  for (const { name, bars } of chart.groups) {
    if (name !== '') rows.push(text(12, (y += rowHeight), name, 'font-weight="600"'))
    for (const bar of bars) rows.push(...barOf(bar, (y += rowHeight), x))
    y += 8
  }
  if (chart.groups.length === 0)
    rows.push(text(12, (y += rowHeight), 'Not recorded yet: npm run bench, then npm run figures.'))
  const height = y + 24
  const line = chart.line && lineAt(labelWidth + x(chart.line.at), height, chart.line.name)
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif" font-size="12" role="img" aria-label="${escaped(chart.title)}">`,
    `<rect width="${width}" height="${height}" fill="#ffffff"/>`,
    text(12, 26, chart.title, 'font-size="16" font-weight="600"'),
    text(12, 46, chart.note, 'fill="#57606a"'),
    ...(line === undefined ? [] : [line]),
    ...rows,
    '</svg>',
    '',
  ].join('\n')
}

/** From a value to points. Bars of a logarithmic chart begin a little below the least value. */
function scaleOf({ groups, line, isLogarithmic }: Chart): (value: number) => number {
  const values = [...groups.flatMap(({ bars }) => bars.map(({ value }) => value)), ...(line ? [line.at] : [])]
  const most = Math.max(...values, Number.MIN_VALUE)
  if (!isLogarithmic) return (value) => (value / most) * barWidth
  const least = Math.min(...values.filter((value) => value > 0)) / 1.5
  return (value) => Math.max(1, (Math.log(value / least) / Math.log(most / least)) * barWidth)
}

function barOf({ name, value, first, kind, label }: Bar, y: number, x: (value: number) => number): string[] {
  const bar = (length: number, opacity: number): string =>
    `<rect x="${labelWidth}" y="${y - 12}" width="${length.toFixed(1)}" height="14" fill="${colours[kind]}" opacity="${opacity}"/>`
  return [
    text(labelWidth - 8, y, name, 'text-anchor="end"'),
    bar(x(value), first === undefined ? 1 : 0.55),
    ...(first === undefined ? [] : [bar(x(first), 1)]),
    text(labelWidth + x(value) + 6, y, label),
  ]
}

function lineAt(x: number, height: number, name: string): string {
  const line = `<line x1="${x.toFixed(1)}" y1="60" x2="${x.toFixed(1)}" y2="${height - 16}" stroke="#24292f" stroke-dasharray="4 3"/>`
  return `${line}\n${text(x + 4, 62, name, 'fill="#24292f"')}`
}

function text(x: number, y: number, words: string, attributes = ''): string {
  return `<text x="${x.toFixed(1)}" y="${y}"${attributes && ` ${attributes}`}>${escaped(words)}</text>`
}

function escaped(words: string): string {
  return words.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('"', '&quot;')
}

/** What is drawn, by the name of its file in docs/figures. */
export function chartsOf(results: Results): Readonly<Record<string, Chart>> {
  const figures = Object.values(results).flatMap((part) => part.figures)
  const compared = (...parts: string[]): ComparisonRow[] =>
    parts.flatMap((part) => results[part]?.comparisons ?? []).filter(({ variants }) => variants.length > 1)
  const growth = figures.filter(({ id, unit }) => (id === 'growth' || id === 'P6') && unit === undefined)
  const beside = compared('postgres', 'redis', 'sqlite', 'operations', 'inbox', 'outbox', 'gateway')
  return {
    'targets.svg': targetsChart(figures),
    'throughput.svg': {
      title: 'Throughput, against the first of each group',
      note: 'Units of work per second in the same run, as a ratio. Longer is better. Absolute figures stand beside.',
      groups: beside.flatMap((row) => groupOf(row, perSecond, 'times the first')),
    },
    'cpu.svg': {
      title: 'Processor time per unit of work, against the first of each group',
      note: 'Dark: this process. Light: all servers. Shorter is better.',
      groups: [...beside, ...compared('http')].flatMap((row) => groupOf(row, processorTime, 'times the first')),
    },
    'growth.svg': {
      title: 'Growth: a call beside much, against the same call beside little',
      note: 'At 1 nothing has changed.',
      groups: growth.length === 0 ? [] : [{ name: '', bars: growth.map(growthBar) }],
      line: { at: 1, name: 'no change' },
    },
  }
}

/** How much better than its target, so that all of them can stand in one picture. */
function targetsChart(figures: readonly Target[]): Chart {
  const aimed = figures.filter((each) => isAimed(each) && each.measured > 0)
  const bars = aimed.map((each): Bar => {
    const value = each.atLeast === undefined ? each.atMost! / each.measured : each.measured / each.atLeast
    const kind = isReached(each) ? 'ours' : 'missed'
    return { name: shortened(`${each.id} ${each.what}`), value, kind, label: `${value.toFixed(2)} of the target` }
  })
  return {
    title: 'Targets: measured against aimed at',
    note: 'Right of the line a target is reached. Logarithmic.',
    groups: bars.length === 0 ? [] : [{ name: '', bars }],
    line: { at: 1, name: 'target' },
    isLogarithmic: true,
  }
}

type Measure = (
  variant: VariantRow,
) => { readonly value: number; readonly first?: number; readonly label: string } | undefined

const perSecond: Measure = ({ perSecond: value }) =>
  value === undefined ? undefined : { value, label: `${short(value)}/s` }

const processorTime: Measure = ({ clientCpuUs, serverCpuUs = 0 }) =>
  clientCpuUs === undefined
    ? undefined
    : { value: clientCpuUs + serverCpuUs, first: clientCpuUs, label: `${(clientCpuUs + serverCpuUs).toFixed(0)} µs` }

function groupOf({ title, variants }: ComparisonRow, measure: Measure, words: string): Chart['groups'][number][] {
  const measured = variants.flatMap((variant) => {
    const found = measure(variant)
    return found === undefined || found.value === 0 ? [] : [{ name: variant.name, ...found }]
  })
  const base = measured[0]?.value
  if (base === undefined || measured.length < 2) return []
  const bars = measured.map(({ name, value, first, label }): Bar => {
    const ratio = value / base
    return {
      name,
      value: ratio,
      ...(first !== undefined && { first: first / base }),
      kind: /onceonly|inbox|batch of|gateway/.test(name) ? 'ours' : 'other',
      label: value === base ? label : `${ratio.toFixed(2)} ${words}, ${label}`,
    }
  })
  return [{ name: title, bars }]
}

function growthBar({ what, measured, atLeast, atMost, id }: Target): Bar {
  const isMissed = (atLeast !== undefined && measured < atLeast) || (atMost !== undefined && measured > atMost)
  const name = shortened(id === 'P6' ? `P6 ${what}` : what)
  return { name, value: measured, kind: isMissed ? 'missed' : 'ours', label: measured.toFixed(2) }
}

function shortened(name: string): string {
  return name.length <= 66 ? name : `${name.slice(0, 65)}…`
}

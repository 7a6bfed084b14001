// What the pictures of the docs show, and that they are well-formed.

import { describe, expect, test } from 'vitest'
import { chartsOf, svgOf } from './plots.ts'
import type { Results } from './report.ts'

const results: Results = {
  postgres: {
    day: '2026-11-17',
    figures: [
      { id: 'P1', what: 'fresh', measured: 9, atLeast: 6 },
      { id: 'P1', what: 'p99', measured: 0.5, atMost: 0.25 },
      { id: 'P1', what: 'shown only', measured: 3 },
      { id: 'P6', what: 'many entries', measured: 1.1, atMost: 1.3 },
    ],
    comparisons: [
      {
        title: 'Fresh <c=256>',
        variants: [
          { name: 'naive', perSecond: 2_000, clientCpuUs: 100, serverCpuUs: 300 },
          { name: 'onceonly', perSecond: 12_000, clientCpuUs: 20, serverCpuUs: 20 },
        ],
      },
    ],
  },
}

test('a target is drawn by how much better it is than aimed at, and a missed one as missed', () => {
  const { groups, line } = chartsOf(results)['targets.svg']!
  expect(groups[0]!.bars).toMatchObject([
    { value: 1.5, kind: 'ours' },
    { value: 0.5, kind: 'missed' },
    { value: 1.3 / 1.1, kind: 'ours' },
  ])
  expect(line!.at).toBe(1)
})

test('variants are drawn against the first of their comparison', () => {
  const charts = chartsOf(results)
  expect(charts['throughput.svg']!.groups[0]!.bars).toMatchObject([{ value: 1 }, { value: 6, kind: 'ours' }])
  expect(charts['cpu.svg']!.groups[0]!.bars[1]).toMatchObject({ value: 0.1, first: 0.05 })
  expect(charts['growth.svg']!.groups[0]!.bars).toMatchObject([{ value: 1.1, kind: 'ours' }])
})

describe('svgOf', () => {
  const svg = svgOf(chartsOf(results)['throughput.svg']!)

  test('escapes what would be markup, and closes what it opens', () => {
    expect(svg).toContain('Fresh &lt;c=256>')
    expect(svg.match(/<text/g)!.length).toBe(svg.match(/<\/text>/g)!.length)
    expect(svg.trim().endsWith('</svg>')).toBe(true)
  })

  test('the longest bar has the whole width, and the others their part of it', () => {
    const widths = Array.from(svg.matchAll(/width="([\d.]+)" height="14"/g), ([, found]) => Number(found))
    expect(widths).toEqual([60, 360])
  })

  test('says so when there is no record', () => {
    expect(svgOf(chartsOf({})['cpu.svg']!)).toContain('Not recorded yet')
    expect(svgOf(chartsOf({})['targets.svg']!)).not.toContain('NaN')
  })
})

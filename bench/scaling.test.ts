// The arithmetic of docs/scaling.md: nothing is lost over the days, and more load needs more of everything.

import { describe, expect, test } from 'vitest'
import type { Results } from './report.ts'
import { inputsFrom, load, perSecondAt, planFor, scalingTables, simulate } from './scaling.ts'

const inputs = inputsFrom({})
const small = { ...load, peakPerSecond: 1_000 }

describe('a day', () => {
  test('has its peak and its mean', () => {
    const day = Array.from({ length: 24 }, (_, hour) => perSecondAt(hour, load))
    expect(Math.max(...day)).toBeCloseTo(load.peakPerSecond)
    expect(day.reduce((sum, each) => sum + each) / 24).toBeCloseTo(load.peakPerSecond / load.peakToMean)
  })

  test('what is remembered stops growing when as much expires as is added', () => {
    const hours = simulate(load, inputs.PostgreSQL.costs)
    const perDay = (load.peakPerSecond / load.peakToMean) * 86_400 * (1 - load.replayShare)
    const last = hours.at(-1)!
    expect(last.entries).toBeCloseTo((perDay * load.keepHours) / 24, -6)
    expect(last.tombstones).toBeCloseTo((perDay * load.tombstoneHours) / 24, -6)
  })
})

describe('a plan', () => {
  test('grows with the load in everything but the cost of a request', () => {
    const [one, ten] = [
      planFor('PostgreSQL', small, inputs),
      planFor('PostgreSQL', { ...small, peakPerSecond: 1e6 }, inputs),
    ]
    for (const name of [
      'appCores',
      'servers',
      'storageTb',
      'logMbPerSecond',
      'dollarsMonth',
      'connectionsPerServer',
    ] as const) {
      expect(ten[name], name).toBeGreaterThan(one[name])
    }
    expect(ten.dollarsPerMillion).toBeLessThan(one.dollarsPerMillion)
  })

  test('needs less when less is remembered', () => {
    const shorter = { ...load, keepHours: 1, tombstoneHours: 1 }
    for (const system of ['PostgreSQL', 'Redis Cluster', 'DynamoDB'] as const) {
      expect(planFor(system, shorter, inputs).storageTb).toBeLessThan(planFor(system, load, inputs).storageTb)
    }
  })

  test('says when it is above what a system can have', () => {
    expect(planFor('Redis Cluster', load, inputs).limitedBy).toBe('storage, above the limit')
  })
})

test('what the record has is taken from it, and the rest is marked as assumed', () => {
  const row = (title: string, serverCpuUs: number): object => ({
    title,
    variants: [
      { name: 'naive', clientCpuUs: 1, serverCpuUs: 1 },
      { name: 'onceonly', clientCpuUs: 20, serverCpuUs },
    ],
  })
  const results = {
    postgres: {
      day: '2026-11-17',
      figures: [{ id: 'growth', what: 'PostgreSQL, an entry with its indexes', measured: 661, unit: 'B' }],
      comparisons: [
        row('Postgres fresh, c=256', 30),
        row('Postgres fresh, c=1', 400),
        row('Postgres replay, c=256', 9),
      ],
    },
  } as unknown as Results
  const { costs, measured } = inputsFrom(results).PostgreSQL
  expect(costs).toMatchObject({
    clientUs: 20,
    rowUs: 30,
    callUs: 370,
    replayUs: 9,
    entryBytes: 661,
    tombstoneBytes: 661,
  })
  expect(measured).not.toContain('logBytes')
  expect(scalingTables(results).inputs).toMatch(
    /an entry with its indexes, B \| \d+ \(assumed\) \| \d+ \(assumed\) \| 661 \|/,
  )
})

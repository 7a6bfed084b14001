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

const row = (title: string, clientCpuUs: number, serverCpuUs: number): object => ({
  title,
  variants: [
    { name: 'naive', clientCpuUs: 1, serverCpuUs: 1 },
    { name: 'onceonly', clientCpuUs, serverCpuUs },
  ],
})

test('a request costs application and server the same kind of call: shared by many in large batches, lone in a Cluster', () => {
  const recorded = {
    day: '2026-11-17',
    figures: [],
    comparisons: [row('x fresh, c=256', 30, 10), row('x fresh, c=1', 330, 160), row('x replay, c=256', 9, 2)],
  }
  const measured = inputsFrom({ postgres: recorded, redis: recorded } as unknown as Results)
  for (const system of ['PostgreSQL', 'Redis Cluster'] as const) {
    expect(measured[system].costs).toMatchObject({ clientUs: 30, clientCallUs: 300, rowUs: 10, callUs: 150 })
    expect(measured[system].measured).toEqual(expect.arrayContaining(['clientCallUs', 'callUs']))
  }
  const brief = { ...load, peakPerSecond: 60_000, keepHours: 1, tombstoneHours: 1, replayShare: 0 }
  const cluster = planFor('Redis Cluster', brief, measured)
  expect(cluster.batch).toBe(1)
  // 60,000 calls of 330 µs each, at 60 %.
  expect(cluster.appCores).toBe(33)
  const { machine } = measured['Redis Cluster']
  const roomy = {
    ...measured,
    'Redis Cluster': { ...measured['Redis Cluster'], machine: { ...machine, storageGbPerServer: 1e9 } },
  }
  // 60,000 calls of 160 µs each, at 60 %, and a copy of each primary.
  expect(planFor('Redis Cluster', brief, roomy)).toMatchObject({ servers: 32, limitedBy: 'processor' })
  // One process and one server: their calls are shared, and cost both of them little.
  const small = planFor('PostgreSQL', { ...brief, peakPerSecond: 10_000 }, measured)
  expect(small).toMatchObject({ appCores: 1, batch: 10 })
})

test('what the record has is taken from it, and the rest is marked as assumed', () => {
  const results = {
    postgres: {
      day: '2026-11-17',
      figures: [{ id: 'growth', what: 'PostgreSQL, an entry with its indexes', measured: 661, unit: 'B' }],
      comparisons: [
        row('Postgres fresh, c=256', 20, 30),
        row('Postgres fresh, c=1', 300, 400),
        row('Postgres replay, c=256', 20, 9),
      ],
    },
  } as unknown as Results
  const { costs, measured } = inputsFrom(results).PostgreSQL
  expect(costs).toMatchObject({
    clientUs: 20,
    clientCallUs: 280,
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

// The examples of operations tell their stories, on a real PostgreSQL, and every one of them ends well.

import { afterAll, beforeAll, expect, test } from 'vitest'
import { needs } from '../servers/needs.ts'
import { startPostgres } from '../servers/postgres.ts'
import type { RunningPostgres } from '../servers/postgres.ts'
import { runExample } from './examples.ts'

needs('postgres').describe('examples on PostgreSQL', () => {
  let server: RunningPostgres
  beforeAll(async () => void (server = await startPostgres()))
  afterAll(() => server.stop())

  test('payments: one charge, one order, one receipt, whatever is lost or killed', async () => {
    const told = await runExample('payments', 'story.ts', { DATABASE_URL: await server.createDatabase() })
    expect(told).toHaveLength(12)
    expect(told.filter((line) => !line.endsWith('; charges 1, orders 1, receipts 1'))).toEqual([])
    expect(told[0]).toContain('nothing happens: the client was told at once')
    expect(told.at(-1)).toContain('the worker finished it')
    // What was lost was lost.
    for (const line of told.slice(1, -1)) expect(line).toMatch(/after asking \d+ times/)
  })

  test('checkout-saga: shipped and paid for, or refunded and back in stock, killed wherever', async () => {
    const told = await runExample('checkout-saga', 'story.ts', { DATABASE_URL: await server.createDatabase() })
    const ends = told.map((line) => /^(earth|moon|cancelled), at "([^"]+)": (.*)$/.exec(line)!.slice(1))
    expect(ends).toHaveLength(14)
    const [shipped, failed] = ['shipped', 'failed: nobody goes there']
    for (const [to, at, end] of ends) {
      if (to === 'cancelled') {
        // Nobody knows whether the charge of a killed process took effect: it is refunded just when it did.
        const effects = at === 'charge, before' ? 'nothing' : 'charge, refund'
        expect(end).toMatch(/^killed, then failed: (.*) was cancelled: .*, then failed: \1 was cancelled: /)
        expect(end).toContain(`; ${effects}; 0 taken from stock`)
      } else if (to === 'earth')
        expect(end).toBe(`killed, then ${shipped}, then ${shipped}; charge, ship; 1 taken from stock`)
      else expect(end).toBe(`killed, then ${failed}, then ${failed}; charge, refund; 0 taken from stock`)
    }
  })
})

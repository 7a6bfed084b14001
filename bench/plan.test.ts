// The words of the command line become the parts and targets that run.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { planOf } from './plan.ts'
import type { Part, Parts } from './plan.ts'

const part = (...targets: string[]): Part => ({ targets, run: async () => {} })
const parts: Parts = { sqlite: part('P5'), postgres: part('P1', 'P2', 'P3'), redis: part('P4'), webhooks: part() }

describe('which parts run', () => {
  test('all of them in a full run', () => {
    expect(planOf([], parts)).toEqual({ effort: 'full', parts: Object.keys(parts), targets: undefined })
  })

  test('in a quick run those that have targets', () => {
    expect(planOf(['--quick'], parts)).toMatchObject({ effort: 'quick', parts: ['sqlite', 'postgres', 'redis'] })
  })

  test('the parts of the targets that are named, in the order of the table', () => {
    const plan = planOf(['--only', 'P4,P1'], parts)
    expect(plan.parts).toEqual(['postgres', 'redis'])
    expect(plan.targets).toEqual(new Set(['P1', 'P4']))
  })

  test('a part that is named runs with all its targets, with or without the flag', () => {
    for (const words of [['--only=postgres'], ['postgres'], ['--only', 'postgres']]) {
      const plan = planOf(words, parts)
      expect(plan.parts).toEqual(['postgres'])
      expect(plan.targets).toEqual(new Set(['P1', 'P2', 'P3']))
    }
  })

  test('a part whose target has its own name is wanted when it is named', () => {
    expect(planOf(['limits'], { limits: part('limits') }).targets).toEqual(new Set(['limits']))
  })

  test('a part without targets runs in a quick run when it is named', () => {
    expect(planOf(['--quick', 'webhooks'], parts).parts).toEqual(['webhooks'])
  })
})

test('a word that is neither a part nor a target is refused, and the message says which there are', () => {
  expect(() => planOf(['--only', 'P1,P44'], parts)).toThrow(/unknown P44: expected .*P1, P2, P3/)
  expect(() => planOf(['--fast'], parts)).toThrow('unknown --fast')
  expect(() => planOf(['--quick', '--huge'], parts)).toThrow('got both')
})

test('every target from P1 to P14 has its part', () => {
  const table = readFileSync(join(import.meta.dirname, 'run.ts'), 'utf8')
  const measured = new Set(Array.from(table.matchAll(/'(P\d+)'/g), ([, id]) => id))
  expect(measured).toEqual(new Set(Array.from({ length: 14 }, (_, index) => `P${index + 1}`)))
})

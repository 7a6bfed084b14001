// Whatever others may have written is read or refused with a typed error, in time that grows with its length only.
// ONCEONLY_FUZZ=long goes through 100 MB. ONCEONLY_SEED=N brings a finding back.

import { spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { freshSeed } from '../fresh-seed.ts'
import { fuzz } from './fuzz.ts'
import type { Fuzzed } from './fuzz.ts'
import { parsers } from './parsers.ts'

const isLong = process.env['ONCEONLY_FUZZ'] === 'long'
const bytesForEach = isLong ? Math.ceil(100_000_000 / parsers.length) : 250_000
// The fixed one is the same for everybody, so that it fails for all or for none. CI and long runs look further.
const fresh = freshSeed('the fuzzers', isLong ? { ONCEONLY_REQUIRE: 'all', ...process.env } : process.env)
const seeds = [1, ...(fresh === undefined ? [] : [fresh])]
const fuzzed: Fuzzed[] = []

afterAll(() => {
  const sum = (name: keyof Fuzzed): string => fuzzed.reduce((total, each) => total + each[name], 0).toLocaleString('en')
  process.stdout.write(
    `fuzz: seeds ${seeds.join(' and ')}, ${sum('inputs')} inputs, ${sum('bytes')} bytes, ${sum('refused')} refused\n`,
  )
})

describe.each(seeds)('typed errors only (seed %i)', (seed) => {
  test.each(parsers)(
    '$name',
    (parser) => {
      const counts = fuzz(parser, seed, bytesForEach)
      fuzzed.push(counts)
      // A generator that only makes what is refused, or only what is right, would show little.
      if (parser.throws) {
        expect(counts.refused).toBeGreaterThan(0)
        expect(counts.refused).toBeLessThan(counts.inputs)
      }
    },
    600_000,
  )
})

test('linear time: two megabytes of the heaviest shapes of every parser are gone through', () => {
  const { status, stdout } = spawnSync(process.execPath, [join(import.meta.dirname, 'heavy.ts')], {
    encoding: 'utf8',
    env: { ...process.env, NODE_NO_WARNINGS: '1' },
    timeout: 170_000,
    killSignal: 'SIGKILL',
  })
  expect(status, `it hung, or broke down, at ${stdout.trim().split('\n').at(-1)}`).toBe(0)
  expect(stdout.trim().split('\n')).toHaveLength(parsers.reduce((sum, { heavy = [] }) => sum + heavy.length, 0))
})

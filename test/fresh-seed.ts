// Seeds that no run has seen before. CI chooses one for each search at its start and prints it. ONCEONLY_SEED=N brings it back.

import { randomInt } from 'node:crypto'

/** CI (.ci/run sets this) takes its time. A run on a desk has the fixed seeds only, unless it is given one. */
export const isThorough: boolean = process.env['ONCEONLY_REQUIRE'] === 'all'

// Far from the fixed seeds, which begin at 1, and with room for the seeds that follow.
const [least, most] = [1_000_000_000, 2_000_000_000]

/** Undefined where only the fixed seeds run. */
export function freshSeed(what: string, env: NodeJS.ProcessEnv = process.env): number | undefined {
  const given = env['ONCEONLY_SEED']
  if (given === undefined && env['ONCEONLY_REQUIRE'] !== 'all') return undefined
  const seed = given === undefined ? randomInt(least, most) : Number(given)
  if (!Number.isSafeInteger(seed) || seed < 0)
    throw new Error(`expected ONCEONLY_SEED to be a whole number, got "${given}"`)
  process.stdout.write(`fresh seed of ${what}: ${seed} (again: ONCEONLY_SEED=${seed})\n`)
  return seed
}

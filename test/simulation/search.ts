// A run of the simulation as a test: the program itself, on all cores, which prints the seed and the story of what it finds.

import { spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { expect } from 'vitest'

export interface SimulationRun {
  readonly what: string
  readonly seed: number
  readonly schedules: number
}

export function expectNoViolation({ what, seed, schedules }: SimulationRun): void {
  const program = join(import.meta.dirname, 'run.ts')
  const args = ['--what', what, '--seed', `${seed}`, '--schedules', `${schedules}`]
  const { status, stdout, stderr } = spawnSync(process.execPath, [program, ...args], { encoding: 'utf8' })
  expect(status, `npm run simulate -- ${args.join(' ')}\n${stdout}\n${stderr}`).toBe(0)
  expect(stdout).toContain('0 violations')
}

// A failure as a person wants to read it: how to have it again, what is wrong, and the shortest story that shows it.

import { execFileSync } from 'node:child_process'
import { tellStory } from '../../src/testing/history-checker-story.ts'
import { planFor } from './plan.ts'
import { judgePlan } from './schedule.ts'
import { shrink } from './shrink.ts'
import type { Wrong } from './workload.ts'

export async function describeFailure(seed: number, wrong?: Wrong): Promise<string> {
  const plan = planFor(seed)
  const found = await judgePlan(plan, wrong)
  const first = found.violations[0]
  if (!first) return `seed ${seed}: the violation did not come again, so the simulation is not deterministic`
  const smallest = await shrink(plan, first.assertion, wrong)
  const { run, violations } = await judgePlan(smallest, wrong)
  const { calls, worldFaults, messageFaults, ...ground } = smallest
  const told = violations.map(({ assertion, key, message }) => `  ${assertion}: ${key ? nameOf(key) : ''}${message}`)
  return [
    `seed ${seed}, commit ${commit()}: npm run simulate -- --seed ${seed} --schedules 1`,
    `violated (${found.violations.length} in the whole schedule; in the story below:)`,
    ...new Set(told),
    `plan, made smaller: ${JSON.stringify(ground)}`,
    ...calls.map((call) => `  call  ${JSON.stringify(call)}`),
    ...[...messageFaults, ...worldFaults].map((fault) => `  fault ${JSON.stringify(fault)}`),
    tellStory(run.history),
  ].join('\n')
}

function nameOf(key: string): string {
  return `${key.replace('\n', '/')}: `
}

function commit(): string {
  const git = (...args: string[]): string =>
    execFileSync('git', args, {
      cwd: import.meta.dirname,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    }).trim()
  try {
    const changed = git('status', '--porcelain', '--', '../../src') !== ''
    return git('rev-parse', '--short', 'HEAD') + (changed ? ' and changes' : '')
  } catch {
    return 'unknown (no git here)'
  }
}

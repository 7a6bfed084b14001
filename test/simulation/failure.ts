// A failure as a person wants to read it: how to repeat it, what is wrong, and the shortest story that shows it.

import { execFileSync } from 'node:child_process'
import { shrink } from './shrink.ts'
import type { Simulation } from './simulations.ts'

export async function describeFailure<Plan extends object>(
  simulation: Simulation<Plan>,
  seed: number,
): Promise<string> {
  const { what, planFor, judgePlan } = simulation
  const plan = planFor(seed)
  const found = await judgePlan(plan)
  const first = found.violations[0]
  if (!first) return `seed ${seed}: the violation did not come again, so the simulation is not deterministic`
  const smallest = await shrink(simulation, plan, first.assertion)
  const { violations, story } = await judgePlan(smallest)
  const told = violations.map(({ assertion, key, message }) => `  ${assertion}: ${key ? nameOf(key) : ''}${message}`)
  return [
    `seed ${seed}, commit ${commit()}: npm run simulate -- --what ${what} --seed ${seed} --schedules 1`,
    `violated (${found.violations.length} in the whole schedule; in the story below:)`,
    ...new Set(told),
    'plan, made smaller:',
    ...tellPlan(smallest),
    story(),
  ].join('\n')
}

/** One line for what is one thing, and one for each of what there are many. */
function tellPlan(plan: object): string[] {
  const entries = Object.entries(plan) as [string, unknown][]
  const ground = Object.fromEntries(entries.filter(([, value]) => !Array.isArray(value)))
  const lists = entries.flatMap(([name, value]) =>
    Array.isArray(value) ? value.map((each) => `  ${name}: ${JSON.stringify(each)}`) : [],
  )
  return [`  ${JSON.stringify(ground)}`, ...lists]
}

function nameOf(key: string): string {
  return `${key.replace('\n', '/')}: `
}

/** The commit of the source, and whether it was changed since. */
export function commit(): string {
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

// Makes a plan that fails smaller while it still fails by the same assertion: what is left is what matters.

import type { Simulation, SimulationAssertion } from './simulations.ts'

/** A story of a dozen lines is reached long before. A plan has some forty things that could be left out. */
const runsMax = 500

export async function shrink<Plan>(
  { judgePlan, smallerPlans }: Pick<Simulation<Plan>, 'judgePlan' | 'smallerPlans'>,
  plan: Plan,
  assertion: SimulationAssertion,
): Promise<Plan> {
  let smallest = plan
  let runs = 0
  for (let again = true; again && runs < runsMax;) {
    again = false
    for (const smaller of smallerPlans(smallest)) {
      if (runs++ >= runsMax) break
      const { violations } = await judgePlan(smaller)
      if (!violations.some((violation) => violation.assertion === assertion)) continue
      smallest = smaller
      again = true
      break
    }
  }
  return smallest
}

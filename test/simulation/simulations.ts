// What can be simulated, each from its seed to its judgement: the key protocol on rows, the same on Redis, and operations.

import type { Violation } from '../../src/testing/history-checker.ts'
import { operationQuotas } from './operation-counts.ts'
import { operationPlanFor, smallerOperationPlans } from './operation-plan.ts'
import type { OperationPlan } from './operation-plan.ts'
import { judgeOperationPlan } from './operation-schedule.ts'
import { planFor, redisPlanFor, smallerPlans } from './plan.ts'
import type { Plan } from './plan.ts'
import { quotas, redisQuotas } from './quotas.ts'
import { judgePlan } from './schedule.ts'

export interface Simulation<Planned> {
  readonly what: string
  /** The least that a thousand schedules must have met. */
  readonly quotas: Readonly<Record<string, number>>
  planFor(seed: number): Planned
  judgePlan(plan: Planned): Promise<Judgement>
  /** The plan with one thing left out, each in its turn. */
  smallerPlans(plan: Planned): Iterable<Planned>
}

export interface Judgement {
  readonly counts: Readonly<Record<string, number>>
  readonly traceHash: number
  readonly violations: readonly Violation[]
  story(): string
}

export const keySimulation: Simulation<Plan> = { what: 'keys', quotas, planFor, judgePlan, smallerPlans }

export const redisSimulation: Simulation<Plan> = {
  what: 'redis',
  quotas: redisQuotas,
  planFor: redisPlanFor,
  judgePlan,
  smallerPlans,
}

export const operationSimulation: Simulation<OperationPlan> = {
  what: 'operations',
  quotas: operationQuotas,
  planFor: operationPlanFor,
  judgePlan: judgeOperationPlan,
  smallerPlans: smallerOperationPlans,
}

export const simulations: Readonly<Record<string, Simulation<never>>> = {
  keys: keySimulation as Simulation<never>,
  redis: redisSimulation as Simulation<never>,
  operations: operationSimulation as Simulation<never>,
}

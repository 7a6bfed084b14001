// What can be simulated, each from its seed to its judgement: the key protocol on rows, the same on Redis, operations, messages and sessions.

import type { Assertion } from '../../src/testing/history-checker.ts'
import { mixed } from '../../src/testing/seeded-random.ts'
import { chainQuotas, inboxQuotas, relayQuotas, waysQuotas } from '../messages/simulation/counts.ts'
import { judgeChainSchedule } from '../messages/simulation/chain-schedule.ts'
import { judgeInboxSchedule } from '../messages/simulation/inbox-schedule.ts'
import { judgeRelaySchedule } from '../messages/simulation/relay-schedule.ts'
import { judgeWaysSchedule } from '../messages/simulation/ways-schedule.ts'
import type { MessageAssertion } from '../messages/simulation/world.ts'
import { judgeSessions } from '../sessions/simulation.ts'
import { sessionQuotas } from '../sessions/simulation/counts.ts'
import type { SessionAssertion } from '../sessions/simulation/world.ts'
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

/** What a schedule can be accused of. */
export type SimulationAssertion = Assertion | MessageAssertion | SessionAssertion

export interface Judgement {
  readonly counts: Readonly<Record<string, number>>
  readonly traceHash: number
  readonly violations: readonly {
    readonly assertion: SimulationAssertion
    readonly key?: string
    readonly message: string
  }[]
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

/** A schedule of messages or sessions is drawn while it runs, so there is no plan to make smaller. */
interface DrawnPlan {
  readonly seed: number
}

function drawnSimulation(
  what: string,
  quotas: Readonly<Record<string, number>>,
  judge: (seed: number) => Promise<Omit<Judgement, 'traceHash'>>,
): Simulation<DrawnPlan> {
  return {
    what,
    quotas,
    planFor: (seed) => ({ seed }),
    async judgePlan({ seed }) {
      const judged = await judge(seed)
      const traceHash = [...judged.story()].reduce((hash, letter) => mixed(hash, letter.codePointAt(0)!), 0)
      return { ...judged, traceHash }
    },
    smallerPlans: () => [],
  }
}

export const inboxSimulation: Simulation<DrawnPlan> = drawnSimulation('inbox', inboxQuotas, judgeInboxSchedule)
export const waysSimulation: Simulation<DrawnPlan> = drawnSimulation('ways', waysQuotas, judgeWaysSchedule)
export const relaySimulation: Simulation<DrawnPlan> = drawnSimulation('relay', relayQuotas, judgeRelaySchedule)
export const chainSimulation: Simulation<DrawnPlan> = drawnSimulation('chain', chainQuotas, judgeChainSchedule)
export const sessionSimulation: Simulation<DrawnPlan> = drawnSimulation('sessions', sessionQuotas, judgeSessions)

export const simulations: Readonly<Record<string, Simulation<never>>> = {
  keys: keySimulation as Simulation<never>,
  redis: redisSimulation as Simulation<never>,
  operations: operationSimulation as Simulation<never>,
  inbox: inboxSimulation as Simulation<never>,
  ways: waysSimulation as Simulation<never>,
  relay: relaySimulation as Simulation<never>,
  chain: chainSimulation as Simulation<never>,
  sessions: sessionSimulation as Simulation<never>,
}

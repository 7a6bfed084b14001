// The store contract: what every store promises, one test for each promise, run against the real thing. A promise that a
// store cannot keep is excepted by name and with its reason, or it fails: nothing is skipped in silence.

import { invalidArgument } from '../core/errors.ts'
import { aFunction, aString, checkOptions, optional, positiveInteger } from '../core/options.ts'
import type { Rule } from '../core/options.ts'
import { allOrdersCases } from './store-contract/all-orders.ts'
import { answerCases } from './store-contract/answers.ts'
import { beginCases } from './store-contract/begin.ts'
import { guarantees } from './store-contract/case.ts'
import type { ContractCase, Guarantee } from './store-contract/case.ts'
import { claimCases } from './store-contract/claims.ts'
import { collectingCases } from './store-contract/collecting.ts'
import { expiryCases } from './store-contract/expiry.ts'
import { faultCases } from './store-contract/faults.ts'
import { inspectionCases } from './store-contract/inspection.ts'
import { keyCases } from './store-contract/keys.ts'
import { operationCases } from './store-contract/operations.ts'
import { stepCases } from './store-contract/steps.ts'
import type { ContractSubject } from './store-contract/subject.ts'
import { sweepCases } from './store-contract/sweep.ts'
import { transactionCases } from './store-contract/transactions.ts'
import { writeCases } from './store-contract/writes.ts'

// The words in which the cases are written, for tests of single stores.
export * from './store-contract/case.ts'
export { checkAllOrders } from './store-contract/all-orders.ts'
export type { ContractSubject } from './store-contract/subject.ts'

export interface StoreContractOptions {
  /** Stands before the name of every test: 'postgres'. */
  readonly name?: string
  /** A store on empty data, new for every case, with what the contract needs around it. */
  create(): Promise<ContractSubject>
  /** What this store cannot promise, and why. Its cases are shown as skipped, with the reason. */
  readonly cannot?: Cannot
  /** The runner's `test`. Without it, a global `test` or `it` is taken (jest, mocha), else that of node:test. */
  readonly test?: ContractTest
  /** Replays a random case that failed: the seed stands in its message. */
  readonly seed?: number
}

export type Cannot = { readonly [Name in Guarantee]?: string }

/** The part of a test runner's `test` that is used. Those of vitest, jest, mocha (`it`) and node:test fit. */
export interface ContractTest {
  (name: string, run: () => Promise<void>, timeoutMs?: number): unknown
  skip(name: string, run: () => Promise<void>): unknown
}

export const storeContractCases: readonly ContractCase[] = [
  ...claimCases,
  ...allOrdersCases,
  ...writeCases,
  ...answerCases,
  ...keyCases,
  ...expiryCases,
  ...sweepCases,
  ...inspectionCases,
  ...transactionCases,
  ...beginCases,
  ...collectingCases,
  ...faultCases,
  ...operationCases,
  ...stepCases,
]

const ofOperations: ReadonlySet<ContractCase> = new Set([...operationCases, ...stepCases])

// For the slowest case (a crash of the server) on the slowest machine. The usual case takes milliseconds.
const caseMsMax = 120_000

/**
 * Registers a test for every case of the store contract. A case that the store cannot pass is skipped, with the reason you give.
 *
 * @example
 * import { memoryData, memoryStore } from 'onceonly/memory'
 * import { manualClock, storeContract } from 'onceonly/testing'
 *
 * storeContract({
 *   name: 'mine',
 *   async create() {
 *     const clock = manualClock()
 *     const data = memoryData(clock)
 *     return {
 *       store: memoryStore({ data }),
 *       another: async () => memoryStore({ data }),
 *       advance: (ms) => clock.advance(ms),
 *       corrupt: async () => {},
 *       destroy: async () => {},
 *     }
 *   },
 *   cannot: { transactions: 'memory has none', collecting: 'memory has none', unreadable: 'nothing writes behind its back' },
 * })
 */
export function storeContract(options: StoreContractOptions): void {
  checkOptions('storeContract', options, {
    name: optional(aString),
    create: aFunction,
    cannot: optional(anObject),
    test: optional(aFunction),
    seed: optional(positiveInteger),
  })
  const cannot = options.cannot ?? {}
  checkCannot(cannot)
  const test = options.test ?? runnersTest()
  for (const each of storeContractCases) {
    const title = options.name === undefined ? each.name : `${options.name}: ${each.name}`
    const reason = reasonNotTo(each, cannot)
    const run = (): Promise<void> => runContractCase(each, options.create, options.seed)
    if (reason === undefined) test(title, run, caseMsMax)
    else test.skip(`${title} (cannot: ${reason})`, run)
  }
}

/**
 * Runs one case of the contract on a new subject. Rejects when the store does not keep the guarantee.
 *
 * @example
 * import { brokenStores, runContractCase, storeContractCases } from 'onceonly/testing'
 *
 * const [broken] = brokenStores
 * const found = storeContractCases.find(({ name }) => name === broken?.caughtBy)
 * if (broken && found) await runContractCase(found, broken.create).catch((error: Error) => console.log(error.message))
 */
export async function runContractCase(
  each: ContractCase,
  create: () => Promise<ContractSubject>,
  seed?: number,
): Promise<void> {
  const subject = await create()
  try {
    await each.run(subject, seed)
  } catch (error) {
    // What the case found is worth more than a failing tear-down after it.
    await subject.destroy().catch(() => undefined)
    throw error
  }
  await subject.destroy()
}

/** Why a store that makes these exceptions does not take this case. Undefined when it does. */
export function reasonNotTo(each: ContractCase, cannot: Cannot): string | undefined {
  // What needs something that the store does not have cannot be asked of it, and need not be excepted twice.
  const needed = [...(needs[each.guarantee] ?? []), ...(ofOperations.has(each) ? (['operations'] as const) : [])]
  return [each.guarantee, ...needed].map((guarantee) => cannot[guarantee]).find((reason) => reason !== undefined)
}

const needs: { readonly [Name in Guarantee]?: readonly Guarantee[] } = {
  'counted-sweep': ['sweep'],
  'no-waiting': ['transactions'],
  'abandoned-effects': ['transactions'],
  'commit-faults': ['transactions'],
  'transactional-steps': ['transactions'],
}

function checkCannot(cannot: Cannot): void {
  const reason: Rule = (value) => (aString(value) === undefined ? undefined : 'the reason, in words')
  const rules = Object.fromEntries(Object.keys(guarantees).map((name) => [name, optional(reason)]))
  checkOptions('storeContract, cannot', cannot, rules)
}

const anObject: Rule = (value) => (typeof value === 'object' && value !== null ? undefined : 'an object of reasons')

function runnersTest(): ContractTest {
  const { test, it } = globalThis as { test?: ContractTest; it?: ContractTest }
  const found = test ?? it
  if (found) return found
  if ('__vitest_worker__' in globalThis) {
    // The tests of node:test would run beside this runner, which would report success whatever they find.
    throw invalidArgument('storeContract: vitest has no global `test` here; pass its own: storeContract({ test, … })')
  }
  return process.getBuiltinModule('node:test').test as ContractTest
}

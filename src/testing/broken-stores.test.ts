// The contract passes a store that keeps every guarantee, and fails each broken one by the case that is meant for it.

import { AssertionError } from 'node:assert'
import { describe, expect, test } from 'vitest'
import { brokenStores } from './broken-stores.ts'
import { guarantees } from './store-contract.ts'
import { memorySubject } from '../../test/subjects/memory.ts'
import { pretendSubject } from './broken-stores/pretend-database.ts'
import { reasonNotTo, runContractCase, storeContract, storeContractCases } from './store-contract.ts'
import type { ContractTest } from './store-contract.ts'

storeContract({ name: 'unbroken', create: () => pretendSubject(), test })

describe('the contract finds a store that', () => {
  for (const { name, caughtBy, create } of brokenStores) {
    test(name, async () => {
      const found = storeContractCases.find((each) => each.name === caughtBy)
      expect(found, `there is no case "${caughtBy}"`).toBeDefined()
      // An error of the store, or of the harness, is no finding: the case itself must have seen what is wrong.
      await expect(runContractCase(found!, create)).rejects.toBeInstanceOf(AssertionError)
    })
  }
})

test('names of cases and of broken stores are unique', () => {
  for (const named of [storeContractCases, brokenStores]) {
    expect(new Set(named.map(({ name }) => name)).size).toBe(named.length)
  }
})

test('every guarantee has cases, and a store that breaks it', () => {
  const caught = new Set(brokenStores.map(({ caughtBy }) => caughtBy))
  for (const guarantee of Object.keys(guarantees)) {
    const cases = storeContractCases.filter((each) => each.guarantee === guarantee)
    expect(cases.length, guarantee).toBeGreaterThan(0)
    expect(
      cases.some(({ name }) => caught.has(name)),
      guarantee,
    ).toBe(true)
  }
})

describe('storeContract', () => {
  const create = (): ReturnType<typeof memorySubject> => memorySubject()
  const recording = (): { test: ContractTest; run: string[]; skipped: string[] } => {
    const run: string[] = []
    const skipped: string[] = []
    const skip = (name: string): void => void skipped.push(name)
    return { test: Object.assign((name: string) => void run.push(name), { skip }), run, skipped }
  }

  test('registers every case, with the name of the store in front', () => {
    const runner = recording()
    storeContract({ name: 'mine', create, test: runner.test })
    expect(runner.run).toEqual(storeContractCases.map(({ name }) => `mine: ${name}`))
    expect(runner.skipped).toEqual([])
  })

  test('shows what a store cannot do as skipped, with the reason in the name', () => {
    const runner = recording()
    storeContract({ create, cannot: { transactions: 'it has none' }, test: runner.test })
    const excepted = storeContractCases.filter((each) => reasonNotTo(each, { transactions: 'it has none' }))
    expect(excepted.length).toBeGreaterThan(10)
    expect(runner.skipped).toEqual(excepted.map(({ name }) => `${name} (cannot: it has none)`))
    expect(runner.run.length + runner.skipped.length).toBe(storeContractCases.length)
  })

  test('fails, and does not skip, what a subject lacks and nobody excepted', async () => {
    for (const guarantee of ['transactions', 'crash-recovery', 'connection-faults'] as const) {
      const each = storeContractCases.find((one) => one.guarantee === guarantee)!
      await expect(runContractCase(each, create)).rejects.toThrow(`cannot: { '${guarantee}': 'why' }`)
    }
    const swept = storeContractCases.find((one) => one.guarantee === 'sweep')!
    const { sweep: _sweep, ...bare } = (await create()).store
    await expect(runContractCase(swept, async () => ({ ...(await create()), store: bare }))).rejects.toThrow(
      "the store has no sweep. If it cannot have them, say so: cannot: { 'sweep': 'why' }",
    )
  })

  test('refuses an exception that it does not know, or one without a reason', () => {
    expect(() => storeContract({ create, cannot: { transaction: 'no' } as object, test })).toThrow(
      'unknown option "transaction", did you mean "transactions"?',
    )
    expect(() => storeContract({ create, cannot: { sweep: '' }, test })).toThrow(
      'expected sweep to be the reason, in words',
    )
  })

  test('refuses to guess a runner inside one that has no globals', () => {
    expect(() => storeContract({ create })).toThrow('pass its own: storeContract({ test, … })')
  })

  test('ends its subject also when a case fails, and reports what the case found', async () => {
    let destroyed = 0
    const failing = async (): ReturnType<typeof memorySubject> => ({
      ...(await create()),
      async destroy() {
        destroyed++
        throw new Error('the tear-down fails, too')
      },
    })
    const each = storeContractCases.find((one) => one.guarantee === 'transactions')!
    await expect(runContractCase(each, failing)).rejects.toThrow('the subject lends no transactions')
    expect(destroyed).toBe(1)
  })
})

// Some cases of the store contract on another form of a store: behind a pooler, at another isolation level. Each test has its whole
// name, as the matrix of store and guarantee reads it. `test.each` would cut it after 40 characters.

import { test as vitestTest } from 'vitest'
import { runContractCase } from '../../src/testing/store-contract.ts'
import type { ContractCase, ContractSubject, ContractTest } from '../../src/testing/index.ts'

export interface ContractPart {
  /** The form of the store, which stands before the name of each case: 'serializable'. */
  readonly name: string
  readonly cases: readonly ContractCase[]
  create(): Promise<ContractSubject>
  readonly test?: ContractTest
}

export function contractPart({ name, cases, create, test = vitestTest }: ContractPart): void {
  for (const each of cases) test(`${name}: ${each.name}`, () => runContractCase(each, create))
}

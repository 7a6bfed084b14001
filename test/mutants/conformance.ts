// The conformance cases on one adapter, in memory, for the mutation tester only. `npm test` runs them on every adapter and store.

import { test } from 'vitest'
import { apps } from '../conformance/apps/index.ts'
import type { AppName } from '../conformance/apps/index.ts'
import { readCases } from '../conformance/cases.ts'
import { runCase } from '../conformance/runner.ts'
import { memory } from '../conformance/stores.ts'

const cases = (['cases.json', 'more-cases.json', 'hostile-cases.json'] as const).flatMap(readCases)
/** They need transactions, or data that outlives the process. */
const notInMemory = new Set(['CT-02', 'CT-m2', 'CT-03'])

export function conformanceOf(adapter: AppName): void {
  const subject = { adapter, start: apps[adapter], storeKind: memory }
  test.each(cases.filter(({ id }) => !notInMemory.has(id)))('$id $title', (each) => runCase(subject, each))
}

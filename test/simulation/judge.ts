// All that can be wrong with a run, in one list.

import { checkHistory } from '../../src/testing/history-checker.ts'
import type { Violation } from '../../src/testing/history-checker-violation.ts'
import type { Run } from './workload.ts'

/** One history of so many is also judged by what its clients know alone, which takes a search. */
const seenByClientsEvery = 32

export function judge(run: Run, rejections: readonly unknown[] = []): Violation[] {
  const { plan, history } = run
  // A process's own clock may run a thousandth slower or faster.
  const options = { weather: plan.weather, storeTimeoutMs: plan.storeTimeoutMs * 0.99 }
  const violations = checkHistory(history, { ...options, seenBy: 'store' })
  // Clients do not know when a server noticed that a transaction's connection was gone.
  const inTransactions = plan.calls.some(({ how }) => how === 'transaction')
  if (plan.seed % seenByClientsEvery === 0 && !inTransactions) {
    violations.push(...checkHistory(history, { ...options, seenBy: 'clients' }))
  }
  if (!run.rested) violations.push({ assertion: 'everybody-answered', message: 'something goes on for ever' })
  for (const name of run.unclosed) {
    violations.push({ assertion: 'everybody-answered', message: `the close of ${name} never came back` })
  }
  for (const reason of rejections) violations.push({ assertion: 'no-unhandled-rejection', message: String(reason) })
  if (run.leftovers > 0) {
    const message = `${run.leftovers} entries were left when all retention was over and a sweep had been there`
    violations.push({ assertion: 'storage-bounded', message })
  }
  return violations
}

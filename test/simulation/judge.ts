// All that can be wrong with a run, in one list.

import { checkEnds, checkHistory } from '../../src/testing/history-checker.ts'
import type { Violation } from '../../src/testing/history-checker.ts'
import type { Run } from './workload.ts'

/** One history of so many is also judged by what its clients know alone, which takes a search. */
const seenByClientsEvery = 32

export function judge(run: Run, rejections: readonly unknown[] = []): Violation[] {
  const { plan } = run
  const violations = plan.worldFaults.some(({ kind }) => kind === 'loss') ? judgeLoss(run) : judgeHistory(run)
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

function judgeHistory({ plan, history }: Run): Violation[] {
  // A process's own clock may run a thousandth slower or faster.
  const options = { weather: plan.weather, storeTimeoutMs: plan.storeTimeoutMs * 0.99 }
  const violations = checkHistory(history, { ...options, seenBy: 'store' })
  // Clients do not know when a server noticed that a transaction's connection was gone.
  const inTransactions = plan.calls.some(({ how }) => how === 'transaction')
  if (plan.seed % seenByClientsEvery === 0 && !inTransactions) {
    violations.push(...checkHistory(history, { ...options, seenBy: 'clients' }))
  }
  return violations
}

/** No client can know what was lost. But an instance that had the reply to a lost write, and comes back, must be refused. */
function judgeLoss({ history, givenBlindly }: Run): Violation[] {
  const violations: Violation[] = givenBlindly.map((key) => ({
    assertion: 'quarantine-holds',
    key,
    message: 'it was given to one who had been told of writes that the store has lost',
  }))
  checkEnds(history, (violation) => violations.push(violation))
  return violations
}

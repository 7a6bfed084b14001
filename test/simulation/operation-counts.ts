// What a run of operations has been through, and the least that it must have.

import { newRecords, recordHead } from '../../src/testing/history-checker-operations.ts'
import type { OperationHistory } from '../../src/testing/history-checker-operations.ts'
import type { NetworkCounts } from '../../src/testing/simulation-network.ts'

export type OperationCounts = NetworkCounts & {
  schedules: number
  crashes: number
  pauses: number
  outages: number
  takeovers: number
  reopened: number
  fenced: number
  runs: number
  undos: number
  lookups: number
  doubts: number
  zombies: number
  commits: number
  completed: number
  compensated: number
  parks: number
  stuck: number
  cancels: number
  overtaken: number
}

/** For a thousand schedules, a third of what they meet when the generator is in order; see counts.ts. */
export const operationQuotas: Readonly<Record<string, number>> = {
  lostRequests: 250,
  lostAcknowledgements: 90,
  duplicates: 88,
  crashes: 380,
  pauses: 225,
  outages: 68,
  takeovers: 210,
  reopened: 640,
  fenced: 170,
  runs: 1_600,
  undos: 390,
  lookups: 185,
  doubts: 150,
  zombies: 0.8,
  commits: 270,
  completed: 250,
  compensated: 230,
  parks: 110,
  stuck: 10,
  cancels: 100,
  overtaken: 2,
}

export function noOperationCounts(): OperationCounts {
  return {
    schedules: 0,
    lostRequests: 0,
    lostAcknowledgements: 0,
    duplicates: 0,
    crashes: 0,
    pauses: 0,
    outages: 0,
    takeovers: 0,
    reopened: 0,
    fenced: 0,
    runs: 0,
    undos: 0,
    lookups: 0,
    doubts: 0,
    zombies: 0,
    commits: 0,
    completed: 0,
    compensated: 0,
    parks: 0,
    stuck: 0,
    cancels: 0,
    overtaken: 0,
  }
}

export function countOperations(counts: OperationCounts, history: OperationHistory): void {
  for (const operation of history.store.operations) {
    if (operation.call === 'claim' && operation.answer?.is === 'granted' && !operation.repeated) {
      if (operation.answer.how === 'taken-over') counts.takeovers++
      if (operation.answer.how === 'reopened') counts.reopened++
    } else if (operation.answer === 'lost') counts.fenced++
  }
  for (const { does, isHolder } of history.invocations) {
    if (does === 'run') counts.runs++
    if (does !== 'lookup' && !isHolder) counts.zombies++
  }
  for (const change of history.records) {
    for (const [name, { state }] of newRecords(change)) {
      if (state === 'stuck') counts.stuck++
      // It began once more, and nobody had heard what became of it.
      const before = change.before?.records.get(name)
      if (state === 'began' && before && recordHead(before.content).state === 'began') counts.doubts++
    }
  }
  for (const { system, isOvertaken } of history.ledger) {
    if (system === 'transaction') counts.commits++
    if (isOvertaken) counts.overtaken++
  }
  for (const { end } of history.operations) {
    if (end?.state === 'completed') counts.completed++
    if (end?.state === 'failed') counts.compensated++
  }
}

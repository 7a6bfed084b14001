// What a run of operations has been through, and the least that it must have.

import { newRecords, recordHead } from './world/operations/checker.ts'
import type { OperationHistory } from './world/operations/checker.ts'
import type { NetworkCounts } from './world/network.ts'

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
  interrupted: number
  cancels: number
  resumes: number
  sweeps: number
  mends: number
  lives: number
  expired: number
  newer: number
  mismatched: number
  left: number
  overtaken: number
  deploys: number
  sealed: number
  refusedPivots: number
  hangs: number
  resolves: number
  keeps: number
}

/** For a thousand schedules, a third of what they meet when the generator is in order. See counts.ts. */
export const operationQuotas: Readonly<Record<string, number>> = {
  lostRequests: 251,
  lostAcknowledgements: 95,
  duplicates: 111,
  crashes: 365,
  pauses: 202,
  outages: 62,
  takeovers: 211,
  reopened: 681,
  fenced: 198,
  runs: 1_678,
  undos: 411,
  lookups: 182,
  doubts: 243,
  zombies: 2.3,
  commits: 294,
  completed: 275,
  compensated: 236,
  parks: 97,
  stuck: 30,
  interrupted: 25,
  cancels: 127,
  resumes: 97,
  sweeps: 33,
  mends: 40,
  lives: 43,
  expired: 12,
  newer: 4,
  mismatched: 5.8,
  left: 3.3,
  overtaken: 2.3,
  deploys: 56,
  sealed: 96,
  refusedPivots: 19,
  hangs: 43,
  resolves: 20,
  keeps: 20,
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
    interrupted: 0,
    cancels: 0,
    resumes: 0,
    sweeps: 0,
    mends: 0,
    lives: 0,
    expired: 0,
    newer: 0,
    mismatched: 0,
    left: 0,
    overtaken: 0,
    deploys: 0,
    sealed: 0,
    refusedPivots: 0,
    hangs: 0,
    resolves: 0,
    keeps: 0,
  }
}

export function countOperations(counts: OperationCounts, history: OperationHistory): void {
  for (const operation of history.store.operations) {
    if (operation.call === 'claim' && operation.answer?.is === 'granted' && !operation.repeated) {
      if (operation.answer.how === 'taken-over') counts.takeovers++
      if (operation.answer.how === 'reopened') counts.reopened++
    } else if (operation.answer === 'lost') counts.fenced++
    if (operation.call !== 'mend' || !operation.answer || typeof operation.action !== 'object') continue
    counts['resolve' in operation.action ? 'resolves' : 'keeps']++
  }
  for (const { does, isHolder, ended } of history.invocations) {
    if (ended === 'hangs') counts.hangs++
    if (does === 'run') counts.runs++
    if (does !== 'lookup' && !isHolder) counts.zombies++
  }
  for (const change of history.records) {
    for (const [name, { state, pivot, interruptions, lastError = '' }] of newRecords(change)) {
      if (interruptions !== undefined) counts.interrupted++
      if (pivot && state === 'failed') counts.refusedPivots++
      if (lastError.includes('asked for before with another fingerprint')) counts.mismatched++
      if (state === 'stuck') counts.stuck++
      // It began once more, and no record said what became of it.
      const before = change.before?.records.get(name)
      if (state === 'began' && before && recordHead(before.content).state === 'began') counts.doubts++
    }
  }
  for (const { system, isOvertaken } of history.ledger) {
    if (system === 'transaction') counts.commits++
    if (isOvertaken) counts.overtaken++
  }
  for (const { text } of history.answers) {
    if (text === 'EXPIRED') counts.expired++
    if (text === 'NEWER_VERSION') counts.newer++
  }
  for (const { end, life } of history.operations) {
    if (life > 1) counts.lives++
    if (end?.state === 'completed') counts.completed++
    if (end?.state === 'failed') counts.compensated++
  }
}

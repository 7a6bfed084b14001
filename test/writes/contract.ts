// One contract for the writes of every database. What one of them cannot is left out with a reason, which is printed.
import { describe } from 'vitest'
import { namesAreOnlyNames, valuesAreOnlyValues } from './contract/hostile.ts'
import { racingChanges, racingUpserts } from './contract/races.ts'
import { repeatedChanges, repeatedConditions, repeatedUpserts, repeatedVersions } from './contract/repeats.ts'
import { subjectOf, type WritesContract } from './contract/subject.ts'
import { insideTransactions, otherConstraints } from './contract/transactions.ts'

export function writesContract(contract: WritesContract): void {
  const subject = subjectOf(contract)
  describe('a write that is repeated', () => {
    repeatedUpserts(subject)
    repeatedVersions(subject)
    repeatedConditions(subject)
    repeatedChanges(subject)
  })
  describe('many callers at once', () => {
    racingUpserts(subject)
    racingChanges(subject)
  })
  describe('hostile input', () => {
    valuesAreOnlyValues(subject)
    namesAreOnlyNames(subject)
  })
  describe('in a transaction', () => insideTransactions(subject))
  describe('what another unique constraint forbids', () => otherConstraints(subject))
}

// A contract that passes everything proves nothing: here is a wrong store for each guarantee, with the case that must find it.
// You can also try your own checker on them.

import { brokenAnswers } from './broken-stores/answers.ts'
import { brokenCollecting } from './broken-stores/collecting.ts'
import { brokenHolders } from './broken-stores/holders.ts'
import { brokenOperations } from './broken-stores/operations.ts'
import { brokenRetention } from './broken-stores/retention.ts'
import type { BrokenStore } from './broken-stores/broken-store.ts'
import { brokenTransactions } from './broken-stores/transactions.ts'

export type { BrokenStore } from './broken-stores/broken-store.ts'

export const brokenStores: readonly BrokenStore[] = [
  ...brokenHolders,
  ...brokenAnswers,
  ...brokenRetention,
  ...brokenTransactions,
  ...brokenCollecting,
  ...brokenOperations,
]

// onceonly/testing: what proves a store, what proves the proof, and what finds out whether your own code bears repetition.

export { brokenStores } from './broken-stores.ts'
export type { BrokenStore } from './broken-stores.ts'
export { crashEverywhere, crashPointsHere, crashProcesses } from './crash-everywhere.ts'
export type {
  CrashAnswer,
  CrashCell,
  CrashEverywhereOptions,
  CrashingProcess,
  CrashKind,
  CrashPoints,
  CrashProcessesOptions,
  CrashReport,
} from './crash-everywhere.ts'
export { faultyFetch } from './faulty-fetch.ts'
export type { FaultyFetch, FaultyFetchOptions, FetchLike, NetworkFault } from './faulty-fetch.ts'
export { checkHistory } from './history-checker.ts'
export { assertions, emptyHistory, tellStory } from './history-checker.ts'
export type {
  Assertion,
  CallAnswer,
  CallRecord,
  CheckOptions,
  EffectRecord,
  ExecutionRecord,
  History,
  HistoryRow,
  RowChange,
  StoreOperation,
  Violation,
} from './history-checker.ts'
export { manualClock } from './manual-clock.ts'
export type { ManualClock } from './manual-clock.ts'
export { sendTwice } from './send-twice.ts'
export type { RouteReport, SendTwice, SendTwiceOptions, SendTwiceReport, SendTwiceTarget } from './send-twice.ts'
export { guarantees, runContractCase, storeContract, storeContractCases } from './store-contract.ts'
export type {
  Cannot,
  ContractCase,
  ContractSubject,
  ContractTest,
  Guarantee,
  StoreContractOptions,
} from './store-contract.ts'

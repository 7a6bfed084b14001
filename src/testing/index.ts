// onceonly/testing: what proves a store, what proves the proof, and what finds out whether your own code bears repetition.

export { brokenStores } from './broken-stores.ts'
export type { BrokenStore } from './broken-stores/broken-store.ts'
export { guarantees } from './store-contract/case.ts'
export type { ContractCase, Guarantee } from './store-contract/case.ts'
export type { ContractSubject } from './store-contract/subject.ts'
export { crashEverywhere } from './crash-everywhere.ts'
export type { CrashAnswer, CrashEverywhereOptions, CrashingProcess } from './crash-everywhere.ts'
export type { CrashKind, CrashPoints } from './crash-everywhere/points.ts'
export { crashPointsHere, crashProcesses } from './crash-everywhere/processes.ts'
export type { CrashProcessesOptions } from './crash-everywhere/processes.ts'
export type { CrashCell, CrashReport } from './crash-everywhere/report.ts'
export { faultyFetch } from './faulty-fetch.ts'
export type { FaultyFetch, FaultyFetchOptions, FetchLike, NetworkFault } from './faulty-fetch.ts'
export { checkHistory } from './history-checker.ts'
export type { CheckOptions } from './history-checker.ts'
export { emptyHistory } from './history-checker/history.ts'
export type {
  CallAnswer,
  CallRecord,
  EffectRecord,
  ExecutionRecord,
  History,
  Row,
  RowChange,
  StoreOperation,
} from './history-checker/history.ts'
export { tellStory } from './history-checker/story.ts'
export { assertions } from './history-checker/violation.ts'
export type { Assertion, Violation } from './history-checker/violation.ts'
export { manualClock } from './manual-clock.ts'
export type { ManualClock } from './manual-clock.ts'
export { sendTwice } from './send-twice.ts'
export type { SendTwice, SendTwiceOptions } from './send-twice.ts'
export type { RouteReport, SendTwiceReport } from './send-twice/report.ts'
export type { SendTwiceTarget } from './send-twice/target.ts'
export { runContractCase, storeContract, storeContractCases } from './store-contract.ts'
export type { Cannot, ContractTest, StoreContractOptions } from './store-contract.ts'

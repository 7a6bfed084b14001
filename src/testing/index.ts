// onceonly/testing: what proves a store, and what proves the proof.

export { brokenStores } from './broken-stores.ts'
export type { BrokenStore } from './broken-store.ts'
export { guarantees } from './contract-case.ts'
export type { ContractCase, Guarantee } from './contract-case.ts'
export type { ContractSubject } from './contract-subject.ts'
export { manualClock } from './manual-clock.ts'
export type { ManualClock } from './manual-clock.ts'
export { runContractCase, storeContract, storeContractCases } from './store-contract.ts'
export type { Cannot, ContractTest, StoreContractOptions } from './store-contract.ts'

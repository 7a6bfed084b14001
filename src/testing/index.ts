// onceonly/testing: what proves a store, what proves the proof, and what finds out whether your own code bears repetition.
//
// Decisions, and what they cost:
// - A run without a crash learns which calls are crash points: only then can a call be stopped before it is made. Costs
//   one run. The code under test must do the same each time, and a cell whose point is not reached counts as broken.
// - A process that dies within the test's own process receives nothing: its promises never resolve, its timers never
//   fire, its transactions are abandoned. Costs: code that is not wrapped lives on.
// - `sendTwice` sends three times: a pair shows the race, the third the replay.
// - The seeded bugs run on a vitest that stays. Changed files are invalidated between rows. Costs: it rests on vitest's
//   Node API, and a row that runs no test is tried twice.
// - A seeded bug is caught only when its named assertion fails, and that assertion is first run on the sound source.
// - The simulated Redis rewrites the Lua scripts. The shipped store runs on it, and it keeps the contract itself.
//   Costs: a change there is made twice.
// - Torture's journals use the monotonic clock that all processes share: set clocks do not move them. Zombies wait for
//   the takeover, not for time. A `busy` that overlaps another call on the key is left out of linearizability, as
//   stores that try locks return it. Costs: one machine only, and laxer than needed on Redis, SQLite, DynamoDB and
//   MongoDB.
// - A gateway under torture is the shipped program with a hook that swaps the store it opens. Costs: the hook names
//   `src/cli/gateway.ts` and `open-store.ts`. When they move, a run stops and says that the store is not watched.
// - The service behind it gets the attempt, not the token. The judge finds the token by key and attempt. Costs: its
//   fence is not checked independently.
// - In CI every point is killed at once and some twice (560 kills), and gateways stand in front of three stores. Costs:
//   the other three only with `--long`.
// - Each life of an operation is judged by itself, and known by its first fence. The other side has forgotten it, too.
//   Costs: deduplication across lives is not simulated.
// - The search for an order is tried twice: what must have happened first, then as it was sent. Costs up to 100,000 steps
//   before it gives up.
// - No getters in object literals and no methods on single maps in the simulated world: they keep a schedule alive until
//   a full collection, which was half of the time. Costs two small classes.
// - Linear time is shown without a clock: 2 MB of each heavy shape, in a child that must end.

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

// The memory store with pretended transactions and faults. No user and no store is tested with it: it lets the contract's own
// cases be tested, on a store that keeps every guarantee and on those that break one. A transaction writes in place and remembers
// how to undo its writes. A lock on each of its keys hides them from other callers.

import { OnceError } from '../../core/errors.ts'
import { keyString } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type {
  Began,
  BegunStep,
  Claim,
  Collecting,
  InTransaction,
  Recoverable,
  StepLedger,
  Transactional,
  TransactionalSteps,
  Verdict,
} from '../../core/store.ts'
import { memoryData, memoryStore } from '../../stores/memory.ts'
import type { MemoryData, MemoryStore } from '../../stores/memory.ts'
import type { ContractSubject } from '../store-contract.ts'
import { manualClock } from '../manual-clock.ts'

export type PretendStore = MemoryStore &
  Transactional<PretendTransaction> &
  TransactionalSteps<PretendTransaction> &
  Collecting<PretendCollection, PretendCollected>

/** What an effect collects with. */
export interface PretendCollection {
  add(name: string): void
  refuse(): void
}

export interface PretendCollected {
  readonly effects: readonly string[]
  readonly isRefused: boolean
}

export interface PretendTransaction {
  readonly undo: (() => void)[]
  readonly effects: string[]
  /** Where the undo log was before and after each claim, by its token. */
  readonly marks: Map<string, { readonly before: number; readonly after: number }>
  over: boolean
  /** The effect has committed it. */
  endedByHand: boolean
}

/** What a broken store may reach behind the store. */
export interface PretendDatabase {
  readonly data: MemoryData
  readonly lockedBy: Map<string, PretendTransaction>
  readonly effects: string[]
  reachable: boolean
  replyLost: boolean
  cutAtCommit: 'before' | 'after' | undefined
}

export interface Breakage {
  /** Replaces the memory store underneath. `clockSkewMs` is that of the instance's process. */
  readonly memory?: (store: MemoryStore, data: MemoryData, clockSkewMs: number) => MemoryStore
  /** Replaces the store that the contract sees. */
  readonly store?: (store: PretendStore, database: PretendDatabase) => PretendStore
  /** What a crash of the server does to the data. */
  readonly crash?: (data: MemoryData) => void
}

export async function pretendSubject(breakage: Breakage = {}): Promise<ContractSubject<PretendTransaction>> {
  const clock = manualClock()
  const database: PretendDatabase = {
    data: memoryData(clock),
    lockedBy: new Map(),
    effects: [],
    reachable: true,
    replyLost: false,
    cutAtCommit: undefined,
  }
  const { data } = database
  const open = (clockSkewMs = 0): PretendStore => {
    const memory = breakage.memory?.(memoryStore({ data }), data, clockSkewMs) ?? memoryStore({ data })
    const store = pretendStore(database, memory)
    return breakage.store?.(store, database) ?? store
  }
  return {
    store: open(),
    another: async (process) => open(process?.clockSkewMs),
    advance: (ms) => clock.advance(ms),
    async corrupt(key, bytes) {
      data.entries.set(keyString(key), { ...data.entries.get(keyString(key))!, outcome: bytes })
    },
    transactions: pretendTransactions(database),
    collecting: {
      addEffect: (tx, name) => (tx as PretendCollection).add(name),
      addRefused: (tx) => (tx as PretendCollection).refuse(),
      countEffects: async (name) => database.effects.filter((each) => each === name).length,
    },
    faults: pretendFaults(database, breakage),
    destroy: async () => undefined,
  }
}

function pretendStore(database: PretendDatabase, memory: MemoryStore): PretendStore {
  const call: Call = async (work, lost) => {
    if (!database.reachable) throw unavailable('it is cut off')
    const reply = await work()
    if (!database.replyLost) return reply
    database.replyLost = false
    if (lost === 'outcome') throw new OnceError('OUTCOME_UNKNOWN', { message: 'The reply was lost.' })
    throw unavailable('its reply was lost', lost)
  }
  return {
    ...memory,
    claim: (key, request) =>
      call(async () => (database.lockedBy.has(keyString(key)) ? locked : memory.claim(key, request))),
    extend: (claim, leaseMs) => call(() => memory.extend(claim, leaseMs), 'unknown'),
    settle: (claim, outcome, retention) => call(() => memory.settle(claim, outcome, retention), 'unknown'),
    release: (claim, how) => call(() => memory.release(claim, how), 'unknown'),
    mend: (key, action, reason) => call(() => memory.mend(key, action, reason), 'unknown'),
    within: (tx) => inTransaction(database, memory, tx),
    begin: (key, request) =>
      call(async () => {
        const tx = openTransaction()
        const verdict = await inTransaction(database, memory, tx).claim(key, request)
        if (verdict.is === 'granted') return { verdict, granted: grantedIn(database, memory, tx, verdict) }
        endTransaction(database, tx, 'rollback')
        return { verdict }
      }),
    isConflict: () => false,
    ...pretendOperations(database, memory, call),
    ...pretendCollecting(database, memory, call),
  }
}

function pretendCollecting(
  { data, effects }: PretendDatabase,
  memory: MemoryStore,
  call: Call,
): Collecting<PretendCollection, PretendCollected> {
  return {
    collect() {
      const collected = { effects: [] as string[], isRefused: false }
      const tx = {
        add: (name: string) => void collected.effects.push(name),
        refuse: () => void (collected.isRefused = true),
      }
      return { tx, end: () => structuredClone(collected) }
    },
    settleWith: (claim, outcome, retention, collected) =>
      call(async () => {
        if (collected.isRefused) throw new OnceError('COMMIT_REFUSED', { message: 'A condition does not hold.' })
        const before = data.entries.get(keyString(claim.key))
        const fenced = await memory.settle(claim, outcome, retention)
        if (fenced === 'done' && before?.wrote === 'claim') effects.push(...collected.effects)
        return fenced
      }, 'outcome'),
  }
}

/** `lost`: what is told when the reply is lost. Without it, that nothing was run. */
type Call = <T>(work: () => Promise<T>, lost?: 'unknown' | 'outcome') => Promise<T>

function pretendOperations(
  database: PretendDatabase,
  memory: MemoryStore,
  call: Call,
): StepLedger & Recoverable & TransactionalSteps<PretendTransaction> {
  return {
    enlist: (key, request) =>
      call(async () => (database.lockedBy.has(keyString(key)) ? locked : memory.enlist(key, request))),
    ledger: (key) => call(() => memory.ledger(key)),
    advance: (claim, change) => call(() => memory.advance(claim, change), 'unknown'),
    due: (scope, options) => call(() => memory.due(scope, options)),
    dismiss: (operation) => call(() => memory.dismiss(operation)),
    requestCancel: (key, reason) => call(() => memory.requestCancel(key, reason)),
    unfinished: (scope, options) => call(() => memory.unfinished(scope, options)),
    beginStep: (claim) =>
      call(async () => {
        const entry = database.data.entries.get(keyString(claim.key))
        if (entry?.token !== claim.token || entry.fence !== claim.fence || entry.wrote !== 'claim') return undefined
        return begunStep(database, memory, openTransaction(), claim)
      }),
  }
}

/** A step locks nothing while it runs: the record, written last and under the token, decides whether it commits. */
function begunStep(
  database: PretendDatabase,
  memory: MemoryStore,
  tx: PretendTransaction,
  claim: Claim,
): BegunStep<PretendTransaction> {
  const rollback = async (): Promise<void> => endTransaction(database, tx, 'rollback')
  return {
    tx,
    async commit(change) {
      const cut = takeCut(database)
      if (cut === 'before') {
        await rollback()
        throw cutAt(cut)
      }
      assertOpen(tx)
      const advanced = await memory.advance(claim, change)
      endTransaction(database, tx, advanced === 'lost' ? 'rollback' : 'commit')
      if (cut) throw cutAt(cut)
      return advanced
    },
    rollback,
    abandon: rollback,
  }
}

const locked: Verdict = { is: 'busy', retryAfterMs: 100 }

function unavailable(why: string, executed: 'no' | 'unknown' = 'no'): OnceError {
  return new OnceError('STORE_UNAVAILABLE', { message: `The pretended store cannot be reached: ${why}.`, executed })
}

function inTransaction(database: PretendDatabase, memory: MemoryStore, tx: PretendTransaction): InTransaction {
  const { data, lockedBy } = database
  const restoring = (key: Key): (() => void) => {
    const name = keyString(key)
    const before = data.entries.get(name)
    return () => void (before ? data.entries.set(name, before) : data.entries.delete(name))
  }
  return {
    async claim(key, request) {
      const name = keyString(key)
      if (lockedBy.has(name) && lockedBy.get(name) !== tx) return locked
      const [before, restore] = [tx.undo.length, restoring(key)]
      // Locked before the memory store is asked, as that may take its time when it is a broken one.
      const mine = lockedBy.has(name)
      lockedBy.set(name, tx)
      const verdict = await memory.claim(key, request)
      if (verdict.is !== 'granted') {
        if (!mine) lockedBy.delete(name)
        return verdict
      }
      tx.undo.push(restore)
      tx.marks.set(request.token, { before, after: tx.undo.length })
      return verdict
    },
    async settle(claim, outcome, retention) {
      tx.undo.push(restoring(claim.key))
      return memory.settle(claim, outcome, retention)
    },
    undoEffect: async (claim) => undoTo(tx, tx.marks.get(claim.token)!.after),
    undoClaim: async (claim) => undoTo(tx, tx.marks.get(claim.token)!.before),
  }
}

function grantedIn(
  database: PretendDatabase,
  memory: MemoryStore,
  tx: PretendTransaction,
  { claim }: Extract<Verdict, { is: 'granted' }>,
): NonNullable<Began<PretendTransaction>['granted']> {
  const inside = inTransaction(database, memory, tx)
  return {
    tx,
    async commit(outcome, retention) {
      const cut = takeCut(database)
      if (cut === 'before') endTransaction(database, tx, 'rollback')
      else assertOpen(tx)
      const fenced = cut === 'before' ? 'lost' : await inside.settle(claim, outcome, retention)
      if (cut !== 'before') endTransaction(database, tx, fenced === 'done' ? 'commit' : 'rollback')
      if (cut) throw cutAt(cut)
      return fenced
    },
    undoEffect: () => inside.undoEffect(claim),
    rollback: async () => endTransaction(database, tx, 'rollback'),
    abandon: async () => endTransaction(database, tx, 'rollback'),
  }
}

function takeCut(database: PretendDatabase): PretendDatabase['cutAtCommit'] {
  const cut = database.cutAtCommit
  database.cutAtCommit = undefined
  return cut
}

function cutAt(side: 'before' | 'after'): OnceError {
  return new OnceError('OUTCOME_UNKNOWN', { message: `The connection was cut ${side} COMMIT.` })
}

function openTransaction(): PretendTransaction {
  return { undo: [], effects: [], marks: new Map(), over: false, endedByHand: false }
}

function endTransaction(database: PretendDatabase, tx: PretendTransaction, how: 'commit' | 'rollback'): void {
  if (tx.over) return
  if (how === 'commit') database.effects.push(...tx.effects)
  else undoTo(tx, 0)
  tx.over = true
  for (const [name, holder] of database.lockedBy) if (holder === tx) database.lockedBy.delete(name)
}

function undoTo(tx: PretendTransaction, mark: number): void {
  while (tx.undo.length > mark) tx.undo.pop()!()
}

function assertOpen(tx: PretendTransaction): void {
  if (tx.endedByHand) {
    throw new OnceError('OUTCOME_UNKNOWN', { message: 'The effect has committed its transaction.', retryable: false })
  }
  if (tx.over) throw unavailable('the transaction ended with its connection')
}

function pretendTransactions(
  database: PretendDatabase,
): NonNullable<ContractSubject<PretendTransaction>['transactions']> {
  return {
    async run(work) {
      const tx = openTransaction()
      try {
        const value = await work(tx)
        assertOpen(tx)
        endTransaction(database, tx, 'commit')
        return value
      } catch (error) {
        endTransaction(database, tx, 'rollback')
        throw error
      }
    },
    async addEffect(tx, name) {
      assertOpen(tx)
      tx.effects.push(name)
      tx.undo.push(() => void tx.effects.pop())
    },
    async commitByHand(tx) {
      endTransaction(database, tx, 'commit')
      tx.endedByHand = true
    },
    countEffects: async (name) => database.effects.filter((each) => each === name).length,
  }
}

function pretendFaults(database: PretendDatabase, breakage: Breakage): NonNullable<ContractSubject['faults']> {
  return {
    async crashServer() {
      for (const tx of new Set(database.lockedBy.values())) endTransaction(database, tx, 'rollback')
      breakage.crash?.(database.data)
    },
    cutOff: async () => void (database.reachable = false),
    heal: async () => void (database.reachable = true),
    cutAtCommit: async (side) => void (database.cutAtCommit = side),
    dropNextReply: async () => void (database.replyLost = true),
  }
}

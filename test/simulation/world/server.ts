// The far side of the simulated network: the rows of the memory store, with a lock for each row that is uncommitted in a
// transaction. Changes are audited as a trigger would: no write can pass by.

import type { Verdict } from '../../../src/core/store.ts'
import { memoryData, memoryStore } from '../../../src/stores/memory.ts'
import type { MemoryData, MemoryEntry, MemoryOperation, MemoryStore } from '../../../src/stores/memory.ts'
import { recordAnswer } from '../../../src/testing/history-checker.ts'
import type { History } from '../../../src/testing/history-checker.ts'
import type { Network } from './network.ts'
import type { World } from './world.ts'

export interface ServerOptions {
  /** How often a transaction is taken back because of others, where its effect writes. Default 0. */
  readonly conflictChance?: number
  /** Called for every change of what is recorded of an operation, as a trigger would be. */
  readonly onRecords?: ((change: OperationChange) => void) | undefined
}

export interface OperationChange {
  readonly key: string
  readonly atMs: number
  readonly before: MemoryOperation | undefined
  readonly after: MemoryOperation | undefined
  /** An index into the operations of the history. */
  readonly by: number | undefined
  /** The entry at this time. */
  readonly entry: MemoryEntry | undefined
}

export interface SimulatedServer {
  readonly world: World
  readonly network: Network
  readonly history: History
  readonly data: MemoryData
  /** Keys that are uncommitted, and the transaction that has each. */
  readonly lockedBy: Map<string, object>
  /** Whether this transaction is to be taken back because of others. */
  drawConflict(): boolean
  /** The store as it is on the server, without the network. */
  open(data?: MemoryData): MemoryStore
  /** Carry this out when no transaction has a lock on the key: writes wait for a row, claims do not. */
  whenFree<T>(name: string, work: () => Promise<T>): Promise<T>
  unlock(name: string): void
  /** Does the work of an operation, and writes down its answer. */
  carryOut<T>(operation: number, work: () => Promise<T>): Promise<T>
}

export const busyInTransaction: Verdict = { is: 'busy', retryAfterMs: 100 }

export function createServer(
  world: World,
  network: Network,
  history: History,
  options: ServerOptions = {},
): SimulatedServer {
  const { conflictChance = 0, onRecords } = options
  const random = world.random.fork(0)
  const carriedOut: CarriedOut = { operation: undefined }
  const data = auditedData(world, history, carriedOut, onRecords)
  const lockedBy = new Map<string, object>()
  const waiting = new Map<string, (() => void)[]>()
  return {
    world,
    network,
    history,
    data,
    lockedBy,
    drawConflict: () => conflictChance > 0 && random.chance(conflictChance),
    open: (seen = data) => memoryStore({ data: seen }),
    async whenFree(name, work) {
      while (lockedBy.has(name)) {
        await new Promise<void>((resolve) => waiting.set(name, [...(waiting.get(name) ?? []), resolve]))
      }
      return work()
    },
    unlock(name) {
      lockedBy.delete(name)
      const woken = waiting.get(name) ?? []
      waiting.delete(name)
      for (const wake of woken) wake()
    },
    async carryOut(operation, work) {
      carriedOut.operation = operation
      const answer = await work()
      recordAnswer(history, operation, answer ?? 'done', Math.floor(world.now()))
      return answer
    },
  }
}

/** The operation whose work a change of a row is. */
interface CarriedOut {
  operation: number | undefined
}

function auditedData(
  world: World,
  history: History,
  carriedOut: CarriedOut,
  onRecords: ServerOptions['onRecords'],
): MemoryData {
  const atMs = (): number => Math.floor(world.now())
  const entries = new AuditedMap<MemoryEntry>((key, before, after) => {
    history.changes.push({ key, atMs: atMs(), before, after, by: carriedOut.operation })
  })
  const data = memoryData({ now: world.now, elapsed: world.now, schedule: () => () => {} })
  if (!onRecords) return { ...data, entries }
  const operations = new AuditedMap<MemoryOperation>((key, before, after) => {
    onRecords({ key, atMs: atMs(), before, after, by: carriedOut.operation, entry: entries.get(key) })
  })
  return { ...data, entries, operations }
}

type Audit<T> = (name: string, before: T | undefined, after: T | undefined) => void

/** A class, as methods that are put on a single map keep all that they can see from dying young. */
class AuditedMap<T> extends Map<string, T> {
  readonly #audit: Audit<T>

  constructor(audit: Audit<T>) {
    super()
    this.#audit = audit
  }

  override set(name: string, value: T): this {
    this.#audit(name, this.get(name), value)
    return super.set(name, value)
  }

  override delete(name: string): boolean {
    this.#audit(name, this.get(name), undefined)
    return super.delete(name)
  }
}

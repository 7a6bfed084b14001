// Transactions on the simulated rows. What a transaction writes is invisible to others until it commits, together with its
// effects. A lock on its key makes other claims `busy`. It lives in a connection: when that is gone, the server takes everything
// back, but not at once.

import { OnceError } from '../../../src/core/errors.ts'
import { keyString } from '../../../src/core/key.ts'
import type { Key } from '../../../src/core/key.ts'
import type { Began, Claim, ClaimRequest, Transactional, Verdict } from '../../../src/core/store.ts'
import type { MemoryData, MemoryStore } from '../../../src/stores/memory.ts'
import type { Asked } from '../../../src/testing/history-checker.ts'
import { busyInTransaction } from './server.ts'
import type { SimulatedServer } from './server.ts'
import type { Life } from './world.ts'

/** What an effect is given to write with. */
export interface SimulatedTransaction {
  /** A line for the ledger, there when the transaction commits. */
  write(execution: number): Promise<void>
}

/** A connection with an open transaction. */
export interface Connection {
  readonly key: string
  readonly token: string
  /** What locks of it are known by. */
  readonly transaction: object
  /** As the client sees it: nothing can be sent any more. */
  gone: boolean
  /** As the server sees it. */
  over: boolean
}

interface Session extends Connection {
  readonly store: MemoryStore
  readonly data: MemoryData
  readonly effects: number[]
  readonly transaction: SimulatedTransaction
}

/** A server learns of a dead client by the server's own time-out: sometimes soon, sometimes after the client has come back. */
const noticeMs = [1, 4_000] as const

/** The server took the transaction back because of others, and said so. */
const conflictMessage = 'could not serialize access'

export function transactionsOf(server: SimulatedServer, life: Life): Transactional<SimulatedTransaction> {
  return {
    within() {
      throw new OnceError('UNSUPPORTED', { message: 'The simulation has no transactions of its own to join.' })
    },
    isConflict: (error) => error instanceof Error && error.message === conflictMessage,
    async begin(key, request) {
      let session: Session | undefined
      const lost = (): void => session && loseConnection(server, life, session)
      const verdict = await server.network.send<Verdict>(
        life,
        { call: 'begin', key: keyString(key), request },
        async (operation) => {
          const opened = (session = openSession(server, life, key, request))
          return server.carryOut(operation, () => claimIn(server, opened, key, request))
        },
        lost,
      )
      if (verdict.is !== 'granted') return { verdict }
      return { verdict, granted: grantedIn(server, life, session!, verdict.claim) }
    },
  }
}

function openSession(server: SimulatedServer, life: Life, key: Key, request: ClaimRequest): Session {
  const name = keyString(key)
  const row = server.data.entries.get(name)
  const data = new Uncommitted(server.data, new Map(row && [[name, row]]))
  const effects: number[] = []
  const session: Session = {
    key: name,
    token: request.token,
    store: server.open(data),
    data,
    effects,
    gone: false,
    over: false,
    transaction: {
      write: (execution) =>
        ask(server, life, session, { call: 'effect', token: request.token }, async () => {
          drawConflict(server, life, session)
          effects.push(execution)
        }),
    },
  }
  endsWith(server, life, session)
  return session
}

/** The server takes the transaction back because of others, if it is so drawn. */
export function drawConflict(server: SimulatedServer, life: Life, session: Connection): void {
  if (!server.drawConflict()) return
  endAsRollback(server, life, session)
  throw new Error(conflictMessage)
}

/** A connection is lost with the life of its process. */
export function endsWith(server: SimulatedServer, life: Life, session: Connection): void {
  const lost = (): void => loseConnection(server, life, session)
  if (life.over) lost()
  else life.whenOver(lost)
}

async function claimIn(server: SimulatedServer, session: Session, key: Key, request: ClaimRequest): Promise<Verdict> {
  if (server.lockedBy.has(session.key)) {
    session.over = true
    return busyInTransaction
  }
  const verdict = await session.store.claim(key, request)
  if (verdict.is === 'granted') server.lockedBy.set(session.key, session.transaction)
  else session.over = true
  return verdict
}

function grantedIn(
  server: SimulatedServer,
  life: Life,
  session: Session,
  claim: Claim,
): NonNullable<Began<SimulatedTransaction>['granted']> {
  const { token, fence } = claim
  return {
    tx: session.transaction,
    async commit(outcome, retention) {
      if (session.gone) throw gone() // nothing was sent, so nothing was committed
      try {
        return await ask(server, life, session, { call: 'commit', token, fence, outcome, retention }, async () => {
          const fenced = await session.store.settle(claim, outcome, retention)
          if (fenced === 'lost') end(server, session)
          else commit(server, session)
          return fenced
        })
      } catch (cause) {
        throw new OnceError('OUTCOME_UNKNOWN', { message: 'The connection was lost at COMMIT.', cause })
      }
    },
    undoEffect: () =>
      ask(server, life, session, { call: 'undo', token }, async () => void session.effects.splice(0, Infinity)),
    rollback: () => ask(server, life, session, { call: 'rollback', token }, async () => end(server, session)),
    async abandon() {
      loseConnection(server, life, session)
    },
  }
}

function commit(server: SimulatedServer, session: Session): void {
  for (const [name, row] of session.data.entries) server.data.entries.set(name, row)
  const atMs = server.world.now()
  for (const execution of session.effects) server.history.effects.push({ execution, atMs, transactional: true })
  session.over = true
  server.unlock(session.key)
}

export function end(server: SimulatedServer, session: Connection): void {
  if (session.over) return
  session.over = true
  if (server.lockedBy.get(session.key) === session.transaction) server.unlock(session.key)
}

/** One message inside the connection. */
export function ask<T>(
  server: SimulatedServer,
  life: Life,
  session: Connection,
  asked: Asked,
  decide: () => Promise<T>,
): Promise<T> {
  if (session.gone) return Promise.reject(gone())
  return server.network.send(
    life,
    { ...asked, key: session.key },
    async (operation) => {
      if (session.over) throw gone()
      return server.carryOut(operation, decide)
    },
    () => loseConnection(server, life, session),
  )
}

export function loseConnection(server: SimulatedServer, life: Life, session: Connection): void {
  session.gone = true
  const { random } = server.world
  const [soonMs, lateMs] = noticeMs
  // Skewed to the soon: mostly the other side closes the connection, and the server learns of it.
  const afterMs = soonMs + random.fraction() ** 3 * (lateMs - soonMs)
  if (!session.over) server.world.after(afterMs, () => endAsRollback(server, life, session))
}

function endAsRollback(server: SimulatedServer, life: Life, session: Connection): void {
  if (session.over) return
  const atMs = server.world.now()
  server.history.operations.push({
    call: 'rollback',
    token: session.token,
    process: life.process.name,
    key: session.key,
    sentAtMs: atMs,
    decidedAtMs: Math.floor(atMs),
    answer: 'done',
  })
  end(server, session)
}

export function gone(): OnceError {
  return new OnceError('STORE_UNAVAILABLE', { message: 'The connection of the transaction is gone.' })
}

/**
 * The same data with separate rows. Fences are given out for good: a rollback does not take them back. A class for its accessors:
 * in an object literal they are made anew each time, and keep what they see from dying young.
 */
class Uncommitted implements MemoryData {
  readonly entries: MemoryData['entries']
  readonly audit: MemoryData['audit']
  readonly operations: MemoryData['operations']
  readonly now: MemoryData['now']
  readonly #data: MemoryData

  constructor(data: MemoryData, entries: MemoryData['entries']) {
    this.entries = entries
    this.audit = data.audit
    this.operations = data.operations
    this.now = data.now
    this.#data = data
  }

  get fence(): number {
    return this.#data.fence
  }

  set fence(fence: number) {
    this.#data.fence = fence
  }

  get nothingOverUntilMs(): number {
    return this.#data.nothingOverUntilMs
  }

  set nothingOverUntilMs(atMs: number) {
    this.#data.nothingOverUntilMs = atMs
  }
}

// Operations on the far side of the simulated network. For the entry, enlisting is a claim and every advance is an extend, a
// settle or a release, and so they stand in the history. The server audits what they record.

import { OnceError } from '../../../src/core/errors.ts'
import { keyString } from '../../../src/core/key.ts'
import type {
  BegunStep,
  Change,
  Claim,
  Inspectable,
  Recoverable,
  StepLedger,
  TransactionalSteps,
} from '../../../src/core/store.ts'
import type { MemoryStore } from '../../../src/stores/memory.ts'
import type { Asked } from '../../../src/testing/history-checker.ts'
import type { SentOperation } from './network.ts'
import type { SimulatedServer } from './server.ts'
import { ask, drawConflict, end, endsWith, gone, loseConnection } from './transactions.ts'
import type { Connection } from './transactions.ts'
import type { Life } from './world.ts'

/** What a step in a transaction is given to write with. */
export interface SimulatedStep {
  /** `line` is called when the transaction commits, and never otherwise. */
  writeLine(line: () => void): Promise<void>
}

export type SimulatedOperations = StepLedger &
  Recoverable &
  Pick<Inspectable, 'show'> &
  TransactionalSteps<SimulatedStep>

export function operationsOf(server: SimulatedServer, life: Life, store: MemoryStore): SimulatedOperations {
  const send = <T>(what: SentOperation, work: () => Promise<T>): Promise<T> =>
    server.network.send(life, what, (operation) => server.carryOut(operation, work))
  const look = <T>(what: string, key: string, work: () => Promise<T>): Promise<T> =>
    send({ call: 'look', what, key }, work)
  return {
    enlist: (key, request) => send({ call: 'claim', key: keyString(key), request }, () => store.enlist(key, request)),
    advance: (claim, change) =>
      send({ key: keyString(claim.key), ...askedOf(claim, change) }, () => store.advance(claim, change)),
    show: (key) => look('show', keyString(key), () => store.show(key)),
    ledger: (key) => look('ledger', keyString(key), () => store.ledger(key)),
    due: (scope, options) => look('due', '', () => store.due(scope, options)),
    dismiss: (operation) => look('dismiss', keyString(operation.key), () => store.dismiss(operation)),
    requestCancel: (key, reason) => look('cancel', keyString(key), () => store.requestCancel(key, reason)),
    unfinished: (scope, options) => look('unfinished', '', () => store.unfinished(scope, options)),
    beginStep: (claim) => beginStep(server, life, store, claim),
  }
}

function askedOf({ token, fence }: Claim, { becomes }: Change): Asked {
  if (becomes.to === 'running') return { call: 'extend', token, fence, leaseMs: becomes.leaseMs }
  if (becomes.to === 'open') return { call: 'release', token, fence, how: 'open' }
  return { call: 'settle', token, fence, outcome: becomes.outcome, retention: becomes.retention }
}

/** A step locks nothing while it runs: its record, written under the token at the commit, decides. */
async function beginStep(
  server: SimulatedServer,
  life: Life,
  store: MemoryStore,
  claim: Claim,
): Promise<BegunStep<SimulatedStep> | undefined> {
  const key = keyString(claim.key)
  let session: Connection | undefined
  const isHeld = await server.network.send(
    life,
    { call: 'look', what: 'begin a step', key },
    (operation) =>
      server.carryOut(operation, async () => {
        const row = server.data.entries.get(key)
        const isHeldNow = row?.token === claim.token && row.fence === claim.fence && row.wrote === 'claim'
        session = { key, token: claim.token, transaction: {}, gone: false, over: !isHeldNow }
        endsWith(server, life, session)
        opened(server, session)
        return isHeldNow
      }),
    () => session && loseConnection(server, life, session),
  )
  return isHeld ? begun(server, life, store, claim, session!) : undefined
}

const sessionsOf = new WeakMap<SimulatedServer, Set<Connection>>()

function opened(server: SimulatedServer, session: Connection): void {
  const sessions = sessionsOf.get(server) ?? new Set<Connection>()
  sessionsOf.set(server, sessions.add(session))
}

/** Open transactions of steps: neither committed, rolled back nor cut off. */
export function stepsLeftOpen(server: SimulatedServer): number {
  return [...(sessionsOf.get(server) ?? [])].filter(({ over, gone: isGone }) => !over && !isGone).length
}

function begun(
  server: SimulatedServer,
  life: Life,
  store: MemoryStore,
  claim: Claim,
  session: Connection,
): BegunStep<SimulatedStep> {
  const lines: (() => void)[] = []
  const inside = <T>(asked: Asked, decide: () => Promise<T>): Promise<T> => ask(server, life, session, asked, decide)
  const { token } = claim
  return {
    tx: {
      writeLine: (line) =>
        inside({ call: 'effect', token }, async () => {
          drawConflict(server, life, session)
          lines.push(line)
        }),
    },
    async commit(change) {
      if (session.gone) throw gone() // nothing was sent, so nothing was committed
      try {
        return await inside(askedOf(claim, change), async () => {
          const advanced = await store.advance(claim, change)
          if (advanced !== 'lost') for (const line of lines) line()
          end(server, session)
          return advanced
        })
      } catch (cause) {
        throw new OnceError('OUTCOME_UNKNOWN', { message: 'The connection was lost at COMMIT.', cause })
      }
    },
    rollback: () => inside({ call: 'rollback', token }, async () => end(server, session)),
    async abandon() {
      loseConnection(server, life, session)
    },
  }
}

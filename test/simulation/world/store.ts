// A store on the far side of the simulated network: the decisions of the memory store, one atomic decision per request, as an SQL
// row or a script has them.

import { keyString } from '../../../src/core/key.ts'
import type { Claim, Swept, Transactional, TransactionalSteps } from '../../../src/core/store.ts'
import type { MemoryStore } from '../../../src/stores/memory.ts'
import type { SentOperation } from './network.ts'
import { operationsOf } from './operations.ts'
import type { SimulatedStep } from './operations.ts'
import { busyInTransaction } from './server.ts'
import type { SimulatedServer } from './server.ts'
import { transactionsOf } from './transactions.ts'
import type { SimulatedTransaction } from './transactions.ts'
import type { Life } from './world.ts'

export type SimulatedStore = MemoryStore & Transactional<SimulatedTransaction> & TransactionalSteps<SimulatedStep>

/** The store as this life of a process sees it. */
export function connectStore(server: SimulatedServer, life: Life): SimulatedStore {
  const { network, lockedBy } = server
  const store = server.open()
  const send = <T>(what: SentOperation, work: () => Promise<T>): Promise<T> =>
    network.send(life, what, (operation) => server.carryOut(operation, work))
  const sendWrite = <T>(what: SentOperation, work: () => Promise<T>): Promise<T> =>
    network.send(life, what, (operation) => server.whenFree(what.key, () => server.carryOut(operation, work)))
  return {
    ...store,
    claim(key, request) {
      const name = keyString(key)
      return send({ call: 'claim', key: name, request }, async () =>
        lockedBy.has(name) ? busyInTransaction : store.claim(key, request),
      )
    },
    extend: (held, leaseMs) =>
      sendWrite({ call: 'extend', ...addressOf(held), leaseMs }, () => store.extend(held, leaseMs)),
    settle: (held, outcome, retention) =>
      sendWrite({ call: 'settle', ...addressOf(held), outcome, retention }, () =>
        store.settle(held, outcome, retention),
      ),
    release: (held, how) => sendWrite({ call: 'release', ...addressOf(held), how }, () => store.release(held, how)),
    mend: (key, action, reason) =>
      sendWrite({ call: 'mend', key: keyString(key), action }, () => store.mend(key, action, reason)),
    sweep: (options) =>
      send({ call: 'sweep', key: '' }, async () => (lockedBy.size > 0 ? nothingSwept : store.sweep(options))),
    ...transactionsOf(server, life),
    ...operationsOf(server, life, store),
  }
}

/** A sweep passes over what is locked. Here it passes over everything then. */
const nothingSwept: Swept = { tombstoned: 0, forgotten: 0, more: false }

function addressOf({ key, token, fence }: Claim): { key: string; token: string; fence: number } {
  return { key: keyString(key), token, fence }
}

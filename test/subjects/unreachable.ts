// A store that cannot be reached: the error of each call names the call and its key, and says whether it may have been carried out,
// in the same words on every server.

import { expect, test } from 'vitest'
import { OnceError } from '../../src/core/errors.ts'
import type {
  Inspectable,
  Migratable,
  Recoverable,
  StepLedger,
  Store,
  Sweepable,
  Transactional,
  TransactionalSteps,
} from '../../src/core/store.ts'
import { key } from '../../src/core/key.ts'
import type { ContractSubject } from '../../src/testing/store-contract.ts'
import { bytesOf, faultsOf, finish, leaseMs, request, retention } from '../../src/testing/store-contract.ts'

type AnyStore = Store &
  Partial<Inspectable & Sweepable & StepLedger & Recoverable & Migratable> &
  Partial<Transactional<unknown> & TransactionalSteps<unknown>>

const asked = key('payments', '42')
const claim = { key: asked, token: '0190a5b0-0000-7000-8000-000000000042', attempt: 1, fence: 1 }

/** Each call, what is known of it then, and the words that complete "PostgreSQL could not …". */
const calls: readonly [ask: (store: AnyStore) => Promise<unknown> | undefined, executed: string, what: string][] = [
  [(store) => store.claim(asked, request()), 'no', 'claim payments/42'],
  [(store) => store.extend(claim, leaseMs), 'unknown', 'extend payments/42'],
  [(store) => store.settle(claim, bytesOf('paid'), retention), 'unknown', 'settle payments/42'],
  [(store) => store.release(claim, 'open'), 'unknown', 'release payments/42'],
  [(store) => store.release(claim, 'forget'), 'unknown', 'release payments/42'],
  [(store) => store.begin?.(asked, request()), 'no', 'claim payments/42'],
  [(store) => store.sweep?.({ limit: 10 }), 'no', 'sweep'],
  [(store) => store.show?.(asked), 'no', 'show payments/42'],
  [(store) => store.list?.({ limit: 10 }), 'no', 'list entries'],
  [(store) => store.mend?.(asked, 'forget', 'a test'), 'unknown', 'forget payments/42'],
  [(store) => store.mend?.(asked, { keepMs: 1 }, 'a test'), 'unknown', 'keep payments/42'],
  [(store) => store.audit?.(asked), 'no', 'read the audit records of payments/42'],
  [(store) => store.enlist?.(asked, { ...request(), input: bytesOf('an order') }), 'no', 'claim payments/42'],
  [(store) => store.ledger?.(asked), 'no', 'read the records of payments/42'],
  [
    (store) => store.advance?.(claim, { records: [], becomes: { to: 'running', leaseMs } }),
    'unknown',
    'advance payments/42',
  ],
  [(store) => store.beginStep?.(claim), 'no', 'begin a step of payments/42'],
  [(store) => store.due?.('payments', { limit: 10, holdMs: leaseMs }), 'no', 'find due operations'],
  [(store) => store.dismiss?.({ key: asked, heldUntilMs: 1 }), 'no', 'dismiss payments/42'],
  [(store) => store.requestCancel?.(asked, 'a test'), 'unknown', 'cancel payments/42'],
  [(store) => store.unfinished?.('payments', { limit: 10 }), 'no', 'list operations'],
  [(store) => store.migrate?.(), 'no', 'migrate'],
]

/** `server` is its name for people, and `count` how many of the calls it has. */
export function unreachableTest(server: string, count: number, create: () => Promise<ContractSubject>): void {
  test('of a store that cannot be reached the error of each call names it, and says what is known', async () => {
    const subject = await create()
    const store = subject.store as AnyStore
    const told = async (call: Promise<unknown>): Promise<readonly string[]> => {
      const error: unknown = await call.then(
        () => undefined,
        (thrown: unknown) => thrown,
      )
      if (!(error instanceof OnceError)) return [String(error)]
      return [error.code, error.executed, error.message.split(':')[0]!]
    }
    try {
      // What a store looks at before its first call it has seen.
      await finish(store, key('payments', 'first'), bytesOf('paid'))
      await faultsOf(subject, 'connection-faults').cutOff()
      const under = calls.flatMap(([ask, executed, what]) => {
        const call = ask(store)
        return call
          ? [{ call: told(call), expected: ['STORE_UNAVAILABLE', executed, `${server} could not ${what}`] }]
          : []
      })
      expect(under).toHaveLength(count)
      expect(await Promise.all(under.map(({ call }) => call))).toEqual(under.map(({ expected }) => expected))
      await faultsOf(subject, 'connection-faults').heal()
    } finally {
      await subject.destroy()
    }
  })
}

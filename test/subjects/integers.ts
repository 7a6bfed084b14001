// Numbers become the text of statements: what is no integer is refused by its name, before anything is sent.

import { expect, test } from 'vitest'
import { key } from '../../src/core/key.ts'
import type { Inspectable, Recoverable, StepLedger, Store, Sweepable, Transactional } from '../../src/core/store.ts'
import type { ContractSubject } from '../../src/testing/store-contract.ts'
import { bytesOf, leaseMs, request, retention } from '../../src/testing/store-contract.ts'

type SqlStore = Store & Inspectable & Sweepable & StepLedger & Recoverable & Transactional<unknown>
type Asking = (store: SqlStore, n: number) => Promise<unknown>

const asked = key('payments', '42')
const claim = { key: asked, token: '0190a5b0-0000-7000-8000-000000000042', attempt: 1, fence: 1 }
const outcome = bytesOf('paid')
const record = { name: 'charge', content: outcome }

const calls: readonly [name: string, ask: Asking][] = [
  ['leaseMs', (store, n) => store.claim(asked, request({ leaseMs: n }))],
  ['version', (store, n) => store.claim(asked, request({ version: n }))],
  ['keepMs', (store, n) => store.claim(asked, request({ retention: { ...retention, keepMs: n } }))],
  ['tombstoneMs', (store, n) => store.claim(asked, request({ retention: { ...retention, tombstoneMs: n } }))],
  ['fence', (store, n) => store.extend({ ...claim, fence: n }, leaseMs)],
  ['a duration', (store, n) => store.extend(claim, n)],
  ['fence', (store, n) => store.settle({ ...claim, fence: n }, outcome, retention)],
  ['keepMs', (store, n) => store.settle(claim, outcome, { ...retention, keepMs: n })],
  ['tombstoneMs', (store, n) => store.settle(claim, outcome, { ...retention, tombstoneMs: n })],
  ['fence', (store, n) => store.release({ ...claim, fence: n }, 'open')],
  ['leaseMs', (store, n) => store.begin(asked, request({ leaseMs: n }))],
  ['limit', (store, n) => store.sweep({ limit: n })],
  ['limit', (store, n) => store.list({ limit: n })],
  ['keepMs', (store, n) => store.mend(asked, { keepMs: n }, 'a test')],
  ['keepMs', (store, n) => store.mend(asked, { resolve: outcome, retention: { ...retention, keepMs: n } }, 'a test')],
  [
    'tombstoneMs',
    (store, n) => store.mend(asked, { resolve: outcome, retention: { ...retention, tombstoneMs: n } }, 'a test'),
  ],
  ['leaseMs', (store, n) => store.enlist(asked, { ...request({ leaseMs: n }), input: outcome })],
  [
    'revision',
    (store, n) => store.advance(claim, { records: [{ ...record, revision: n }], becomes: { to: 'running', leaseMs } }),
  ],
  ['afterMs', (store, n) => store.advance(claim, { records: [], becomes: { to: 'open', afterMs: n } })],
  ['limit', (store, n) => store.due('payments', { limit: n, holdMs: leaseMs })],
  ['holdMs', (store, n) => store.due('payments', { limit: 10, holdMs: n })],
  ['heldUntilMs', (store, n) => store.dismiss({ key: asked, heldUntilMs: n })],
  ['limit', (store, n) => store.unfinished('payments', { limit: n })],
]

export function integersTest(create: () => Promise<ContractSubject>): void {
  test('a number that is no integer is refused by its name, in every call', async () => {
    const subject = await create()
    const store = subject.store as SqlStore
    try {
      for (const [at, [name, ask]] of calls.entries())
        for (const n of [0.5, '1; drop table effects' as unknown as number])
          await expect((async () => ask(store, n))(), `${at}: ${name}`).rejects.toMatchObject({
            code: 'INVALID_ARGUMENT',
            message: expect.stringContaining(`expected ${name} to be`) as string,
          })
      expect(await store.list({ limit: 10 })).toEqual([])
    } finally {
      await subject.destroy()
    }
  })
}

// The contract, part 11: operations. Their records are written under the token of their entry or not at all, and a worker finds
// what no process works on.

import assert from 'node:assert/strict'
import { key } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type {
  Advanced,
  Change,
  Claim,
  ClaimRequest,
  LedgerRecord,
  Recoverable,
  StepLedger,
  Store,
  Verdict,
} from '../../core/store.ts'
import {
  assertBusy,
  assertGranted,
  assertIs,
  assertSettled,
  bytesOf,
  grantedOf,
  having,
  hourMs,
  inspectableOf,
  leaseMs,
  minuteMs,
  otherFingerprint,
  request,
  retention,
  sweepableOf,
  times,
} from './case.ts'
import type { ContractCase } from './case.ts'

export type LedgerStore = Store & StepLedger & Recoverable

const scope = 'contract/operations/checkout'
export const anOperation: Key = key(scope, 'an operation')
export const input: Uint8Array = bytesOf('the input')

export function operationsOf(store: Store): LedgerStore {
  return having(store, ['enlist', 'ledger', 'advance', 'due', 'dismiss', 'requestCancel', 'unfinished'], 'operations')
}

export function enlist(
  store: Store,
  subject: Key = anOperation,
  changes: Partial<ClaimRequest> = {},
): Promise<Verdict> {
  return operationsOf(store).enlist(subject, { ...request(changes), input: changes.input ?? input })
}

export async function enlisted(
  store: Store,
  subject: Key = anOperation,
  changes: Partial<ClaimRequest> = {},
): Promise<Claim> {
  return grantedOf(await enlist(store, subject, changes))
}

export function record(name: string, revision: number, content: string): LedgerRecord {
  return { name, revision, content: bytesOf(content) }
}

export const running: Change['becomes'] = { to: 'running', leaseMs }

export async function advance(
  store: Store,
  claim: Claim,
  records: readonly LedgerRecord[],
  becomes: Change['becomes'] = running,
): Promise<Advanced> {
  return operationsOf(store).advance(claim, { records, becomes })
}

export async function contents(store: Store, subject: Key = anOperation): Promise<Record<string, string>> {
  const ledger = await operationsOf(store).ledger(subject)
  assert.ok(ledger, 'expected a ledger')
  return Object.fromEntries(
    ledger.records.map(({ name, content }) => {
      assert.ok(content instanceof Uint8Array, 'expected the content as bytes')
      return [name, new TextDecoder().decode(content)]
    }),
  )
}

async function dueIds(store: Store, limit = 10): Promise<string[]> {
  const due = await operationsOf(store).due(scope, { limit, holdMs: minuteMs })
  return due.map((found) => found.key.id)
}

const records: readonly ContractCase[] = [
  {
    name: 'an operation is enlisted once; a retry is told what became of it, and its input is kept',
    guarantee: 'operations',
    async run({ store, ...subject }) {
      const claim = assertGranted(await enlist(store), 'fresh', 1)
      assertBusy(await enlist(store), leaseMs)
      assertIs(await enlist(store, anOperation, { fingerprint: otherFingerprint }), 'mismatch')
      assert.deepEqual(await contents(store), {})
      const entry = await inspectableOf({ store, ...subject }).show(anOperation)
      assert.deepEqual(Buffer.from(entry!.input!), Buffer.from(input))
      assert.equal(await advance(store, claim, [], { to: 'settled', outcome: bytesOf('done'), retention }), 'done')
      assertSettled(await enlist(store), bytesOf('done'))
    },
  },
  {
    name: 'a worker enlists without an input: the one that is there stays, and what it should begin by mistake has none',
    guarantee: 'operations',
    async run({ store, ...subject }) {
      const inspectable = inspectableOf({ store, ...subject })
      const withoutInput = (subjectKey: Key): Promise<Verdict> => operationsOf(store).enlist(subjectKey, request())
      assert.equal(await advance(store, await enlisted(store), [], { to: 'open', afterMs: 0 }), 'done')
      assertGranted(await withoutInput(anOperation), 'reopened', 2)
      assert.deepEqual(Buffer.from((await inspectable.show(anOperation))!.input!), Buffer.from(input))
      const never = key(scope, 'never asked for')
      const claim = assertGranted(await withoutInput(never), 'fresh', 1)
      assert.equal((await inspectable.show(never))?.input, undefined)
      assert.equal(await store.release(claim, 'forget'), 'done')
      assert.equal(await inspectable.show(never), undefined)
    },
  },
  {
    name: 'a later attempt that is settled and kept for no time is gone at once: it is not due, and the next claim is the first',
    guarantee: 'operations',
    async run({ store, ...subject }) {
      const inspectable = inspectableOf({ store, ...subject })
      assert.equal(await advance(store, await enlisted(store), [], { to: 'open', afterMs: 0 }), 'done')
      const claim = assertGranted(await enlist(store), 'reopened', 2)
      const forNoTime = { keepMs: 0, tombstoneMs: 0 }
      const outcome = bytesOf('of no interest')
      assert.equal(await advance(store, claim, [], { to: 'settled', outcome, retention: forNoTime }), 'done')
      assert.equal(await inspectable.show(anOperation), undefined)
      assert.deepEqual(await operationsOf(store).due(scope, { limit: 10, holdMs: 1 }), [])
      assertGranted(await enlist(store), 'fresh', 1)
      assert.deepEqual((await operationsOf(store).ledger(anOperation))?.records, [])
    },
  },
  {
    name: 'of 100 that enlist one operation at once through two instances, one is granted',
    guarantee: 'operations',
    async run({ store, another }) {
      const stores = [store, await another()]
      const verdicts = await Promise.all(times(100).map((n) => enlist(stores[n % 2]!)))
      assert.equal(verdicts.filter((verdict) => verdict.is === 'granted').length, 1)
    },
  },
  {
    name: 'records come back byte for byte, the last revision of each name, with the time of their writing',
    guarantee: 'operations',
    async run({ store }) {
      const claim = await enlisted(store)
      const bytes = Uint8Array.from(times(256))
      const names = ['', 'Charge', 'charge', 'charge ', 'Über 100 €', 'it\'s "quoted" \\ $1 ?']
      assert.equal(await advance(store, claim, [{ name: 'bytes', revision: 1, content: bytes }]), 'done')
      assert.equal(
        await advance(
          store,
          claim,
          names.map((name, n) => record(name, 1, `first ${n}`)),
        ),
        'done',
      )
      assert.equal(await advance(store, claim, [record('charge', 2, 'second')]), 'done')
      const found = await contents(store)
      assert.equal(Object.keys(found).length, 7)
      assert.equal(found['charge'], 'second')
      assert.equal(found['Charge'], 'first 1')
      assert.equal(found['charge '], 'first 3')
      const ledger = (await operationsOf(store).ledger(anOperation))!
      const kept = ledger.records.find(({ name }) => name === 'bytes')!
      assert.deepEqual(Buffer.from(kept.content), Buffer.from(bytes))
      assert.equal(kept.revision, 1)
      assert.ok(Number.isSafeInteger(kept.atMs) && kept.atMs > 0)
    },
  },
  {
    name: 'a record that comes late never overwrites a later one',
    guarantee: 'operations',
    async run({ store }) {
      const claim = await enlisted(store)
      await advance(store, claim, [record('charge', 1, 'began')])
      await advance(store, claim, [record('charge', 2, 'done')])
      assert.equal(await advance(store, claim, [record('charge', 1, 'began')]), 'done')
      assert.equal(await advance(store, claim, [record('charge', 2, 'another done')]), 'done')
      assert.deepEqual(await contents(store), { charge: 'done' })
    },
  },
  {
    name: 'a record that is written twice in one moment has its later revision, and nobody else is disturbed',
    guarantee: 'operations',
    async run({ store }) {
      const claim = await enlisted(store)
      const bystander = await enlisted(store, key(scope, 'another operation'))
      const answers = await Promise.all([
        advance(store, claim, [record('', 2, 'second'), record('a', 1, 'a')]),
        advance(store, claim, [record('', 1, 'first'), record('b', 1, 'b')]),
        advance(store, bystander, [record('', 1, 'other')]),
      ])
      assert.deepEqual(answers, ['done', 'done', 'done'])
      assert.deepEqual(await contents(store), { '': 'second', a: 'a', b: 'b' })
      assert.deepEqual(await contents(store, bystander.key), { '': 'other' })
    },
  },
  {
    name: 'many operations write their records at once, and none is lost or mixed up',
    guarantee: 'operations',
    async run({ store, another }) {
      const stores = [store, await another()]
      const claims = await Promise.all(times(50).map((n) => enlisted(stores[n % 2]!, key(scope, `operation ${n}`))))
      await Promise.all(
        claims.flatMap((claim, n) => [
          advance(stores[n % 2]!, claim, [record('a', 1, `a of ${n}`)]),
          advance(stores[n % 2]!, claim, [record('b', 1, `b of ${n}`)]),
        ]),
      )
      for (const n of times(50)) {
        assert.deepEqual(await contents(store, key(scope, `operation ${n}`)), { a: `a of ${n}`, b: `b of ${n}` })
      }
    },
  },
  {
    name: 'a fresh life of the key begins without the records of the last one',
    guarantee: 'operations',
    async run({ store, advance: pass }) {
      const claim = await enlisted(store)
      await advance(store, claim, [record('charge', 1, 'done')], { to: 'settled', outcome: bytesOf('x'), retention })
      await pass(retention.keepMs + minuteMs)
      assertIs(await enlist(store), 'expired')
      const again = assertGranted(await enlist(store, anOperation, { onExpired: 'run' }), 'fresh', 1)
      assert.deepEqual(await contents(store), {})
      await advance(store, again, [record('charge', 1, 'anew')])
      assert.deepEqual(await contents(store), { charge: 'anew' })
    },
  },
  {
    name: 'an enlisting repeated with its token keeps what was recorded since',
    guarantee: 'operations',
    async run({ store }) {
      const { token } = request()
      const claim = await enlisted(store, anOperation, { token })
      await advance(store, claim, [record('charge', 1, 'began')])
      const again = assertGranted(await enlist(store, anOperation, { token }), 'fresh', 1)
      assert.equal(again.fence, claim.fence)
      assert.deepEqual(await contents(store), { charge: 'began' })
    },
  },
  {
    name: 'an operation that is given back before it began leaves nothing to a worker',
    guarantee: 'operations',
    async run({ store, advance: pass }) {
      assert.equal(await store.release(await enlisted(store), 'forget'), 'done')
      assert.equal(await operationsOf(store).ledger(anOperation), undefined)
      await pass(leaseMs + minuteMs)
      assert.deepEqual(await dueIds(store), [])
      assertGranted(await enlist(store), 'fresh', 1)
    },
  },
  {
    name: 'an operation forgotten by hand leaves no records to the next',
    guarantee: 'operations',
    async run(subject) {
      const { store } = subject
      const claim = await enlisted(store)
      await advance(store, claim, [record('charge', 1, 'done')])
      await inspectableOf(subject).mend(anOperation, 'forget', 'a test')
      assert.equal(await operationsOf(store).ledger(anOperation), undefined)
      assert.equal(await advance(store, claim, [record('charge', 2, 'zombie')]), 'lost')
      await enlisted(store)
      assert.deepEqual(await contents(store), {})
    },
  },
]

const fencing: readonly ContractCase[] = [
  {
    name: 'after a takeover the old holder can write no record, and can neither settle nor give back',
    guarantee: 'operations',
    async run({ store, another, advance: pass }) {
      const zombie = await enlisted(store)
      await advance(store, zombie, [record('charge', 1, 'began')])
      await pass(leaseMs + minuteMs)
      const heir = assertGranted(await enlist(await another()), 'taken-over', 2)
      assert.deepEqual(await contents(store), { charge: 'began' })
      assert.equal(await advance(store, zombie, [record('charge', 2, 'zombie')]), 'lost')
      assert.equal(await advance(store, zombie, [], { to: 'open', afterMs: 0 }), 'lost')
      const settled = { to: 'settled', outcome: bytesOf('zombie'), retention } as const
      assert.equal(await advance(store, zombie, [record('charge', 2, 'zombie')], settled), 'lost')
      assert.deepEqual(await contents(store), { charge: 'began' })
      assert.equal(await advance(store, heir, [record('charge', 2, 'heir')]), 'done')
      assert.deepEqual(await contents(store), { charge: 'heir' })
      assertBusy(await enlist(store), leaseMs)
    },
  },
  {
    name: 'an operation that is enlisted again after it was forgotten does not revive the old holder',
    guarantee: 'operations',
    async run(subject) {
      const { store } = subject
      const asked = { ...request(), input }
      const zombie = grantedOf(await operationsOf(store).enlist(anOperation, asked))
      await inspectableOf(subject).mend(anOperation, 'forget', 'a test')
      await subject.advance(1)
      const revived = assertGranted(await operationsOf(store).enlist(anOperation, asked), 'fresh', 1)
      const settled = { to: 'settled', outcome: bytesOf('zombie'), retention } as const
      for (const becomes of [running, settled, { to: 'open', afterMs: 0 }] as const) {
        assert.equal(await advance(store, zombie, [record('charge', 1, 'zombie')], becomes), 'lost', becomes.to)
      }
      assert.deepEqual(await contents(store), {})
      assert.equal(await advance(store, revived, [record('charge', 1, 'revived')]), 'done')
    },
  },
  {
    // Stores that write together what comes together: both have the same token, and come in the same write.
    name: 'of two lives of a token that write at once, the old one is lost and the new one is served',
    guarantee: 'operations',
    async run(subject) {
      const { store } = subject
      const asked = times(10).map((n) => ({ subject: key(scope, `life ${n}`), request: { ...request(), input } }))
      const enlistAll = async (): Promise<Claim[]> => {
        const verdicts = asked.map((each) => operationsOf(store).enlist(each.subject, each.request))
        return (await Promise.all(verdicts)).map(grantedOf)
      }
      const zombies = await enlistAll()
      for (const { key: forgotten } of zombies) await inspectableOf(subject).mend(forgotten, 'forget', 'a test')
      await subject.advance(1)
      const heirs = await enlistAll()
      const atOnce = async <T>(write: (claim: Claim, by: string) => Promise<T>): Promise<void> => {
        const answers = zombies.flatMap((zombie, n) => [write(zombie, 'zombie'), write(heirs[n]!, 'heir')])
        assert.deepEqual(
          await Promise.all(answers),
          zombies.flatMap(() => ['lost', 'done']),
        )
      }
      await atOnce((claim) => store.extend(claim, leaseMs))
      await atOnce((claim, by) => advance(store, claim, [record('charge', 1, by)]))
      await atOnce((claim, by) => store.settle(claim, bytesOf(by), retention))
      // Again: now the store must tell them apart when it looks at what is settled already.
      await atOnce((claim, by) => store.settle(claim, bytesOf(by), retention))
      for (const heir of heirs) {
        assert.deepEqual(await contents(store, heir.key), { charge: 'heir' })
        assertSettled(await enlist(store, heir.key), bytesOf('heir'))
      }
    },
  },
  {
    name: 'a holder whose lease is over may still write while nobody has taken over, and its lease is new then',
    guarantee: 'operations',
    async run({ store, advance: pass }) {
      const claim = await enlisted(store)
      await pass(leaseMs + minuteMs)
      assert.equal(await advance(store, claim, [record('charge', 1, 'late')]), 'done')
      assertBusy(await enlist(store), leaseMs)
    },
  },
  {
    name: 'writes repeated after a lost reply are done again: a record, the end, and the giving back',
    guarantee: 'operations',
    async run({ store }) {
      const claim = await enlisted(store)
      for (const _ of times(2)) assert.equal(await advance(store, claim, [record('a', 1, 'began')]), 'done')
      for (const _ of times(2)) assert.equal(await advance(store, claim, [], { to: 'open', afterMs: hourMs }), 'done')
      const next = assertGranted(await enlist(store), 'reopened', 2)
      const settled = { to: 'settled', outcome: bytesOf('the end'), retention } as const
      for (const _ of times(2)) assert.equal(await advance(store, next, [record('a', 2, 'done')], settled), 'done')
      assertSettled(await enlist(store), bytesOf('the end'))
      assert.deepEqual(await contents(store), { a: 'done' })
    },
  },
  {
    name: 'records of operations are not those of other scopes or ids that look alike',
    guarantee: 'operations',
    async run({ store }) {
      const others = [key(scope, 'An operation'), key(scope, 'an operation '), key(`${scope}s`, 'an operation')]
      for (const each of [anOperation, ...others]) {
        const claim = await enlisted(store, each)
        await advance(store, claim, [record('of', 1, `${each.scope}|${each.id}`)])
      }
      for (const each of [anOperation, ...others]) {
        assert.deepEqual(await contents(store, each), { of: `${each.scope}|${each.id}` })
      }
    },
  },
]

const recovery: readonly ContractCase[] = [
  {
    name: 'an operation is due when its lease is over, not before, and for one worker at a time',
    guarantee: 'operations',
    async run({ store, another, advance: pass }) {
      await enlisted(store)
      assert.deepEqual(await dueIds(store), [])
      await pass(leaseMs + minuteMs)
      assert.deepEqual(await dueIds(store), ['an operation'])
      assert.deepEqual(await dueIds(await another()), [])
      await pass(2 * minuteMs)
      assert.deepEqual(await dueIds(await another()), ['an operation'])
    },
  },
  {
    name: 'the longest due comes first, as many as are asked for, and only of this scope',
    guarantee: 'operations',
    async run({ store, advance: pass }) {
      for (const n of times(5)) {
        await enlisted(store, key(scope, `operation ${4 - n}`))
        await enlisted(store, key('contract/operations/other', `operation ${n}`))
        await pass(minuteMs)
      }
      await pass(leaseMs)
      assert.deepEqual(await dueIds(store, 2), ['operation 4', 'operation 3'])
      assert.deepEqual(await dueIds(store, 10), ['operation 2', 'operation 1', 'operation 0'])
    },
  },
  {
    name: 'a hundred due operations are shared by workers that ask at once, each given to one',
    guarantee: 'operations',
    async run({ store, another, advance: pass }) {
      const stores = [store, await another()]
      await Promise.all(times(100).map((n) => enlisted(store, key(scope, `operation ${n}`))))
      await pass(leaseMs + minuteMs)
      const found: string[] = []
      while (found.length < 100) {
        const rounds = await Promise.all(times(4).map((n) => dueIds(stores[n % 2]!, 20)))
        if (rounds.flat().length === 0) break
        found.push(...rounds.flat())
      }
      assert.equal(found.length, 100)
      assert.equal(new Set(found).size, 100)
    },
  },
  {
    name: 'what was given back is due after its pause, and can be taken up before by a retry',
    guarantee: 'operations',
    async run({ store, advance: pass }) {
      const claim = await enlisted(store)
      await advance(store, claim, [record('a', 1, 'done')], { to: 'open', afterMs: hourMs })
      await pass(30 * minuteMs)
      assert.deepEqual(await dueIds(store), [])
      await pass(40 * minuteMs)
      assert.deepEqual(await dueIds(store), ['an operation'])
      assertGranted(await enlist(store), 'reopened', 2)
      assert.deepEqual(await contents(store), { a: 'done' })
      assert.deepEqual(await dueIds(store), [])
    },
  },
  {
    name: 'what is parked is not due, and stays parked when it is enlisted again and given back',
    guarantee: 'operations',
    async run({ store, advance: pass }) {
      const claim = await enlisted(store)
      assert.equal((await operationsOf(store).ledger(anOperation))!.dueAtMs === undefined, false)
      await advance(store, claim, [record('', 1, 'parked')], { to: 'open' })
      await pass(24 * hourMs - minuteMs)
      assert.deepEqual(await dueIds(store), [])
      assert.equal((await operationsOf(store).ledger(anOperation))!.dueAtMs, undefined)
      const looking = assertGranted(await enlist(store), 'reopened', 2)
      assert.equal((await operationsOf(store).ledger(anOperation))!.dueAtMs, undefined)
      await pass(leaseMs + minuteMs)
      assert.deepEqual(await dueIds(store), [])
      await advance(store, looking, [], { to: 'open', afterMs: 0 })
      assert.deepEqual(await dueIds(store), ['an operation'])
    },
  },
  {
    name: 'what is settled is not due, and is finished',
    guarantee: 'operations',
    async run({ store, advance: pass }) {
      const claim = await enlisted(store)
      await enlisted(store, key(scope, 'another'))
      await advance(store, claim, [record('a', 1, 'done')], { to: 'settled', outcome: bytesOf('x'), retention })
      await pass(leaseMs + minuteMs)
      assert.deepEqual(await dueIds(store), ['another'])
      const unfinished = await operationsOf(store).unfinished(scope, { limit: 10 })
      assert.deepEqual(
        unfinished.map((each) => each.id),
        ['another'],
      )
      assert.deepEqual(await contents(store), { a: 'done' })
    },
  },
  {
    name: 'unfinished operations are listed by id, page after page',
    guarantee: 'operations',
    async run({ store }) {
      for (const id of ['c', 'a', 'd', 'b']) await enlisted(store, key(scope, id))
      await enlisted(store, key('contract/operations/other', 'e'))
      const first = await operationsOf(store).unfinished(scope, { limit: 3 })
      assert.deepEqual(
        first.map((each) => each.id),
        ['a', 'b', 'c'],
      )
      const second = await operationsOf(store).unfinished(scope, { limit: 3, after: 'c' })
      assert.deepEqual(second, [key(scope, 'd')])
    },
  },
  {
    name: 'what was dismissed is not due again, unless it was enlisted since',
    guarantee: 'operations',
    async run({ store, advance: pass }) {
      const operations = operationsOf(store)
      await enlisted(store)
      await pass(leaseMs + minuteMs)
      const [stale] = await operations.due(scope, { limit: 1, holdMs: minuteMs })
      await enlisted(store)
      await operations.dismiss(stale!)
      await pass(leaseMs + minuteMs)
      const [found] = await operations.due(scope, { limit: 1, holdMs: minuteMs })
      assert.ok(found, 'expected the operation that was enlisted since to be due')
      await operations.dismiss(found)
      await pass(hourMs)
      assert.deepEqual(await dueIds(store), [])
    },
  },
  {
    name: 'a wish to cancel is told to the holder with its next write, and to whoever takes it up',
    guarantee: 'operations',
    async run({ store, another }) {
      const operations = operationsOf(store)
      assert.equal(await operations.requestCancel(anOperation, 'too early'), false)
      const claim = await enlisted(store)
      assert.equal(await operationsOf((await another()) as Store).requestCancel(anOperation, 'changed my mind'), true)
      assert.equal(await advance(store, claim, [record('a', 1, 'done')]), 'cancelled')
      assert.deepEqual(await contents(store), { a: 'done' })
      assert.equal((await operations.ledger(anOperation))!.cancelReason, 'changed my mind')
      assert.equal(await advance(store, claim, [], { to: 'open' }), 'cancelled')
      assertGranted(await enlist(store), 'reopened', 2)
      assert.equal((await operations.ledger(anOperation))!.cancelReason, 'changed my mind')
    },
  },
  {
    name: 'a wish to cancel makes a waiting or parked operation due, and changes nothing that is settled',
    guarantee: 'operations',
    async run({ store }) {
      const operations = operationsOf(store)
      const claim = await enlisted(store)
      await advance(store, claim, [], { to: 'open' })
      assert.equal(await operations.requestCancel(anOperation, 'enough'), true)
      assert.deepEqual(await dueIds(store), ['an operation'])
      const next = await enlisted(store)
      await advance(store, next, [], { to: 'settled', outcome: bytesOf('cancelled'), retention })
      assert.equal(await operations.requestCancel(anOperation, 'again'), false)
      assertSettled(await enlist(store), bytesOf('cancelled'))
    },
  },
  {
    name: 'what is settled is kept for as long as its settle says, though it was enlisted to be kept for longer',
    guarantee: 'operations',
    async run({ store, advance: pass }) {
      const claim = await enlisted(store, anOperation, {
        retention: { ...retention, keepMs: 1_000 * retention.keepMs },
      })
      await advance(store, claim, [record('a', 1, 'done')], { to: 'settled', outcome: bytesOf('x'), retention })
      await pass(retention.keepMs - hourMs)
      assertSettled(await enlist(store), bytesOf('x'))
      await pass(2 * hourMs)
      const sweepable = sweepableOf(store)
      for (let more = true; more;) more = (await sweepable.sweep({ limit: 100 })).more
      assertIs(await enlist(store), 'expired')
    },
  },
  {
    name: 'a sweep takes the records with the entry, and no others',
    guarantee: 'operations',
    async run({ store, advance: pass }) {
      const old = await enlisted(store)
      await advance(store, old, [record('a', 1, 'old')], { to: 'settled', outcome: bytesOf('x'), retention })
      await pass(retention.keepMs - hourMs)
      const young = key(scope, 'young')
      const claim = await enlisted(store, young)
      await advance(store, claim, [record('a', 1, 'young')])
      await pass(2 * hourMs)
      const sweepable = sweepableOf(store)
      for (let more = true; more;) more = (await sweepable.sweep({ limit: 100 })).more
      assertIs(await enlist(store), 'expired')
      assert.deepEqual((await operationsOf(store).ledger(anOperation))?.records ?? [], [])
      assert.deepEqual(await contents(store, young), { a: 'young' })
    },
  },
  {
    name: 'a sweep leaves the records of an operation that has run for longer than it would be kept',
    guarantee: 'operations',
    async run({ store, advance: pass }) {
      const claim = await enlisted(store)
      await advance(store, claim, [record('a', 1, 'kept')])
      for (const _ of times(3)) {
        await pass(retention.keepMs)
        assert.equal(await advance(store, claim, []), 'done')
        const sweepable = sweepableOf(store)
        for (let more = true; more;) more = (await sweepable.sweep({ limit: 100 })).more
      }
      assert.deepEqual(await contents(store), { a: 'kept' })
    },
  },
]

export const operationCases: readonly ContractCase[] = [...records, ...fencing, ...recovery]

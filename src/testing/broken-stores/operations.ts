// Broken stores, part 5: what is recorded of an operation gets lost, mixed up or written by the wrong caller, or a worker gets
// what it should not have.

import { OnceError } from '../../core/errors.ts'
import { key as keyOf, keyString } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { BegunStep, Change, Claim, StepLedger } from '../../core/store.ts'
import type { MemoryData, MemoryOperation, MemoryStore } from '../../stores/memory.ts'
import { asHolder, broken, brokenBy, byToken, edit, entryOf, remove, stateOf } from './broken-store.ts'
import type { BrokenStore } from './broken-store.ts'
import type { PretendStore, PretendTransaction } from './pretend-database.ts'

function operationOf(data: MemoryData, key: Key): MemoryOperation | undefined {
  return data.operations.get(keyString(key))
}

/** Writes behind the store's back. */
function editOperation(data: MemoryData, key: Key, changes: Partial<MemoryOperation>): void {
  const operation = operationOf(data, key)
  if (operation) data.operations.set(keyString(key), { ...operation, ...changes })
}

/** The store with something done after every enlisting that is granted. */
function afterEnlisting(
  store: MemoryStore,
  data: MemoryData,
  then: (key: Key, before: MemoryOperation | undefined, how: 'fresh' | 'reopened' | 'taken-over') => void,
): Pick<StepLedger, 'enlist'> {
  return {
    async enlist(key, request) {
      const before = operationOf(data, key)
      const verdict = await store.enlist(key, request)
      if (verdict.is === 'granted') then(key, before, verdict.how)
      return verdict
    },
  }
}

/** The store with every change made into another. */
function changing(store: MemoryStore, into: (change: Change, claim: Claim) => Change): Pick<StepLedger, 'advance'> {
  return { advance: (claim, change) => store.advance(claim, into(change, claim)) }
}

const records: readonly BrokenStore[] = [
  broken(
    'keeps no input of an operation',
    'an operation is enlisted once; a retry is told what became of it, and its input is kept',
    (store, data) => afterEnlisting(store, data, (key) => edit(data, key, { input: new Uint8Array(0) })),
  ),
  broken(
    'gives a life that a worker began by mistake an input',
    'a worker enlists without an input: the one that is there stays, and what it should begin by mistake has none',
    (store) => ({ enlist: (key, request) => store.enlist(key, { input: new Uint8Array(0), ...request }) }),
  ),
  broken(
    'does not compare what an operation is enlisted with',
    'an operation is enlisted once; a retry is told what became of it, and its input is kept',
    (store, data) => ({
      enlist: (key, request) =>
        store.enlist(key, { ...request, fingerprint: entryOf(data, key)?.fingerprint ?? request.fingerprint }),
    }),
  ),
  broken(
    'reads, then enlists',
    'of 100 that enlist one operation at once through two instances, one is granted',
    (store, data) => ({
      async enlist(key, request) {
        if (!(await store.show(key))) remove(data, key)
        return store.enlist(key, request)
      },
    }),
  ),
  broken(
    'keeps records as text',
    'records come back byte for byte, the last revision of each name, with the time of their writing',
    (store) =>
      changing(store, (change) => ({
        ...change,
        records: change.records.map((record) => ({
          ...record,
          content: new TextEncoder().encode(new TextDecoder().decode(record.content)),
        })),
      })),
  ),
  broken(
    'folds the case of the names of records',
    'records come back byte for byte, the last revision of each name, with the time of their writing',
    (store) =>
      changing(store, (change) => ({
        ...change,
        records: change.records.map((record) => ({ ...record, name: record.name.toLowerCase() })),
      })),
  ),
  broken(
    'keeps the first revision of a record',
    'records come back byte for byte, the last revision of each name, with the time of their writing',
    (store, data) =>
      changing(store, (change, { key }) => ({
        ...change,
        records: change.records.filter(({ name }) => !operationOf(data, key)?.records.has(name)),
      })),
  ),
  broken(
    'lets a late record overwrite a later one',
    'a record that comes late never overwrites a later one',
    (store, data) =>
      changing(store, (change, { key }) => ({
        ...change,
        records: change.records.map((record) => ({
          ...record,
          revision: (operationOf(data, key)?.records.get(record.name)?.revision ?? 0) + 1,
        })),
      })),
  ),
  broken(
    'mixes up what operations record at once',
    'many operations write their records at once, and none is lost or mixed up',
    (store) => {
      let latest: Change['records'] = []
      return {
        async advance(claim, change) {
          latest = change.records
          await Promise.resolve()
          return store.advance(claim, { ...change, records: latest })
        },
      }
    },
  ),
  broken(
    'keeps the records of the last life',
    'a fresh life of the key begins without the records of the last one',
    (store, data) =>
      afterEnlisting(store, data, (key, before) => before && editOperation(data, key, { records: before.records })),
  ),
  broken(
    'clears the records when an enlisting is repeated',
    'an enlisting repeated with its token keeps what was recorded since',
    (store, data) =>
      afterEnlisting(store, data, (key, _before, how) => {
        if (how === 'fresh') editOperation(data, key, { records: new Map() })
      }),
  ),
  broken(
    'keeps the records of what was forgotten by hand',
    'an operation forgotten by hand leaves no records to the next',
    (store, data) => ({
      async mend(key, action, reason) {
        const before = operationOf(data, key)
        const mended = await store.mend(key, action, reason)
        if (before) data.operations.set(keyString(key), before)
        return mended
      },
      async ledger(key) {
        const found = operationOf(data, key)
        return found && { ...found, records: [...found.records.values()] }
      },
    }),
  ),
  broken(
    'forgets an entry and keeps its operation',
    'an operation that is given back before it began leaves nothing to a worker',
    (store, data) => ({
      async release(claim, how) {
        const operation = operationOf(data, claim.key)
        const fenced = await store.release(claim, how)
        if (operation) data.operations.set(keyString(claim.key), operation)
        return fenced
      },
    }),
  ),
]

const zombies = 'after a takeover the old holder can write no record, and can neither settle nor give back'

const fencing: readonly BrokenStore[] = [
  broken('records without looking at the token', zombies, (store, data) => ({
    advance: (claim, change) => store.advance(asHolder(data, claim), change),
  })),
  broken('keeps the records of a zombie that it calls lost', zombies, (store, data) => ({
    async advance(claim, change) {
      const advanced = await store.advance(claim, change)
      if (advanced === 'lost') await store.advance(asHolder(data, claim), { ...change, becomes: stillRunning })
      return advanced
    },
  })),
  broken('clears the records in a takeover', zombies, (store, data) =>
    afterEnlisting(store, data, (key, _before, how) => {
      if (how === 'taken-over') editOperation(data, key, { records: new Map() })
    }),
  ),
  broken('lets a zombie give an operation back', zombies, (store, data) => ({
    advance: (claim, change) => store.advance(change.becomes.to === 'open' ? asHolder(data, claim) : claim, change),
  })),
  broken('lets a zombie settle an operation', zombies, (store, data) => ({
    advance: (claim, change) => store.advance(change.becomes.to === 'settled' ? asHolder(data, claim) : claim, change),
  })),
  broken(
    'knows the holder of an operation by its token alone',
    'an operation that is enlisted again after it was forgotten does not revive the old holder',
    (store, data) => ({ advance: (claim, change) => store.advance(byToken(data, claim), change) }),
  ),
  broken(
    'wants a living lease for a record',
    'a holder whose lease is over may still write while nobody has taken over, and its lease is new then',
    (store) => ({
      advance: async (claim, change) =>
        (await stateOf(store, claim.key)) === 'abandoned' ? 'lost' : store.advance(claim, change),
    }),
  ),
  broken(
    'records without renewing the lease',
    'a holder whose lease is over may still write while nobody has taken over, and its lease is new then',
    (store, data) => ({
      async advance(claim, change) {
        const leaseUntilMs = entryOf(data, claim.key)?.leaseUntilMs
        const advanced = await store.advance(claim, change)
        if (change.becomes.to === 'running' && leaseUntilMs !== undefined) edit(data, claim.key, { leaseUntilMs })
        return advanced
      },
    }),
  ),
  broken(
    'does not recognise a giving back that comes again',
    'writes repeated after a lost reply are done again: a record, the end, and the giving back',
    (store, data) => ({
      advance: async (claim, change) =>
        entryOf(data, claim.key)?.wrote === 'release' ? 'lost' : store.advance(claim, change),
    }),
  ),
  broken(
    'mixes up operations whose ids look alike',
    'records of operations are not those of other scopes or ids that look alike',
    (store) => {
      const folded = ({ scope, id }: Key): Key => keyOf(scope, id.trim().toLowerCase())
      return {
        enlist: (key, request) => store.enlist(folded(key), request),
        advance: (claim, change) => store.advance({ ...claim, key: folded(claim.key) }, change),
      }
    },
  ),
]

const stillRunning: Change['becomes'] = { to: 'running', leaseMs: 60_000 }

const recovery: readonly BrokenStore[] = [
  broken(
    'hands out what is still leased',
    'an operation is due when its lease is over, not before, and for one worker at a time',
    (store, data) => afterEnlisting(store, data, (key) => editOperation(data, key, { dueAtMs: data.now() })),
  ),
  broken(
    'hands out what is due to two workers',
    'an operation is due when its lease is over, not before, and for one worker at a time',
    (store, data) => ({
      async due(scope, options) {
        const before = new Map(data.operations)
        const found = await store.due(scope, options)
        for (const { key } of found) editOperation(data, key, { dueAtMs: before.get(keyString(key))!.dueAtMs })
        return found
      },
    }),
  ),
  broken(
    'hands out what is due once and for all',
    'an operation is due when its lease is over, not before, and for one worker at a time',
    (store) => ({ due: (scope, { limit }) => store.due(scope, { limit, holdMs: 1e12 }) }),
  ),
  broken(
    'hands out the newest first',
    'the longest due comes first, as many as are asked for, and only of this scope',
    (store) => ({
      due: async (scope, { limit, holdMs }) =>
        (await store.due(scope, { limit: 1e6, holdMs })).toReversed().slice(0, limit),
    }),
  ),
  broken(
    'hands out the operations of other scopes',
    'the longest due comes first, as many as are asked for, and only of this scope',
    (store, data) => ({
      async due(scope, { limit, holdMs }) {
        const scopes = new Set([scope, ...Array.from(data.operations.values(), ({ key }) => key.scope)])
        const found = await Promise.all(Array.from(scopes, (each) => store.due(each, { limit, holdMs })))
        return found.flat()
      },
    }),
  ),
  broken(
    'reads what is due, then holds it',
    'a hundred due operations are shared by workers that ask at once, each given to one',
    (store, data) => ({
      async due(scope, options) {
        const before = new Map(data.operations)
        await Promise.resolve()
        for (const [name, operation] of before) data.operations.set(name, operation)
        return store.due(scope, options)
      },
    }),
  ),
  broken(
    'forgets the pause before the next attempt',
    'what was given back is due after its pause, and can be taken up before by a retry',
    (store) =>
      changing(store, (change) =>
        change.becomes.to === 'open' ? { ...change, becomes: { to: 'open', afterMs: 0 } } : change,
      ),
  ),
  broken(
    'clears the records when an operation is given back',
    'what was given back is due after its pause, and can be taken up before by a retry',
    (store, data) => ({
      async advance(claim, change) {
        const advanced = await store.advance(claim, change)
        if (change.becomes.to === 'open') editOperation(data, claim.key, { records: new Map() })
        return advanced
      },
    }),
  ),
  broken(
    'hands out what is parked',
    'what is parked is not due, and stays parked when it is enlisted again and given back',
    (store) =>
      changing(store, ({ records: written, becomes }) => ({
        records: written,
        becomes: becomes.to === 'open' ? { to: 'open', afterMs: becomes.afterMs ?? 0 } : becomes,
      })),
  ),
  broken(
    'takes an operation out of the park when somebody looks at it',
    'what is parked is not due, and stays parked when it is enlisted again and given back',
    (store, data) => afterEnlisting(store, data, (key) => editOperation(data, key, { dueAtMs: data.now() + 60_000 })),
  ),
  broken('hands out what is settled', 'what is settled is not due, and is finished', (store, data) => ({
    async advance(claim, change) {
      const { dueAtMs } = operationOf(data, claim.key) ?? {}
      const advanced = await store.advance(claim, change)
      if (change.becomes.to === 'settled') editOperation(data, claim.key, { dueAtMs })
      return advanced
    },
  })),
  broken(
    'lists unfinished operations as they were enlisted',
    'unfinished operations are listed by id, page after page',
    (_store, data) => ({
      unfinished: async (scope, { limit }) =>
        Array.from(data.operations.values(), ({ key }) => key)
          .filter((key) => key.scope === scope)
          .slice(0, limit),
    }),
  ),
  broken(
    'dismisses what was enlisted since',
    'what was dismissed is not due again, unless it was enlisted since',
    (_store, data) => ({
      dismiss: async ({ key }) => editOperation(data, key, { dueAtMs: undefined, settled: true }),
    }),
  ),
  broken('dismisses nothing', 'what was dismissed is not due again, unless it was enlisted since', () => ({
    dismiss: async () => undefined,
  })),
  broken(
    'does not tell the holder of a wish to cancel',
    'a wish to cancel is told to the holder with its next write, and to whoever takes it up',
    (store) => ({
      async advance(claim, change) {
        const advanced = await store.advance(claim, change)
        return advanced === 'cancelled' ? 'done' : advanced
      },
    }),
  ),
  broken(
    'forgets a wish to cancel when it is enlisted again',
    'a wish to cancel is told to the holder with its next write, and to whoever takes it up',
    (store, data) => afterEnlisting(store, data, (key) => editOperation(data, key, { cancelReason: undefined })),
  ),
  broken(
    'lets the parked sleep on that are to be cancelled',
    'a wish to cancel makes a waiting or parked operation due, and changes nothing that is settled',
    (store, data) => ({
      async requestCancel(key, reason) {
        const { dueAtMs } = operationOf(data, key) ?? {}
        const isWished = await store.requestCancel(key, reason)
        editOperation(data, key, { dueAtMs })
        return isWished
      },
    }),
  ),
  broken(
    'says that it will cancel what is settled',
    'a wish to cancel makes a waiting or parked operation due, and changes nothing that is settled',
    (store) => ({ requestCancel: async (key, reason) => (await store.requestCancel(key, reason)) || true }),
  ),
  broken(
    'keeps what is settled for as long as it was enlisted for',
    'what is settled is kept for as long as its settle says, though it was enlisted to be kept for longer',
    (store, data) => ({
      async advance(claim, change) {
        const { keepMs } = entryOf(data, claim.key) ?? {}
        const advanced = await store.advance(claim, change)
        if (change.becomes.to === 'settled' && keepMs !== undefined) edit(data, claim.key, { keepMs })
        return advanced
      },
    }),
  ),
  broken(
    'leaves the records behind in a sweep',
    'a sweep takes the records with the entry, and no others',
    (store, data) => ({
      async sweep(options) {
        const before = new Map(data.operations)
        const swept = await store.sweep(options)
        for (const [name, operation] of before) data.operations.set(name, operation)
        return swept
      },
    }),
  ),
  broken(
    'sweeps the records of the living',
    'a sweep takes the records with the entry, and no others',
    (store, data) => ({
      async sweep(options) {
        for (const { key } of data.operations.values()) editOperation(data, key, { records: new Map() })
        return store.sweep(options)
      },
    }),
  ),
]

function brokenStep(
  name: string,
  caughtBy: string,
  mistake: (
    begun: BegunStep<PretendTransaction>,
    store: PretendStore,
    claim: Claim,
    data: MemoryData,
  ) => Partial<BegunStep<PretendTransaction>>,
): BrokenStore {
  return brokenBy(name, caughtBy, {
    store: (store, { data }) => ({
      ...store,
      async beginStep(claim) {
        const begun = await store.beginStep(claim)
        return begun && { ...begun, ...mistake(begun, store, claim, data) }
      },
    }),
  })
}

const steps: readonly BrokenStore[] = [
  brokenStep('commits a step without its record', 'a step in a transaction commits with its record', ({ commit }) => ({
    commit: ({ becomes }) => commit({ records: [], becomes }),
  })),
  brokenStep(
    'commits a record without its step',
    'a step in a transaction commits with its record',
    ({ tx, commit }) => ({
      commit(change) {
        tx.effects.length = 0
        return commit(change)
      },
    }),
  ),
  brokenStep(
    'records a step that has committed by itself',
    'a step that commits its transaction itself is OUTCOME_UNKNOWN, and is not recorded',
    ({ tx, commit }) => ({
      commit(change) {
        tx.endedByHand = false
        tx.over = false
        return commit(change)
      },
    }),
  ),
  brokenStep(
    'commits a step when it should roll back',
    'a step that is rolled back leaves neither effect nor record, and the operation goes on',
    ({ commit }) => ({ rollback: async () => void (await commit({ records: [], becomes: stillRunning })) }),
  ),
  brokenBy('begins a step for a zombie', 'a step of a holder that was taken over does not begin', {
    store: (store, { data }) => ({ ...store, beginStep: (claim) => store.beginStep(asHolder(data, claim)) }),
  }),
  brokenBy(
    'begins a step for a token, whichever life it is from',
    'a step of a holder whose claim came again after its operation was forgotten does not begin',
    { store: (store, { data }) => ({ ...store, beginStep: (claim) => store.beginStep(byToken(data, claim)) }) },
  ),
  brokenStep(
    'commits the step of a zombie',
    'a step whose holder is taken over while it runs is rolled back at its commit',
    (begun, store, claim, data) => ({
      async commit(change) {
        const held = await store.beginStep(asHolder(data, claim))
        held!.tx.effects.push(...begun.tx.effects)
        return held!.commit(change)
      },
    }),
  ),
  brokenStep(
    'lets an abandoned step write on',
    'what a step writes after it was abandoned reaches nobody',
    ({ commit }) => ({ abandon: async () => void (await commit({ records: [], becomes: stillRunning })) }),
  ),
  brokenStep(
    'does not tell a step of a wish to cancel',
    'a step in a transaction is told of a wish to cancel',
    ({ commit }) => ({
      async commit(change) {
        const advanced = await commit(change)
        return advanced === 'cancelled' ? 'done' : advanced
      },
    }),
  ),
  brokenStep(
    'writes the record of a step outside of its transaction',
    'a step whose connection is cut before COMMIT leaves neither effect nor record',
    ({ commit }, store, claim) => ({
      async commit(change) {
        await store.advance(claim, change)
        return commit(change)
      },
    }),
  ),
  brokenStep(
    'takes an unknown COMMIT of a step for a rollback',
    'a step whose reply to COMMIT is lost has both effect and record, and is not taken for undone',
    ({ commit }) => ({
      commit: (change) =>
        commit(change).catch((cause: unknown) => {
          throw new OnceError('STORE_UNAVAILABLE', { message: 'The commit failed.', cause })
        }),
    }),
  ),
]

const faults: readonly BrokenStore[] = [
  brokenBy('loses records in a crash', 'what was recorded of an operation survives a crash of the server', {
    crash: (data) => data.operations.clear(),
  }),
  brokenBy(
    'swallows a record that it could not write',
    'a store that cannot be reached writes no record, and says so soon',
    {
      store: (store) => ({
        ...store,
        advance: (claim, change) => store.advance(claim, change).catch(() => 'done'),
      }),
    },
  ),
]

export const brokenOperations: readonly BrokenStore[] = [...records, ...fencing, ...recovery, ...steps, ...faults]

// Wrong stores and wrong uses of operations, each with the assertion that must find it.

import { NotBegunError } from '../../../src/core/errors.ts'
import { keyString } from '../../../src/core/key.ts'
import type { OperationOp, Step } from '../../../src/core/operations.ts'
import type { Change, Claim, LedgerRecord } from '../../../src/core/store.ts'
import type { MemoryData, MemoryOperation } from '../../../src/stores/memory.ts'
import type { Assertion } from '../../../src/testing/history-checker.ts'
import type { SimulatedStep } from '../world/operations.ts'
import type { WrongStore } from '../world/server.ts'
import type { WrongOperation } from '../operation-workload.ts'

export interface KnownWrongOperation extends WrongOperation {
  readonly name: string
  readonly foundBy: Assertion
}

const wrongStore = (name: string, foundBy: Assertion, store: WrongStore): KnownWrongOperation => ({
  name,
  foundBy,
  store,
})

type Op = OperationOp<SimulatedStep>
type AnyStep = Step<unknown>

/** The function of the operation is given steps that were changed on their way. */
const wrongStep = (name: string, foundBy: Assertion, change: (step: AnyStep) => AnyStep): KnownWrongOperation => ({
  name,
  foundBy,
  op: (op: Op) =>
    Object.create(op, {
      step: { value: (step: string, given: AnyStep) => op.step(step, change(given)) },
    }) as Op,
})

const asHolder = (data: MemoryData, claim: Claim): Claim => {
  const { token, fence } = data.entries.get(keyString(claim.key)) ?? claim
  return { ...claim, token, fence }
}
/** Whichever life of the operation the token is from. */
const byToken = (data: MemoryData, claim: Claim): Claim =>
  data.entries.get(keyString(claim.key))?.token === claim.token ? asHolder(data, claim) : claim

function headOf({ content }: LedgerRecord): { readonly state?: string; readonly order?: number } {
  return JSON.parse(Buffer.from(content.subarray(0, content.indexOf(10))).toString()) as { state?: string }
}

function without(change: Change, states: readonly string[]): Change {
  const records = change.records.filter((record) => !states.includes(headOf(record).state ?? ''))
  return Object.assign({}, change, { records })
}

const stores: readonly KnownWrongOperation[] = [
  wrongStore('records without looking at the token', 'record-by-holder', (store, data) => ({
    async advance(claim, change) {
      const operation = data.operations.get(keyString(claim.key))
      const advanced = await store.advance(claim, change)
      if (advanced !== 'lost' || !operation) return advanced
      const records = new Map(operation.records)
      for (const record of change.records) records.set(record.name, { ...record, atMs: data.now() })
      data.operations.set(keyString(claim.key), { ...operation, records })
      return 'done'
    },
  })),
  wrongStore('lets a zombie write as the holder', 'holder-writes', (store, data) => ({
    advance: (claim, change) => store.advance(asHolder(data, claim), change),
  })),
  wrongStore('knows a holder by its token alone', 'holder-writes', (store, data) => ({
    advance: (claim, change) => store.advance(byToken(data, claim), change),
  })),
  wrongStore('clears the records in a takeover', 'records-in-order', (store, data) => ({
    async enlist(key, request) {
      const verdict = await store.enlist(key, request)
      const operation = data.operations.get(keyString(key))
      if (verdict.is === 'granted' && verdict.how === 'taken-over' && operation) {
        data.operations.set(keyString(key), { ...operation, records: new Map() })
      }
      return verdict
    },
  })),
  wrongStore('lets a late record overwrite a later one', 'records-in-order', (store, data) => ({
    advance(claim, change) {
      const known = data.operations.get(keyString(claim.key))?.records
      const records = change.records.map((record) => ({
        ...record,
        revision: (known?.get(record.name)?.revision ?? 0) + 1,
      }))
      return store.advance(claim, Object.assign({}, change, { records }))
    },
  })),
  wrongStore('does not tell the holder of a wish to cancel', 'cancel-heard', (store) => ({
    async advance(claim, change) {
      const advanced = await store.advance(claim, change)
      return advanced === 'cancelled' ? 'done' : advanced
    },
  })),
  wrongStore('hands nothing to workers', 'operation-ends', () => ({ due: async () => [] })),
  wrongStore('does not record that a step begins', 'began-before-run', (store) => ({
    advance: (claim, change) => store.advance(claim, without(change, ['began'])),
  })),
  wrongStore('does not record that a step is done', 'step-not-again', (store, data) => ({
    async ledger(key) {
      const ledger = await store.ledger(key)
      const isDone = (name: string): boolean =>
        headOf(data.operations.get(keyString(key))!.records.get(name)!).state === 'done'
      return ledger && { ...ledger, records: ledger.records.filter(({ name }) => name === '' || !isDone(name)) }
    },
  })),
  wrongStore('forgets what has been undone', 'step-not-again', (store, data) => ({
    async ledger(key) {
      const ledger = await store.ledger(key)
      const operation = data.operations.get(keyString(key))
      const records = ledger?.records.map((record) => {
        if (record.name === '' || headOf(record).state !== 'undone') return record
        const text = Buffer.from(record.content).toString('latin1').replace('"undone"', '"undoing"')
        return { ...record, content: Buffer.from(text, 'latin1') }
      })
      return ledger && operation && { ...ledger, records: records! }
    },
  })),
  wrongStore('mixes up the order of the steps', 'undo-in-reverse', (store) => ({
    async ledger(key) {
      const ledger = await store.ledger(key)
      const records = ledger?.records.map((record) => {
        const text = Buffer.from(record.content).toString('latin1')
        const turned = text.replace(/"order":(\d+)/, (_, order: string) => `"order":${100 - Number(order)}`)
        return { ...record, content: Buffer.from(turned, 'latin1') }
      })
      return ledger && { ...ledger, records: records! }
    },
  })),
  wrongStore('sweeps what is recorded of an operation that is not finished', 'records-kept', (store, data) => ({
    async sweep(options) {
      for (const [name, { settled }] of data.operations) if (!settled) data.operations.delete(name)
      return store.sweep(options)
    },
  })),
  wrongStore('keeps what was recorded when its entry is swept', 'storage-bounded', (store, data) => ({
    async sweep(options) {
      const before = [...data.operations]
      const swept = await store.sweep(options)
      for (const [name, operation] of before) if (!data.operations.has(name)) data.operations.set(name, operation)
      return swept
    },
  })),
  wrongStore('lets an operation expire that is not finished', 'operation-ends', (store) => ({
    enlist: (key, request) => store.enlist(key, { ...request, retention: { keepMs: 100, tombstoneMs: 0 } }),
  })),
  wrongStore('begins a new life with the records of the one before', 'ends-whole', (store, data) => {
    const kept = new Map<string, MemoryOperation['records']>()
    return {
      async enlist(key, request) {
        const name = keyString(key)
        const before = data.operations.get(name)?.records
        if (before && before.size > 0) kept.set(name, before)
        const verdict = await store.enlist(key, request)
        const [operation, records] = [data.operations.get(name), kept.get(name)]
        if (verdict.is === 'granted' && verdict.how === 'fresh' && operation && records) {
          data.operations.set(name, { ...operation, records })
        }
        return verdict
      },
    }
  }),
  wrongStore('makes due what is parked, when somebody asks for it', 'parked-stays', (store, data) => ({
    async enlist(key, request) {
      const verdict = await store.enlist(key, request)
      const operation = data.operations.get(keyString(key))
      if (verdict.is === 'granted' && operation) {
        data.operations.set(keyString(key), { ...operation, dueAtMs: data.now() + request.leaseMs })
      }
      return verdict
    },
  })),
  wrongStore('does not tell who asks that it is parked', 'parked-stays', (store, data) => ({
    async ledger(key) {
      const ledger = await store.ledger(key)
      return ledger && { ...ledger, dueAtMs: ledger.dueAtMs ?? data.now() }
    },
  })),
  {
    name: 'commits a step without its record',
    foundBy: 'step-once',
    connection: (store) => ({
      ...store,
      async beginStep(claim) {
        const begun = await store.beginStep(claim)
        return begun && { ...begun, commit: (change) => begun.commit(without(change, ['done', 'undone'])) }
      },
    }),
  },
  {
    name: 'writes what a step writes outside of its transaction',
    foundBy: 'step-once',
    connection: (store) => ({
      ...store,
      async beginStep(claim) {
        const begun = await store.beginStep(claim)
        return begun && { ...begun, tx: { writeLine: (line) => begun.tx.writeLine(() => {}).then(line) } }
      },
    }),
  },
  {
    name: 'commits the step of a zombie',
    foundBy: 'step-once',
    connection: (store, { data }) => ({
      ...store,
      async beginStep(claim) {
        const lines: (() => void)[] = []
        const begun = await store.beginStep(claim)
        return (
          begun && {
            ...begun,
            tx: { writeLine: (line) => begun.tx.writeLine(() => {}).then(() => void lines.push(line)) },
            async commit(change) {
              const advanced = await begun.commit(change)
              for (const line of lines) line()
              return advanced === 'lost' && data.entries.has(keyString(claim.key)) ? 'done' : advanced
            },
          }
        )
      },
    }),
  },
]

const uses: readonly KnownWrongOperation[] = [
  { name: 'says that it is of a newer version than it is', foundBy: 'newer-untouched', version: 2 },
  wrongStep('does not say what a step is asked with', 'step-as-asked', ({ fingerprint: _asked, ...step }) => step),
  wrongStep('hands out another key for each attempt', 'step-once', (step) => ({
    ...step,
    run: (context) => step.run({ ...context, key: context.token, signal: context.signal }),
  })),
  wrongStep('guesses what is in doubt', 'step-once', ({ inDoubt: _inDoubt, ...step }) => step),
  wrongStep('does not look before it runs again', 'step-once', ({ lookup: _lookup, ...step }) => step),
  wrongStep('takes what a lookup cannot tell for not found', 'step-once', (step) => ({
    ...step,
    ...(step.lookup && {
      async lookup(context) {
        const found = await step.lookup!(context)
        return found === 'unknown' ? 'not-found' : found
      },
    }),
  })),
  wrongStep('takes every failure for one without effect', 'step-once', (step) => ({
    ...step,
    async run(context) {
      try {
        return await step.run(context)
      } catch (error) {
        throw new NotBegunError(`planned: ${String(error)}`)
      }
    },
  })),
  wrongStep('swallows the failure of an undo', 'ends-whole', (step) => ({
    ...step,
    ...(step.undo && {
      async undo(context) {
        await Promise.resolve(step.undo!(context)).catch(() => {})
      },
    }),
  })),
  wrongStep('undoes only what is known to be done', 'ends-whole', (step) => ({
    ...step,
    ...(step.undo && {
      undo: (context) => (context.forward === 'done' ? step.undo!(context) : undefined),
    }),
  })),
]

export const knownWrongOperations: readonly KnownWrongOperation[] = [...stores, ...uses]

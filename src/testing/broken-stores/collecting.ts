// Broken stores, part 6: the writes that an effect collected and its outcome part ways.

import { OnceError } from '../../core/errors.ts'
import { byToken, brokenBy, entryOf } from './broken-store.ts'
import type { BrokenStore } from './broken-store.ts'
import type { PretendDatabase, PretendStore } from './pretend-database.ts'

type SettleWith = PretendStore['settleWith']

function brokenSettle(
  name: string,
  caughtBy: string,
  mistake: (store: PretendStore, database: PretendDatabase) => SettleWith,
): BrokenStore {
  return brokenBy(name, caughtBy, {
    store: (store, database) => ({ ...store, settleWith: mistake(store, database) }),
  })
}

const together = 'what an effect collected is written with its outcome, and not before'
const refused = 'a write that is refused is COMMIT_REFUSED: nothing is written, and the claim still holds the key'

export const brokenCollecting: readonly BrokenStore[] = [
  brokenSettle(
    'settles without what was collected',
    together,
    (store) => (claim, outcome, retention) => store.settle(claim, outcome, retention),
  ),
  brokenBy('writes what is collected at once', together, {
    store: (store, { effects }) => ({
      ...store,
      collect: (key) => {
        const { tx, end } = store.collect(key)
        return { tx: { ...tx, add: (name) => (effects.push(name), undefined) }, end }
      },
    }),
  }),
  brokenSettle(
    'refuses to settle where nothing was collected',
    'an effect that collected nothing is settled all the same',
    (store) => async (claim, outcome, retention, collected) =>
      collected.effects.length === 0 ? 'lost' : store.settleWith(claim, outcome, retention, collected),
  ),
  brokenSettle(
    'writes what was collected as often as it is asked',
    'a settle with what was collected that is repeated with its token is done again, and writes nothing twice',
    (store, { effects }) =>
      async (claim, outcome, retention, collected) => {
        const fenced = await store.settle(claim, outcome, retention)
        if (fenced === 'done') effects.push(...collected.effects)
        return fenced
      },
  ),
  brokenSettle(
    'writes what was collected before it looks who holds the key',
    'what a holder collected that was taken over is lost, and not written',
    (store, { effects }) =>
      async (claim, outcome, retention, collected) => {
        effects.push(...collected.effects)
        return store.settle(claim, outcome, retention)
      },
  ),
  brokenSettle(
    'knows the holder of what was collected by its token alone',
    'what was collected in another life of the same token is lost, and not written',
    (store, { data }) =>
      (claim, outcome, retention, collected) =>
        store.settleWith(byToken(data, claim), outcome, retention, collected),
  ),
  brokenSettle(
    'writes what is not refused',
    refused,
    (store) => (claim, outcome, retention, collected) =>
      store.settleWith(claim, outcome, retention, { ...collected, isRefused: false }),
  ),
  brokenSettle('gives the key back when a write is refused', refused, (store) => async (claim, ...rest) => {
    try {
      return await store.settleWith(claim, ...rest)
    } catch (error) {
      await store.release(claim, 'forget')
      throw error
    }
  }),
  brokenBy('takes what is collected after the end', 'what is collected after the end of the effect is never written', {
    store: (store) => ({
      ...store,
      collect: (key) => {
        const { tx } = store.collect(key)
        const collected = { effects: [] as string[], isRefused: false }
        return { tx: { ...tx, add: (name) => void collected.effects.push(name) }, end: () => collected }
      },
    }),
  }),
  brokenBy('has one collection for all effects', 'effects that collect at the same time write each its own', {
    store: (store) => {
      let open: ReturnType<PretendStore['collect']> | undefined
      return { ...store, collect: (key) => (open ??= store.collect(key)) }
    },
  }),
  brokenSettle(
    'takes a lost reply for a refusal',
    'a settle with what was collected whose reply is lost says so, and its repetition writes nothing twice',
    (store, { data }) =>
      (claim, ...rest) =>
        store.settleWith(claim, ...rest).catch((cause: unknown) => {
          const message = `Nothing was written for attempt ${entryOf(data, claim.key)?.attempt}.`
          throw new OnceError('STORE_UNAVAILABLE', { message, executed: 'no', cause })
        }),
  ),
]

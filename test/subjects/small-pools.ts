// A pool of two connections under effects that need two each. The cases are the same on every database with pools.

import { expect, test } from 'vitest'
import { systemClock } from '../../src/core/clock.ts'
import { createOnce } from '../../src/core/once.ts'
import type { Store, Transactional } from '../../src/core/store.ts'

export type PooledStore = Store & Transactional<unknown>

// The store's patience is a tenth of what it is, so that the tests do not wait for seconds.
export const impatientClock = {
  ...systemClock,
  schedule: (work: () => void, ms: number) => systemClock.schedule(work, ms / 10),
}

/** Each store is on a pool of two. */
export function smallPoolCases(names: readonly string[], storeOf: (name: string) => PooledStore): void {
  const both = async (work: (which: string) => Promise<unknown>): Promise<PromiseSettledResult<unknown>[]> => {
    const started = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
    const all = Promise.all(started.map(({ promise }) => promise))
    const run = async (at: number): Promise<unknown> => {
      started[at]!.resolve()
      await all
      return work(`${at}`)
    }
    return Promise.allSettled([run(0), run(1)])
  }

  test.each(names)(
    '%s: effects that wait for each other are told the cause and the cure, and the pool is whole',
    async (name) => {
      const once = createOnce({ store: storeOf(name), scope: `nested ${name}`, waitMs: 0 })
      for (const nested of ['transaction', 'run'] as const) {
        const holding = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
        const results = await both((which) =>
          once.transaction(`outer ${nested} ${which}`, async () => {
            holding[Number(which)]!.resolve()
            await Promise.all(holding.map(({ promise }) => promise))
            await once[nested](`inner ${nested} ${which}`, () => 'inner')
            return 'outer'
          }),
        )
        const refused = results.flatMap((each) => (each.status === 'rejected' ? [each.reason as Error] : []))
        expect(refused.length).toBeGreaterThan(0)
        for (const error of refused) {
          expect(error).toMatchObject({ code: 'STORE_UNAVAILABLE', executed: 'no', retryable: true })
          expect(error.message).toMatch(
            /2 open transactions of this store hold all 2\b.*Use once\.within\(tx\) inside, or/s,
          )
        }
      }
      // Both connections are there again: two transactions at once, each of which waits for the other.
      const meeting = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
      const after = await both((which) =>
        once.transaction(`after ${which}`, async () => {
          meeting[Number(which)]!.resolve()
          await Promise.all(meeting.map(({ promise }) => promise))
          return which
        }),
      )
      expect(after.map(({ status }) => status)).toEqual(['fulfilled', 'fulfilled'])
      await once.close()
    },
  )

  test.each(names)(
    '%s: an effect that takes long on a full pool is no reason to refuse anybody who holds a connection',
    async (name) => {
      const once = createOnce({ store: storeOf(name), scope: `long ${name}` })
      const results = await both((which) =>
        once.transaction(which, async () => {
          await new Promise((resolve) => setTimeout(resolve, 600))
          return which
        }),
      )
      expect(results.map(({ status }) => status)).toEqual(['fulfilled', 'fulfilled'])
      await once.close()
    },
  )
}

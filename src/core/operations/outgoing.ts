// What one attempt has to write of its operation, on its way out: one write at a time, and what comes meanwhile goes with the
// next. Steps that run in parallel share their writes, and no record is on its way twice.

import { OnceError } from '../errors.ts'

interface Waiting<News> {
  readonly news: News
  readonly resolve: () => void
  readonly reject: (error: unknown) => void
}

/** `send` writes all of it or nothing; what is answered resolves when it is written. */
export function outgoing<News>(send: (news: readonly News[]) => Promise<void>): (news: News) => Promise<void> {
  let waiting: Waiting<News>[] = []
  let isUnderWay = false

  async function carryOut(batch: readonly Waiting<News>[]): Promise<void> {
    try {
      await send(batch.map(({ news }) => news))
      for (const { resolve } of batch) resolve()
    } catch (error) {
      // One that the store refuses (a result too large for it) must not take its siblings along.
      const isRefused = error instanceof OnceError && !error.retryable
      if (batch.length > 1 && isRefused) for (const each of batch) await carryOut([each])
      else for (const { reject } of batch) reject(error)
    }
  }

  async function carryOutAll(): Promise<void> {
    isUnderWay = true
    await Promise.resolve() // so that steps that are asked for in one go are one write
    while (waiting.length > 0) {
      const batch = waiting
      waiting = []
      await carryOut(batch)
    }
    isUnderWay = false
  }

  return (news) =>
    new Promise((resolve, reject) => {
      waiting.push({ news, resolve, reject })
      if (!isUnderWay) void carryOutAll()
    })
}

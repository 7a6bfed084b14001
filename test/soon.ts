// What must end soon: a test whose call hangs fails by an assertion that says so, and not by running out of its own time.

import { expect } from 'vitest'

/** Far above what any call here takes, and below the time that a test has. */
const soonMs = 5_000

export async function soon<T>(what: string, work: Promise<T>): Promise<T> {
  const late = Promise.withResolvers<never>()
  const timer = setTimeout(() => {
    try {
      expect.unreachable(`${what} had not ended after ${soonMs} ms`)
    } catch (error) {
      late.reject(error)
    }
  }, soonMs)
  return Promise.race([work, late.promise]).finally(() => clearTimeout(timer))
}

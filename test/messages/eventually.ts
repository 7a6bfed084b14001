// Waiting for what a broker does by itself. Far above what any of it takes, and below the time that a test has among the seeded bugs:
// a message that never comes is a failed test that says so.
import { pollUntil } from '../servers/poll.ts'

export function eventually<T>(
  what: string,
  probe: () => T | Promise<T>,
): Promise<Exclude<T, false | null | undefined>> {
  return pollUntil(what, probe, { timeoutMs: 12_000 })
}

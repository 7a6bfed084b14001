// Waiting for something to become true by asking again and again: the tests know readiness by a probe, never by a fixed
// sleep. Invariant: a wait either gives the probe's first truthy answer or ends with an error that says what it waited for.
import { setTimeout as sleep } from 'node:timers/promises'

export interface PollOptions {
  timeoutMs?: number
  intervalMs?: number
}

// A minute is far beyond what any start takes: it only bounds a hang on a machine that is busy with other work.
const defaultTimeoutMs = 60_000
// Servers start in 40 to 150 ms, so a longer interval would show up in the duration of the suite.
const defaultIntervalMs = 15

export async function pollUntil<T>(
  what: string,
  probe: () => T | Promise<T>,
  { timeoutMs = defaultTimeoutMs, intervalMs = defaultIntervalMs }: PollOptions = {},
): Promise<Exclude<T, false | null | undefined>> {
  const deadlineMs = performance.now() + timeoutMs
  for (;;) {
    const answer = await probe()
    if (answer) return answer as Exclude<T, false | null | undefined>
    if (performance.now() > deadlineMs) throw new Error(`waited ${timeoutMs} ms in vain for ${what}`)
    await sleep(intervalMs)
  }
}

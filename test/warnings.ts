// The warnings of this process while something is done.

import { setImmediate as nextTurn } from 'node:timers/promises'

/** Resolves to what `work` has caused to be said. */
export async function warningsOf(work: () => Promise<void>): Promise<object[]> {
  const heard: object[] = []
  const hear = ({ name, message, code }: Error & { code?: string }): void => void heard.push({ name, code, message })
  process.on('warning', hear)
  try {
    await work()
    // Node says it in the next turn.
    await nextTurn()
  } finally {
    process.off('warning', hear)
  }
  return heard
}

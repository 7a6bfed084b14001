// `onceonly sweep`: expiry, started manually or from cron, in bounded steps until nothing is left, so that it never holds up the store.

import type { Swept } from '../core/store.ts'
import { count, parseCommand } from './arguments.ts'
import { storeHelp, storeOptions, withStore } from './with-store.ts'

const help = `onceonly sweep: remove what has expired

Usage: onceonly sweep --store URL [--limit N] [--json]

${storeHelp}
  --limit N      entries in one step; 500 unless given, and 64 at the most on SQLite. Smaller steps are gentler, larger ones sooner
                 done

Outcomes that are past their keep time are dropped and leave a tombstone; tombstones that have expired are deleted. What runs is
never touched. It can be run from several machines at once, and be interrupted at any moment. Services do the same by
themselves, unless they set sweepEveryMs: false.

Example, from cron: onceonly sweep --store postgres://db.example/app
`

// Some milliseconds of the store at a time.
const stepLimit = 500

export async function sweep(args: readonly string[]): Promise<number> {
  const parsed = parseCommand({ command: 'sweep', help, options: { ...storeOptions, limit: count }, args })
  if (!parsed) return 0
  const { store: url, limit = stepLimit, json } = parsed.values
  return withStore('sweep', url, async ({ store, describe }) => {
    if (!store.sweep) {
      tell(
        json,
        { swept: false, tombstoned: 0, forgotten: 0 },
        `${store.name} expires entries by itself: nothing to sweep.`,
      )
      return 0
    }
    const total = await sweepAll((options) => store.sweep!(options), limit)
    const words = `${total.tombstoned} outcomes dropped, ${total.forgotten} tombstones deleted in ${describe}.`
    tell(json, { swept: true, ...total }, words)
    return 0
  })
}

async function sweepAll(
  step: (options: { readonly limit: number }) => Promise<Swept>,
  limit: number,
): Promise<{ tombstoned: number; forgotten: number }> {
  let tombstoned = 0
  let forgotten = 0
  for (;;) {
    const done = await step({ limit })
    tombstoned += done.tombstoned
    forgotten += done.forgotten
    showProgress(`${tombstoned} outcomes dropped, ${forgotten} tombstones deleted`)
    if (!done.more) break
  }
  showProgress('')
  return { tombstoned, forgotten }
}

/** On a terminal, on the line of the last one. To the error output, so that a pipe gets only the result. */
function showProgress(line: string): void {
  if (process.stderr.isTTY) process.stderr.write(`\r\u001b[K${line}`)
}

function tell(json: true | undefined, data: object, words: string): void {
  console.log(json ? JSON.stringify(data) : words)
}

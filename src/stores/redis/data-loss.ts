// Notices that Redis has lost what it had acknowledged (emptied, replaced, set back), publishes it, and refuses new claims until
// a person has looked. Beyond this door nothing else knows of it: the scripts include `registerCheck` and `markKeeping` and
// refuse when `held` is set, the batches hand over what the instance knows, and the store exports `quarantine`.

import { markKeepMs, registerMemory } from './data-loss/memory.ts'
import type { Known } from './data-loss/memory.ts'
import { spreadsOn } from './data-loss/quarantine.ts'
import type { QuarantineContext } from './data-loss/quarantine.ts'

export { dataLossChannel, markKeepMs, missing } from './data-loss/memory.ts'
export type { DataLoss, Known } from './data-loss/memory.ts'
export { isQuarantinable, quarantineCheck, quarantined, quarantineOf } from './data-loss/quarantine.ts'
export type { Quarantinable, Quarantine, QuarantineContext } from './data-loss/quarantine.ts'
export { markKeeping, registerCheck } from './data-loss/register.lua.ts'

/** One for each dataset that can be lost by itself: a server, or a bucket of a Cluster. */
export interface DataLossWatch {
  /** The names of the register and of the mark. */
  readonly keys: readonly [string, string]
  known(): Known
  /** The values of a script that say what is known, by their names. */
  values(known: Known): Record<'lineage' | 'mark' | 'instance' | 'onLoss' | 'markKeepMs', string>
  learn(sent: Known, heading: string): void
  /** The name of the highest fence among entries that are gone. */
  readonly floor: string
  /** What native commands wrote was acknowledged with this mark. Returns false if acknowledged writes are missing. */
  count(sent: Known, mark: number): boolean
}

export function dataLossWatches(context: QuarantineContext): (bucket: number | undefined) => DataLossWatch {
  const { names, instance, onLoss, calls } = context
  const spread = spreadsOn(context)
  return (bucket) => {
    const register = names.register(bucket)
    const memory = registerMemory({ register, clock: calls.clock, quarantines: onLoss !== '-' })
    return {
      keys: [register, names.mark(bucket, instance)],
      known: () => memory.known(),
      values: ({ lineage, mark }) => ({ lineage, mark: `${mark}`, instance, onLoss, markKeepMs: `${markKeepMs}` }),
      learn(sent, heading) {
        const loss = memory.learn(sent, heading)
        if (loss) spread(loss)
      },
      floor: names.floor(bucket),
      count: (sent, mark) => memory.count(sent, mark),
    }
  }
}

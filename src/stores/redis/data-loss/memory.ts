// What this instance knows of the dataset it talks to, and what it concludes from the register's answers. A dataset that knows
// less than it has acknowledged has lost writes. An instance that has heard nothing yet knows nothing and finds nothing.

import { channel } from 'node:diagnostics_channel'
import type { Clock } from '../../../core/clock.ts'
import { headingPlaces, numberAt, textAt } from '../places.ts'

/** Redis came back without writes that it had acknowledged. */
export interface DataLoss {
  readonly store: 'redis'
  /** Where the loss shows: the name of the register. */
  readonly register: string
  /**
   * `emptied`: the register is gone. `replaced`: it was gone, and an instance without a memory has begun a new one.
   * `went-back`: writes that Redis had acknowledged to this instance are missing.
   */
  readonly evidence: 'emptied' | 'replaced' | 'went-back'
  /** Whether new claims are refused from now on. */
  readonly quarantined: boolean
}

export interface RegisterMemory {
  /** What a script needs to know, as of now. */
  known(): Known
  /** Takes the heading of a reply in. `sent` is what the script knew. */
  learn(sent: Known, heading: string): DataLoss | undefined
  /** Writes to the lineage that was known then were acknowledged with this mark. Returns false if it should be higher: some are missing. */
  count(sent: Known, mark: number): boolean
}

export interface Known {
  readonly lineage: string
  readonly mark: number
}

export interface RegisterMemoryOptions {
  readonly register: string
  readonly clock: Clock
  /** Whether a loss stops new claims. */
  readonly quarantines: boolean
}

/** For publishing and for those who subscribe: every event is a `DataLoss`. */
export const dataLossChannel = 'onceonly:data-loss'
const losses = channel(dataLossChannel)

/** Every process leaves a mark that must go by itself. A process that wrote nothing for half of this no longer counts on it. */
export const markKeepMs: number = 7 * 24 * 3_600_000

/** In the place of a mark: counting again would hide that it went back, so the next script has to find it too low. */
export const missing: number = Number.MAX_SAFE_INTEGER

/** A lineage ends with the time of its beginning, by the server's clock, in digits of one width. */
const bornAt = (lineage: string): string => lineage.slice(lineage.lastIndexOf('-'))

export function registerMemory({ register, clock, quarantines }: RegisterMemoryOptions): RegisterMemory {
  let lineage = '-'
  let acknowledged = 0
  let wroteAtMs = 0

  const adopt = (found: string, mark: number): void => {
    if (mark !== acknowledged) wroteAtMs = clock.elapsed()
    lineage = found
    acknowledged = mark
  }

  return {
    known: () => ({ lineage, mark: clock.elapsed() - wroteAtMs < markKeepMs / 2 ? acknowledged : 0 }),
    count(sent, mark) {
      if (sent.lineage !== lineage) return false
      const isMissing = acknowledged === missing || mark <= sent.mark
      adopt(lineage, isMissing ? missing : Math.max(acknowledged, mark))
      return !isMissing
    },
    learn(sent, heading) {
      const found = textAt(heading, headingPlaces.lineage)
      const mark = numberAt(heading, headingPlaces.mark)
      const evidence = textAt(heading, headingPlaces.evidence).trimEnd() as DataLoss['evidence'] | 'none'
      if (found === lineage && evidence === 'none') adopt(found, Math.max(acknowledged, mark))
      // A script that knew less than this instance knows by now could not find that the lineage of today is lost. The next script
      // can, as long as this reply is not believed.
      else if (sent.lineage === lineage || evidence !== 'none') adopt(found, mark)
      // A reply that comes late has acknowledged writes of a dataset that is older than the one of today, so they are lost. The
      // next script knows of that dataset, and finds out whether the loss is known.
      else if (mark > 0 && found !== sent.lineage && bornAt(found) < bornAt(lineage)) adopt(found, mark)
      if (evidence === 'none') return undefined
      const loss: DataLoss = { store: 'redis', register, evidence, quarantined: quarantines }
      losses.publish(loss)
      return loss
    },
  }
}

// What this instance knows of the dataset it talks to, and what it makes of the register's answers: a dataset that knows
// less than it has acknowledged has lost writes. An instance that has never been answered knows nothing and finds nothing.

import { channel } from 'node:diagnostics_channel'
import type { Clock } from '../../core/clock.ts'

export interface DataLoss {
  readonly store: 'redis'
  /** Where the loss shows: the name of the register. */
  readonly register: string
  /**
   * `emptied`: the register is gone. `replaced`: it was gone, and somebody without a memory has begun a new one.
   * `went-back`: writes that this instance was told of are missing.
   */
  readonly evidence: 'emptied' | 'replaced' | 'went-back'
  /** Whether new claims are refused from now on. */
  readonly quarantined: boolean
}

export interface RegisterMemory {
  /** The first values of a script, as of now, for calls that are not to be granted when they arrive later than this. */
  head(withinMs: number): Head
  /** Takes an answer in. */
  learn(sent: Head, answer: string): { readonly nowMs: number; readonly loss?: DataLoss }
}

export interface Head {
  readonly lineage: string
  readonly values: readonly string[]
}

export interface RegisterOptions {
  readonly register: string
  readonly instance: string
  readonly clock: Clock
  /** '-' lets claims go on, 'on' stops them until a person says otherwise, a number stops them for so many milliseconds. */
  readonly onLoss: string
}

/** For publishing and for those who subscribe: every event is a `DataLoss`. */
export const dataLossChannel = 'onceonly:data-loss'
const losses = channel(dataLossChannel)

// Every process leaves a mark that must go by itself. A process that wrote nothing for half of this no longer counts on it.
const markKeepMs = 7 * 24 * 3_600_000

const nothing = '-'

export function registerMemory(options: RegisterOptions): RegisterMemory {
  const { register, instance, clock, onLoss } = options
  let lineage = nothing
  let acknowledged = 0
  let wroteAtMs = 0
  // How far the server's clock is ahead of our count of milliseconds.
  let aheadMs: number | undefined

  const adopt = (found: string, mark: number): void => {
    if (mark !== acknowledged) wroteAtMs = clock.elapsed()
    lineage = found
    acknowledged = mark
  }

  return {
    head(withinMs) {
      const mark = clock.elapsed() - wroteAtMs < markKeepMs / 2 ? acknowledged : 0
      const notAfterMs =
        aheadMs === undefined ? Number.MAX_SAFE_INTEGER : Math.ceil(aheadMs + clock.elapsed() + withinMs)
      return { lineage, values: [lineage, `${mark}`, instance, onLoss, `${markKeepMs}`, `${notAfterMs}`] }
    },
    learn(sent, answer) {
      const [found, mark, evidence, now] = answer.split(' ') as [string, string, DataLoss['evidence'] | 'none', string]
      const nowMs = Number(now)
      aheadMs = nowMs - clock.elapsed()
      if (found === lineage && evidence === 'none') adopt(found, Math.max(acknowledged, Number(mark)))
      // An answer that was under way while another told of a new lineage is no news.
      else if (sent.lineage === lineage || found !== sent.lineage) adopt(found, Number(mark))
      if (evidence === 'none') return { nowMs }
      const loss: DataLoss = { store: 'redis', register, evidence, quarantined: onLoss !== nothing }
      losses.publish(loss)
      return { nowMs, loss }
    },
  }
}

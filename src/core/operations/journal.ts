// What one attempt knows and writes of its operation. Only the holder of the token writes, so what it has read at the start
// and written since is all there is; a write that the store refuses as `lost` ends the attempt.

import type { HeldKey } from '../once/attempt.ts'
import { claimLost } from '../once/attempt.ts'
import { OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import { outgoing } from './outgoing.ts'
import { courseRecord, readRecords, stepRecord } from './records.ts'
import type { Course, StepRecord } from './records.ts'
import type { Settings } from '../settings.ts'
import type { Advanced, Change, Claim, Ledger, LedgerRecord, StepLedger } from '../store.ts'

export interface Journal {
  readonly operation: string
  readonly claim: Claim
  readonly course: Course
  /** Why somebody asked for it to be cancelled, as far as this attempt has heard. */
  readonly cancelReason: string | undefined
  /**
   * A write that was not confirmed. It may have landed or may still do so, so what is recorded is not known here any more:
   * only an attempt that reads it anew can tell which steps are to be undone.
   */
  readonly unconfirmed: unknown
  step(name: string): StepRecord | undefined
  /** In the order in which they began. */
  steps(): readonly StepRecord[]
  /** The place of the next step that begins. */
  nextOrder(): number
  /** Write, with whatever else is to be written in this moment, and go on; rejects with CLAIM_LOST. */
  write(news: News): Promise<void>
  /** The same as one step of a transaction: `commit` writes the change. */
  commit(news: News, commit: (change: Change) => Promise<Advanced>): Promise<void>
  /** The last write of this attempt. */
  end(news: News, becomes: Exclude<Change['becomes'], { to: 'running' }>): Promise<void>
}

export interface News {
  readonly step?: StepRecord
  readonly course?: Course
}

export interface JournalGround {
  readonly operation: string
  readonly version: number
  readonly claim: Claim
  readonly settings: Settings
  readonly store: StepLedger
  /** Undefined for a fresh operation: there is nothing to read. */
  readonly ledger: Ledger | undefined
  readonly hold: Pick<HeldKey, 'advance'>
  /** Asked when a write was answered with `cancelled`. */
  cancelReason(): Promise<string>
}

export function openJournal(ground: JournalGround): Journal {
  const { claim, settings, operation } = ground
  const read = readRecords(claim.key, ground.ledger)
  const steps = new Map(read.steps.map(({ content }) => [content.name, content]))
  let { course, isNews } = courseOf(read.course?.content, ground.version)
  const revised = revising(ground.ledger)
  let lastOrder = read.steps.at(-1)?.content.order ?? 0
  let cancelReason = ground.ledger?.cancelReason
  let unconfirmed: unknown
  const running = { to: 'running', leaseMs: settings.leaseMs } as const

  const learn = (all: readonly News[]): void => {
    isNews = false
    for (const { step, course: next = course } of all) {
      course = next
      if (!step) continue
      steps.set(step.name, step)
      publish('step', claim.key, { operation, step: step.name, state: step.state, attempt: claim.attempt })
    }
  }
  const carryOut = async (
    all: readonly News[],
    becomes: Change['becomes'],
    send: (change: Change) => Promise<Advanced>,
  ): Promise<void> => {
    // The first write brings the course with it: from then on the version of the code is known to others.
    const next = all.findLast((news) => news.course)?.course ?? (isNews ? course : undefined)
    const written = all.flatMap(({ step }) => (step ? [stepRecord(step)] : []))
    const records = (next ? [courseRecord(next), ...written] : written).map(revised)
    const advanced = await send({ records, becomes }).catch((error: unknown) => {
      // What a store has refused for good was not written.
      if (error instanceof OnceError && error.retryable) {
        unconfirmed ??= error
        // It may have landed, and the next write must not take it back.
        course = next ?? course
      }
      throw error
    })
    if (advanced === 'lost') throw claimLost(claim, settings)
    if (advanced === 'cancelled' && becomes.to === 'running') cancelReason ??= await ground.cancelReason()
    learn(all)
  }
  const advance = (change: Change): Promise<Advanced> => ground.hold.advance(change, ground.store)
  const write = outgoing<News>((all) => carryOut(all, running, advance))

  return {
    operation,
    claim,
    get course() {
      return course
    },
    get cancelReason() {
      return cancelReason
    },
    get unconfirmed() {
      return unconfirmed
    },
    step: (name) => steps.get(name),
    steps: () => [...steps.values()].sort((a, b) => a.order - b.order),
    nextOrder: () => ++lastOrder,
    write,
    commit: (news, commit) => carryOut([news], running, commit),
    end: (news, becomes) => carryOut([news], becomes, advance),
  }
}

/** Gives each record the next revision of its name. One that was sent and not confirmed is used up as well: it may have landed. */
function revising(ledger: Ledger | undefined): (record: Omit<LedgerRecord, 'revision'>) => LedgerRecord {
  const last = new Map(ledger?.records.map(({ name, revision }) => [name, revision]))
  return ({ name, content }) => {
    const revision = (last.get(name) ?? 0) + 1
    last.set(name, revision)
    return { name, revision, content }
  }
}

/** What a newer version goes on with is its own from then on: an older one may not know the steps that it adds. */
function courseOf(read: Course | undefined, version: number): { course: Course; isNews: boolean } {
  if (!read) return { course: { version, direction: 'forward', failures: 0 }, isNews: true }
  return read.version < version ? { course: { ...read, version }, isNews: true } : { course: read, isNews: false }
}

// What one attempt knows and writes of its operation. Only the holder of the token writes, so what it has read at the start
// and written since is all there is; a write that the store refuses as `lost` ends the attempt.

import type { Attempt } from './attempt.ts'
import { claimLost } from './attempt.ts'
import { publish } from './events.ts'
import { courseRecord, readRecords, stepRecord } from './operation-records.ts'
import type { Course, StepRecord, Written } from './operation-records.ts'
import type { Settings } from './settings.ts'
import type { Advanced, Change, Claim, Ledger, LedgerRecord, StepLedger } from './store.ts'

export interface Journal {
  readonly operation: string
  readonly claim: Claim
  readonly course: Course
  /** Why somebody asked for it to be cancelled, as far as this attempt has heard. */
  readonly cancelReason: string | undefined
  step(name: string): StepRecord | undefined
  /** In the order in which they began. */
  steps(): readonly StepRecord[]
  /** The place of the next step that begins. */
  nextOrder(): number
  /** Write, and go on; rejects with CLAIM_LOST. */
  write(news: News): Promise<void>
  /** The same as one step of a transaction: `commit` writes the change. */
  commit(news: News, commit: (change: Change) => Promise<Advanced>): Promise<void>
  /** The last write of this attempt. */
  end(news: News, then: Exclude<Change['then'], { to: 'running' }>): Promise<void>
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
  /** A promise, as the first step may ask for it before the attempt has begun for its caller. */
  readonly attempt: Promise<Pick<Attempt, 'advance'>>
}

export function openJournal(ground: JournalGround): Journal {
  const { claim, settings, operation } = ground
  const read = readRecords(claim.key, ground.ledger)
  const steps = new Map(read.steps.map((step) => [step.content.name, step]))
  let course: Written<Course> = read.course ?? {
    content: { version: ground.version, direction: 'forward', failures: 0 },
    revision: 0,
    atMs: 0,
  }
  let lastOrder = Math.max(0, ...read.steps.map((step) => step.content.order))
  let cancelReason = ground.ledger?.cancelReason
  const running = { to: 'running', leaseMs: settings.leaseMs } as const

  // The first write of all brings the course with it: from then on the version of the code is known to others.
  const recordsOf = ({
    step,
    course: next = course.revision === 0 ? course.content : undefined,
  }: News): LedgerRecord[] => [
    ...(next ? [courseRecord(next, course.revision + 1)] : []),
    ...(step ? [stepRecord(step, (steps.get(step.name)?.revision ?? 0) + 1)] : []),
  ]
  const learn = (records: readonly LedgerRecord[], { step, course: next = course.content }: News): void => {
    for (const { name, revision } of records) {
      if (step && name === step.name) steps.set(name, { content: step, revision, atMs: 0 })
      else course = { content: next, revision, atMs: 0 }
    }
    if (step) publish('step', claim.key, { operation, step: step.name, state: step.state, attempt: claim.attempt })
  }
  const carryOut = async (
    news: News,
    then: Change['then'],
    send: (change: Change) => Promise<Advanced>,
  ): Promise<void> => {
    const records = recordsOf(news)
    const advanced = await send({ records, then })
    if (advanced === 'lost') throw claimLost(claim, settings)
    if (advanced === 'cancelled') cancelReason ??= 'somebody asked for it'
    learn(records, news)
  }
  const advance = async (change: Change): Promise<Advanced> => (await ground.attempt).advance(change, ground.store)

  return {
    operation,
    claim,
    get course() {
      return course.content
    },
    get cancelReason() {
      return cancelReason
    },
    step: (name) => steps.get(name)?.content,
    steps: () => [...steps.values()].map((step) => step.content).sort((a, b) => a.order - b.order),
    nextOrder: () => ++lastOrder,
    write: (news) => carryOut(news, running, advance),
    commit: (news, commit) => carryOut(news, running, commit),
    end: (news, then) => carryOut(news, then, advance),
  }
}

// What one attempt knows and writes of its operation. Only the holder of the key writes, so what the attempt has read at its
// start and written since is all there is. A write that the store refuses as `lost` ends the attempt.

import { claimLost } from '../call.ts'
import type { HeldKey } from '../call.ts'
import { OnceError } from '../errors.ts'
import { publish } from '../events.ts'
import { lane } from '../lane.ts'
import { courseRecord, readRecords, stepRecord } from './records.ts'
import type { Course, StepRecord } from './records.ts'
import type { Codec } from '../outcome.ts'
import type { Settings } from '../settings.ts'
import type { Advanced, Change, Claim, Ledger, LedgerRecord, StepLedger } from '../store.ts'

export interface Journal {
  readonly operation: string
  readonly claim: Claim
  readonly course: Course
  /** Why a person asked for a cancel, as far as this attempt knows. */
  readonly cancelReason: string | undefined
  /**
   * A write that the store did not confirm. It may have landed or may still land, so this attempt no longer knows what is
   * recorded: only an attempt that reads the records anew can tell which steps are to be undone.
   */
  readonly unconfirmed: unknown
  step(name: string): StepRecord | undefined
  /** In the order in which they began. */
  steps(): readonly StepRecord[]
  /** The place of the next step that begins. */
  nextOrder(): number
  /** Writes, together with whatever else is to be written at this moment, and goes on. Rejects with CLAIM_LOST. */
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

export interface JournalContext {
  readonly operation: string
  readonly version: number
  readonly held: HeldKey
  readonly settings: Settings
  readonly store: StepLedger
  /** Undefined for a fresh operation: there is nothing to read. */
  readonly ledger: Ledger | undefined
  readonly codec: Codec | undefined
  /** Reads why a cancel was asked for, when the store says that it was. */
  readCancelReason(): Promise<string>
}

export function openJournal(context: JournalContext): Journal {
  const { held, settings, operation } = context
  const known = readKnown(context)
  let cancelReason = context.ledger?.cancelReason
  let unconfirmed: unknown
  const running = { to: 'running', leaseMs: settings.leaseMs } as const

  async function send(
    all: readonly News[],
    becomes: Change['becomes'],
    write: (change: Change) => Promise<Advanced>,
  ): Promise<void> {
    const records = known.recordsOf(all)
    const advanced = await write({ records, becomes }).catch((error: unknown) => {
      // A store that refuses a write for good has not written it.
      if (error instanceof OnceError && error.retryable) {
        unconfirmed ??= error
        known.assumeCourse(all)
      }
      throw error
    })
    if (advanced === 'lost') throw claimLost(held.claim, settings)
    if (advanced === 'cancelled' && becomes.to === 'running') cancelReason ??= await context.readCancelReason()
    known.learn(all)
  }
  const advance = (change: Change): Promise<Advanced> => held.advance(change, context.store)

  return {
    operation,
    claim: held.claim,
    get course() {
      return known.course()
    },
    get cancelReason() {
      return cancelReason
    },
    get unconfirmed() {
      return unconfirmed
    },
    step: known.step,
    steps: known.steps,
    nextOrder: known.nextOrder,
    write: outgoing((all) => send(all, running, advance)),
    commit: (news, commit) => send([news], running, commit),
    end: (news, becomes) => send([news], becomes, advance),
  }
}

/** What this attempt knows of the records: as it has read them, with what it has written since. */
interface Known extends Pick<Journal, 'step' | 'steps' | 'nextOrder'> {
  course(): Course
  /** The records that a write of all this consists of. */
  recordsOf(all: readonly News[]): readonly LedgerRecord[]
  /** The store has confirmed all this. */
  learn(all: readonly News[]): void
  /** The course in this may have landed, and the next write must not revert it. */
  assumeCourse(all: readonly News[]): void
}

function readKnown({ operation, version, held: { claim }, ledger, codec }: JournalContext): Known {
  const read = readRecords(claim.key, ledger, codec)
  const steps = new Map(read.steps.map(({ content }) => [content.name, content]))
  const revised = revising(ledger)
  let lastOrder = read.steps.at(-1)?.content.order ?? 0
  let { course, isNews } = courseOf(read.course?.content, version)
  // The first write brings the course with it: from then on the version of the code is known to others.
  const nextCourse = (all: readonly News[]): Course | undefined =>
    all.findLast((news) => news.course)?.course ?? (isNews ? course : undefined)
  return {
    course: () => course,
    step: (name) => steps.get(name),
    steps: () => [...steps.values()].sort((a, b) => a.order - b.order),
    nextOrder: () => ++lastOrder,
    recordsOf(all) {
      const next = nextCourse(all)
      const written = all.flatMap(({ step }) => (step ? [stepRecord(step, codec)] : []))
      return (next ? [courseRecord(next, codec), ...written] : written).map(revised)
    },
    learn(all) {
      course = nextCourse(all) ?? course
      isNews = false
      for (const { step } of all) {
        if (!step) continue
        steps.set(step.name, step)
        publish('step', claim.key, { operation, step: step.name, state: step.state, attempt: claim.attempt })
      }
    },
    assumeCourse(all) {
      course = nextCourse(all) ?? course
    },
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

/** One write at a time, so that no record is on its way twice. Steps that run in parallel share their writes. */
function outgoing(send: (all: readonly News[]) => Promise<void>): (news: News) => Promise<void> {
  const write = lane<News, Refused | undefined>({
    dispatch: (batch) => sendAll(send, batch),
    batchMax: Infinity,
    dispatchesMax: 1,
  })
  return async (news) => {
    const refused = await write(news)
    if (refused) throw refused.error
  }
}

interface Refused {
  readonly error: unknown
}

/** One record that the store refuses (a result too large for it) must not fail its siblings: then each is sent by itself. */
async function sendAll(
  send: (all: readonly News[]) => Promise<void>,
  batch: readonly News[],
): Promise<readonly (Refused | undefined)[]> {
  try {
    await send(batch)
    return batch.map(() => undefined)
  } catch (error) {
    const isRefused = error instanceof OnceError && !error.retryable
    if (batch.length === 1 || !isRefused) throw error
    const replies: (Refused | undefined)[] = []
    for (const news of batch) {
      const sent = send([news])
      replies.push(await sent.then(() => undefined).catch((each: unknown) => ({ error: each })))
    }
    return replies
  }
}

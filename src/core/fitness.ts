// Is a server fit to hold entries? Each store's `fitness.ts` reads the facts and judges them, once, for two readers: the store's
// start, which refuses a server that would break the promise, and `onceonly doctor`, which prints every check.
// `violated` means that an effect can run twice or that an outcome can be lost. What cannot be seen is `unknown`, never `ok`.

import { span } from './clock.ts'

export type FitnessVerdict = 'ok' | 'warning' | 'violated' | 'unknown'

/** What each check asks about and why that matters, whatever it finds. */
export interface FitnessQuestion {
  /** Short and stable, for scripts: "redis-eviction". */
  readonly name: string
  readonly lookedAt: string
  readonly why: string
}

/** What a look at the server found. */
export interface Judgement {
  readonly verdict: FitnessVerdict
  readonly found: string
  /** How to mend it. Only where there is something to mend. */
  readonly mend?: string
}

export interface FitnessCheck extends FitnessQuestion, Judgement {}

/** What the door of a store exports for the doctor: `postgresFitness(…)` and its like return one. */
export interface Fitness {
  /** The store's own clock. Undefined where the store has none. */
  readonly timeMs?: () => Promise<number>
  checks(nowMs: number): Promise<readonly FitnessCheck[]>
}

/** Asks one question. A look that fails (a missing right, a command that the server does not know) is `unknown` and ends nothing. */
export async function check(
  question: FitnessQuestion,
  look: () => Promise<Judgement> | Judgement,
): Promise<FitnessCheck> {
  try {
    return { ...question, ...(await look()) }
  } catch (error) {
    const found = error instanceof Error ? error.message : String(error)
    return { ...question, verdict: 'unknown', found: `the check failed: ${found}`, mend: rightsAdvice }
  }
}

/** Checks until the check succeeds, and then never again: its result is kept, a failure is not. */
export function checkedOnce<Session, Found>(
  check: (session: Session) => Promise<Found>,
): (session: Session) => Promise<Found> {
  let known: Promise<Found> | undefined
  return (session) => {
    known ??= check(session).catch((error: unknown) => {
      known = undefined
      throw error
    })
    return known
  }
}

const rightsAdvice = 'Grant this user the right to read it, or run the doctor as a user who has it.'

/** A judgement that names its cure only when there is something to cure. */
export function judge(verdict: FitnessVerdict, found: string, mend: string): Judgement {
  return verdict === 'ok' ? { verdict, found } : { verdict, found, mend }
}

// A day late is no harm. Beyond it, nothing sweeps this store.
const unsweptMsMax = 86_400_000
/** A store counts no further than this: more makes no difference to the judgement. */
export const unsweptMax = 100_000

/** Judges how many entries are due for a sweep, and for how long the oldest has been. */
export function judgeUnswept(due: number, oldestMs: number): Judgement {
  if (due === 0) return { verdict: 'ok', found: 'none' }
  const found = `${due >= unsweptMax ? `${unsweptMax} or more` : due}, the oldest for ${span(oldestMs)}`
  const mend =
    'Services sweep unless they set sweepEveryMs: false or run for less than a minute. Run onceonly sweep from cron.'
  return judge(oldestMs > unsweptMsMax ? 'warning' : 'ok', found, mend)
}

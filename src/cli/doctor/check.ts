// One check of the doctor: what it looked at, what it found, why that matters and how to mend it. `violated` is said only of what
// breaks the promise (an effect can happen twice, or an outcome be lost); what cannot be seen is `unknown`, never `ok`.

export type CheckVerdict = 'ok' | 'warning' | 'violated' | 'unknown'

export interface Check {
  /** Short and stable, for scripts: "redis-eviction". */
  readonly name: string
  readonly verdict: CheckVerdict
  readonly lookedAt: string
  readonly found: string
  readonly why: string
  /** Only where there is something to mend. */
  readonly mend?: string
}

export interface Judged {
  readonly verdict: CheckVerdict
  readonly found: string
  readonly mend?: string
}

/** What is asked about, and why, whatever the answer. */
export interface Question {
  readonly name: string
  readonly lookedAt: string
  readonly why: string
}

/** A question that cannot be asked (rights are missing, a server does not know the command) is one answer, not the end. */
export async function ask(question: Question, look: () => Promise<Judged> | Judged): Promise<Check> {
  try {
    return { ...question, ...(await look()) }
  } catch (error) {
    const found = error instanceof Error ? error.message : String(error)
    return { ...question, verdict: 'unknown', found: `it could not be asked: ${found}`, mend: rightsAdvice }
  }
}

const rightsAdvice = 'let this user see it, or have somebody look who can'

export function judge(bad: CheckVerdict | undefined, found: string, mend: string): Judged {
  return bad === undefined || bad === 'ok' ? { verdict: 'ok', found } : { verdict: bad, found, mend }
}

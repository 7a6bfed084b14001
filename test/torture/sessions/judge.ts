// Holds what processes under torture wrote down about requests of sessions against what is promised. The ledger is outside of the library:
// a file, or a table without constraints into which the effects write in their transactions.
import type { Found } from '../judge.ts'
import type { LedgerLine, ToldAnswer, Written } from '../journal.ts'

export interface SessionEvidence {
  readonly lines: readonly Written[]
  readonly ledger: readonly LedgerLine[]
  /** What the effects wrote with their transactions. Undefined where they have none. */
  readonly rows: readonly { readonly token: string; readonly id: string }[] | undefined
  /** Rows of requests that each client still has. */
  readonly left: Readonly<Record<string, number>>
}

type Line<Is extends Written['is']> = Extract<Written, { is: Is }>

interface Attempt {
  readonly name: string
  readonly call: string
  readonly token: string
  readonly atMs: number
}

interface Facts {
  readonly isTransaction: boolean
  readonly calls: ReadonlyMap<string, Line<'call'>>
  readonly answers: ReadonlyMap<string, Line<'answer'>>
  readonly attempts: readonly Attempt[]
  /** How often the effect of each attempt took place. */
  readonly effects: ReadonlyMap<string, number>
  /** Attempts that were stopped, and whose number or whose client was taken over before they went on. */
  readonly zombies: ReadonlySet<string>
}

export function judgeSessionLines({ lines, ledger, rows, left }: SessionEvidence): Found[] {
  const of = <Is extends Written['is']>(is: Is): Line<Is>[] => lines.filter((line): line is Line<Is> => line.is === is)
  const calls = new Map(of('call').map((line) => [line.call, line]))
  const tokens = rows ? rows.map(({ token }) => token) : ledger.map(({ token }) => token)
  const effects = new Map<string, number>()
  for (const token of tokens) effects.set(token, (effects.get(token) ?? 0) + 1)
  const facts: Facts = {
    isTransaction: rows !== undefined,
    calls,
    answers: new Map(of('answer').map((line) => [line.call, line])),
    attempts: of('execution').map(({ call, token, atMs }) => ({ name: calls.get(call)!.key.id, call, token, atMs })),
    effects,
    zombies: zombiesIn(of('taken-over'), of('resumed')),
  }
  const found: Found[] = []
  const report = (assertion: string, key: string, message: string): void => void found.push({ assertion, key, message })
  for (const name of new Set([...calls.values()].map(({ key }) => key.id))) checkNumber(facts, name, report)
  for (const attempt of facts.attempts) checkAttempt(facts, attempt, report)
  for (const [client, requests] of Object.entries(left))
    if (requests > 1)
      report('rows-bounded', client, `${requests} rows are left of a client that acknowledged all but one`)
  for (const { message } of of('unhandled')) report('no-unhandled-rejection', '', message)
  return found
}

function zombiesIn(taken: readonly Line<'taken-over'>[], resumed: readonly Line<'resumed'>[]): Set<string> {
  const wentOnMs = (token: string): number => resumed.find((line) => line.token === token)?.atMs ?? Infinity
  return new Set(taken.filter(({ token, atMs }) => atMs < wentOnMs(token)).map(({ token }) => token))
}

type Report = (assertion: string, key: string, message: string) => void

const isAnswer = (answer: ToldAnswer | undefined): answer is Extract<ToldAnswer, { is: 'value' | 'failure' }> =>
  answer?.is === 'value' || answer?.is === 'failure'

/** One client, epoch and sequence. */
function checkNumber({ isTransaction, calls, answers, attempts, effects }: Facts, name: string, report: Report): void {
  const own = [...calls.values()].filter(({ key }) => key.id === name)
  const told = own.map(({ call }) => answers.get(call)).filter((line) => line !== undefined)
  const ends = told.filter(({ answer }) => isAnswer(answer))
  const texts = new Set(ends.map(({ answer }) => (isAnswer(answer) ? answer.text : '')))
  if (texts.size > 1) report('same-answer', name, `it was answered with ${[...texts].join(' and ')}`)
  const ran = attempts.filter((attempt) => attempt.name === name)
  const took = ran.reduce((sum, { token }) => sum + (effects.get(token) ?? 0), 0)
  if (isTransaction && took > 1) report('one-effect', name, `its effect was committed ${took} times`)
  const firstMs = Math.min(...ends.map(({ atMs }) => atMs))
  for (const { token, atMs } of ran)
    if (atMs > firstMs) report('one-effect', name, `attempt ${token} began after the number was answered`)
  for (const { answer } of ends) {
    const { is, token } = answer as { is: string; token: string }
    const count = effects.get(token) ?? 0
    // What a refusal wrote is rolled back with its transaction.
    const wanted = isTransaction && is === 'failure' ? 0 : 1
    if (!ran.some((attempt) => attempt.token === token) || count !== wanted)
      report('answer-has-effect', name, `it was answered by ${token}, whose effect took place ${count} times`)
  }
  for (const { answer } of told) if (answer.is === 'stray') report('typed-errors', name, answer.message)
  const last = own.filter(({ phase }) => phase === 'last').map(({ call }) => answers.get(call)?.answer)
  const isOver = (answer: ToldAnswer | undefined): boolean =>
    isAnswer(answer) || (answer?.is === 'refused' && answer.code === 'FENCED')
  if (last.length > 0 && !last.some(isOver))
    report('no-wedge', name, `asked for the last time, it was ${JSON.stringify(last.at(-1))}`)
}

function checkAttempt({ isTransaction, answers, effects, zombies }: Facts, attempt: Attempt, report: Report): void {
  const { name, call, token } = attempt
  const answer = answers.get(call)?.answer
  const took = effects.get(token) ?? 0
  if (answer?.is === 'refused' && answer.executed === 'no' && took > 0)
    report('not-executed-left-nothing', name, `${token} was told ${answer.code}, executed no, and its effect is there`)
  if (!zombies.has(token)) return
  if (isAnswer(answer) && answer.token === token) report('zombie-fenced', name, `${token} was taken over, and answered`)
  if (isTransaction && took > 0) report('zombie-fenced', name, `${token} was taken over, and committed its effect`)
}

// The expectations that the cases put into words, by case and request. Those that no line here reads make the case fail.
import { expect } from 'vitest'
import type { Case } from './cases.ts'
import { valueOf, type WireResponse } from './client.ts'
import type { Answered } from './expectations.ts'
import { type Counts, sum } from './ledger.ts'
import type { Variant } from './variants.ts'

export interface Played {
  readonly answers: ReadonlyMap<string, Answered>
  readonly failed: ReadonlyMap<string, Error>
}

export const proseChecks: Readonly<Record<string, (played: Played) => void>> = {
  'FP-06 R4'({ answers }) {
    if (answers.get('R3')!.status === 201) expectProblem(answers.get('R4')!, 422, 'idempotency-key-reused')
  },
  'FP-09 R2'({ answers }) {
    const answer = answers.get('R2')!
    expect(isReplayed(answer)).toBe(false)
    if (answer.status !== 400) expectProblem(answer, 422, 'idempotency-key-reused')
  },
  'IF-02 all': ({ answers }) => expectOneWinner([...answers.values()], 50),
  'IF-07 R2..R11'({ answers }) {
    expectOneWinner(
      [...answers].filter(([id]) => id !== 'R1').map(([, answer]) => answer),
      10,
    )
  },
  'SE-01 L'({ answers }) {
    const logs = answers.get('L')!.body.toString('utf8')
    // Something was captured, or this would prove nothing.
    expect(logs).toContain('onceonly:settled')
    expect(logs).not.toMatch(/CANARYKEY|CANARYBODY|Bearer/)
  },
  'SE-04 D'({ answers }) {
    const dump = answers.get('D')!.body.toString('latin1')
    expect(dump).toContain('effect_1')
    expect(dump).not.toContain('se04-raw-key')
  },
  'SE-05 R1'({ answers }) {
    const answer = answers.get('R1')!
    expect(valueOf(answer, 'X-Injected')).toBeUndefined()
    if (answer.status < 500) expect(valueOf(answer, 'X-Evil') ?? '').not.toContain('X-Injected')
  },
  'ST-03 R1': ({ answers }) => expectNotWhole(answers.get('R1')),
  'ST-03 R2'({ answers }) {
    const answer = answers.get('R2')
    expectNotWhole(answer)
    if (answer?.status === 409) expectProblem(answer, 409, 'idempotency-outcome-unknown')
  },
}

/** The same for the cases of our own. */
export const moreProseChecks: typeof proseChecks = {
  'ST-m2 R1'({ answers }) {
    const { status, complete, body } = answers.get('R1')!
    expect({ status, complete }).toEqual({ status: 200, complete: true })
    expect(body.toString('latin1').match(/^chunk \d+ of \d+$/gm)).toHaveLength(200)
  },
  'SE-m1 L'({ answers }) {
    const logs = answers.get('L')!.body.toString('utf8')
    expect(logs).toContain('onceonly:store-failed')
    expect(logs + answers.get('R1')!.body.toString('utf8')).not.toContain('CANARYKEY')
  },
  'PJ-h2 R1'({ answers }) {
    const answer = answers.get('R1')!
    expect([answer.status, answer.body.length, answer.excess]).toEqual([200, 0, 0])
    expect(valueOf(answer, 'Content-Type')).toMatch('text/html')
  },
  'PJ-m1 R2'({ answers }) {
    const answer = answers.get('R2')!
    const text = answer.body.toString('utf8')
    const members = ['code', 'detail', 'retryable', 'status', 'title', 'type']
    expect(Object.keys(JSON.parse(text) as object)).toEqual(expect.arrayContaining(members))
    expect(valueOf(answer, 'Link')).toMatch(/rel="?describedby"?/)
    expect(text + JSON.stringify(answer.headerLines)).not.toContain('CANARY')
  },
}

/** The totals that a wording allows. */
const effectsWordings: Readonly<Record<string, readonly number[] | undefined>> = {
  '1 per key (7 in total)': [7],
  '1 create + 1 patch': [2],
  '1 keyed + 1 unkeyed': [2],
  '1 (pj05) + 1 (pj05g)': [2],
  '1 or 2 (never 3)': [1, 2],
  '1 (began/unknown) or 2 (released)': [1, 2],
  '<=1': [0, 1],
}

export function checkEffects({ effects }: Case, { name }: Variant, counts: ReadonlyMap<string, Counts>): void {
  const total = sum(counts, 'effects')
  if (typeof effects === 'number') return expect(total, 'effects').toBe(effects)
  const ofVariant = name && new RegExp(`\\b${name}: (\\d+)`).exec(effects)?.[1]
  if (ofVariant) return expect(total, `effects (${name})`).toBe(Number(ofVariant))
  const allowed = effectsWordings[effects]
  if (!allowed) throw new Error(`nobody can read the effects "${effects}"`)
  expect(allowed, `effects should be "${effects}"`).toContain(total)
}

export function isReplayed(answer: WireResponse): boolean {
  return valueOf(answer, 'Idempotent-Replayed') === 'true'
}

export function expectProblem(answer: WireResponse, status: number, code: string): void {
  expect(answer.status, answer.body.toString('latin1')).toBe(status)
  expect(JSON.parse(answer.body.toString('utf8'))).toMatchObject({ status, code })
}

/** Exactly one ran; the others were told so, or got its answer; nobody failed. */
export function expectOneWinner(answers: readonly WireResponse[], count: number): void {
  expect(answers).toHaveLength(count)
  const [winners, others] = [
    answers.filter((each) => each.status === 201 && !isReplayed(each)),
    answers.filter((each) => each.status !== 201 || isReplayed(each)),
  ]
  expect(winners).toHaveLength(1)
  for (const each of others) {
    if (each.status === 201) expect(each.body.equals(winners[0]!.body)).toBe(true)
    else expectProblem(each, 409, 'idempotency-in-progress')
  }
}

/** A server error, a broken connection, or a transfer that was cut short: anything but a complete success. */
function expectNotWhole(answer: WireResponse | undefined): void {
  if (!answer || answer.status >= 400) return
  expect(answer.complete, `a complete ${answer.status} with ${answer.body.length} octets`).toBe(false)
}

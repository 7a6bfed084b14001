// What the cases say about one answer, checked. An expectation that nobody here can read is an error, so that no case
// passes because it was not understood.
import { gunzipSync } from 'node:zlib'
import { expect } from 'vitest'
import type { Expected } from './cases.ts'
import { valueOf, valuesOf, type WireResponse } from './client.ts'
import { problemBase } from './world.ts'

export interface Answered extends WireResponse {
  /** By the clock of the world. */
  readonly tookMs: number
}

export interface About {
  /** 'HP-01 R2', for messages. */
  readonly name: string
  readonly answers: ReadonlyMap<string, Answered>
  readonly profile: unknown
}

export function checkAnswer(answer: Answered, expected: Expected, about: About): void {
  const text = `${about.name} was answered ${answer.status} ${answer.body.toString('latin1').slice(0, 300)}`
  checkMessage(answer, about)
  if (expected.status !== undefined) {
    const allowed = String(expected.status).split(' or ').map(Number)
    expect(allowed, text).toContain(answer.status)
  }
  for (const [name, wanted] of Object.entries(expected.headers ?? {})) checkHeader(answer, name, wanted, about)
  for (const each of expected.absentHeaders ?? []) {
    const [name, value] = each.split(': ', 2) as [string, string | undefined]
    const found = valuesOf(answer, name)
    if (value === undefined) expect(found, `${about.name}: ${name} is absent`).toEqual([])
    else expect(found, `${about.name}: ${name}`).not.toContain(value)
  }
  if (expected.body !== undefined) checkBody(answer, expected.body, about)
  if (expected.minMs !== undefined) expect(answer.tookMs, about.name).toBeGreaterThanOrEqual(expected.minMs)
  if (expected.maxMs !== undefined) expect(answer.tookMs, about.name).toBeLessThanOrEqual(expected.maxMs)
}

/** What holds of every answer, whatever it says. */
function checkMessage(answer: Answered, { name }: About): void {
  expect({ complete: answer.complete, excess: answer.excess }, name).toEqual({ complete: true, excess: 0 })
  expect(valuesOf(answer, 'Date'), `${name}: Date`).toHaveLength(1)
  const framing = [...valuesOf(answer, 'Content-Length'), ...valuesOf(answer, 'Transfer-Encoding')]
  const none = answer.status === 204 || answer.status === 304
  expect(framing, `${name}: framing`).toHaveLength(none ? 0 : 1)
}

type HeaderCheck = (values: readonly string[], answer: Answered, about: About, match: RegExpExecArray) => void

/** First match decides. */
const headerNotations: readonly (readonly [RegExp, HeaderCheck])[] = [
  [/^present$/, (values) => expect(values.length).toBeGreaterThan(0)],
  [/^(\d+) lines$/, (values, _answer, _about, [, count]) => expect(values).toHaveLength(Number(count))],
  [/^matches:(.+)$/, (values, _answer, _about, [, pattern]) => expect(values.join(', ')).toMatch(new RegExp(pattern!))],
  [
    /^integer (\d+)\.\.(\d+)$/,
    ([value], _answer, _about, [, least, most]) => {
      expect(value).toMatch(/^\d+$/)
      expect(Number(value)).toBeGreaterThanOrEqual(Number(least))
      expect(Number(value)).toBeLessThanOrEqual(Number(most))
    },
  ],
  [
    /^>= reset \(t\) of RateLimit$/,
    ([value], answer) => {
      const reset = /;t=(\d+)/.exec(valueOf(answer, 'RateLimit') ?? '')?.[1]
      expect(reset).toBeDefined()
      expect(Number(value)).toBeGreaterThanOrEqual(Number(reset))
    },
  ],
]

/** The same for what is compared with another answer. */
const comparisons: readonly (readonly [RegExp, (values: readonly string[], others: readonly string[]) => void])[] = [
  [
    /^equal(?:Lines)?:(\w+)$/,
    (values, others) => {
      expect(others.length).toBeGreaterThan(0)
      expect(values).toEqual(others)
    },
  ],
  [
    /^greaterThan:(\w+), exactly one$/,
    (values, others) => {
      expect(values).toHaveLength(1)
      expect(Date.parse(values[0]!)).toBeGreaterThan(Date.parse(others[0]!))
    },
  ],
  [
    /^not the stored value of (\w+)$/,
    (values, others) => {
      expect(others).toHaveLength(1)
      expect(values).not.toContain(others[0])
    },
  ],
]

function checkHeader(answer: Answered, name: string, wanted: string, about: About): void {
  const values = valuesOf(answer, name)
  try {
    for (const [pattern, check] of headerNotations) {
      const match = pattern.exec(wanted)
      if (match) return check(values, answer, about, match)
    }
    for (const [pattern, check] of comparisons) {
      const match = pattern.exec(wanted)
      if (match) return check(values, valuesOf(answerOf(about, match[1]!), name))
    }
    checkLiteral(values, name, wanted, about)
  } catch (cause) {
    throw new Error(`${about.name}: ${name} should be "${wanted}", got ${JSON.stringify(values)}`, { cause })
  }
}

function checkLiteral(values: readonly string[], name: string, wanted: string, about: About): void {
  const [literal, only] = wanted.split(' (', 2) as [string, string | undefined]
  if (only !== undefined && only !== 'stripe profile only)') throw new Error(`nobody can read "${wanted}"`)
  if (only !== undefined && about.profile !== 'stripe') return
  expect(values).toHaveLength(1)
  // A media type may have parameters.
  const value = name === 'Content-Type' ? values[0]!.split(';', 1)[0] : values[0]
  expect(literal.split(' or ')).toContain(value)
}

function checkBody(answer: Answered, wanted: NonNullable<Expected['body']>, about: About): void {
  if (typeof wanted === 'object') return checkJson(answer, wanted.jsonSubset, about)
  if (wanted === 'empty') return expect(answer.body.length, `${about.name}: length of the body`).toBe(0)
  const equal = /^byteEqual:(\w+)(?: \(.*\))?$/.exec(wanted)
  if (equal) {
    const same = answer.body.equals(answerOf(about, equal[1]!).body)
    return expect(same, `${about.name}: the body is octet for octet that of ${equal[1]}`).toBe(true)
  }
  const decoded = /decodedEqual:(\w+)/.exec(wanted)
  if (decoded) {
    const [ours, theirs] = [decode(answer), decode(answerOf(about, decoded[1]!))]
    return expect(ours.equals(theirs), `${about.name}: the body decodes to that of ${decoded[1]}`).toBe(true)
  }
  if (wanted === 'mentions the retention window, key format, scope and error list') return checkRules(answer)
  if (wanted === 'same members') return checkMembers(answer, about)
  throw new Error(`nobody can read the expected body "${wanted}" of ${about.name}`)
}

export function checkJson(answer: Answered, subset: unknown, about: About): void {
  const parsed = JSON.parse(answer.body.toString('utf8')) as object
  expect(parsed, about.name).toMatchObject(expandSubset(subset) as object)
}

function expandSubset(value: unknown): unknown {
  if (typeof value === 'string') {
    const pattern = /^matches:(.+)$/.exec(value)?.[1]
    return pattern ? expect.stringMatching(pattern) : value.replace('{problemBase}', problemBase)
  }
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, expandSubset(each)]))
}

function decode(answer: Answered): Buffer {
  const coding = valueOf(answer, 'Content-Encoding') ?? 'identity'
  if (coding === 'identity') return answer.body
  expect(coding).toBe('gzip')
  return gunzipSync(answer.body)
}

const problemCodes = [
  'idempotency-key-missing',
  'idempotency-key-invalid',
  'idempotency-scope-missing',
  'idempotency-key-reused',
  'idempotency-in-progress',
  'idempotency-outcome-unknown',
  'idempotency-response-not-stored',
  'idempotency-key-expired',
  'idempotency-store-unavailable',
]

function checkRules(answer: Answered): void {
  const text = answer.body.toString('utf8')
  expect(text).toMatch(/86400|24 h/)
  expect(text).toMatch(/255/)
  expect(text).toMatch(/scope/i)
  for (const code of problemCodes) expect(text).toContain(code)
}

function checkMembers(answer: Answered, about: About): void {
  const members = (each: Answered): string[] => Object.keys(JSON.parse(each.body.toString('utf8')) as object).toSorted()
  for (const other of about.answers.values()) expect(members(answer), about.name).toEqual(members(other))
}

export function answerOf(about: About, id: string): Answered {
  const answer = about.answers.get(id)
  if (!answer) throw new Error(`${about.name} is compared with ${id}, which has no answer`)
  return answer
}

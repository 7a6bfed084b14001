import { expect, test } from 'vitest'
import { webhookScheduleMs } from '../../core/backoff.ts'
import { secretsIn } from './endpoints.ts'
import { wants } from './wanted-types.ts'
import { verdictOf } from './verdicts.ts'

const fraction = (value: number) => ({ fraction: () => value })
const judge = (status: number | undefined, tries: number, retryAfterMs?: number) =>
  verdictOf(
    { ...(status !== undefined && { status }), ...(retryAfterMs !== undefined && { retryAfterMs }) },
    tries,
    webhookScheduleMs,
    fraction(0.5),
  )

test('only 2xx is a delivery: redirects, refusals and no answer at all are tried again', () => {
  for (const status of [200, 202, 204, 299]) expect(judge(status, 1)).toEqual({ is: 'delivered' })
  for (const status of [undefined, 199, 301, 304, 307, 400, 401, 404, 429, 500, 503]) {
    expect(judge(status, 1), String(status)).toEqual({ is: 'again', inMs: 5_000 })
  }
})

test('pauses are those of the schedule, a tenth shorter or longer, and the tenth attempt is the last', () => {
  const pauses = Array.from({ length: 9 }, (_, index) => judge(500, index + 1))
  expect(pauses).toEqual(webhookScheduleMs.slice(1).map((inMs) => ({ is: 'again', inMs })))
  expect(judge(500, 10)).toEqual({ is: 'exhausted' })
  expect([0, 0.999_999].map((drawn) => verdictOf({ status: 500 }, 3, webhookScheduleMs, fraction(drawn)))).toEqual([
    { is: 'again', inMs: 1_620_000 },
    { is: 'again', inMs: 1_980_000 },
  ])
})

test('all attempts end within four days, whatever is drawn and whatever the endpoint asks for', () => {
  const longest = webhookScheduleMs.map((_, tries) =>
    verdictOf({ status: 503, retryAfterMs: 1e12 }, tries + 1, webhookScheduleMs, fraction(0.999_999)),
  )
  const totalMs = longest.reduce((sum, verdict) => sum + ('inMs' in verdict ? verdict.inMs : 0), 0)
  // With 20 s for each attempt.
  expect(totalMs + 10 * 20_000).toBeLessThan(88 * 3_600_000)
})

test('410 is the end of an endpoint, and not of what is to be sent to it', () => {
  expect(judge(410, 1)).toEqual({ is: 'gone', inMs: 5_000 })
  expect(judge(410, 10)).toEqual({ is: 'gone', inMs: 0 })
})

test('types are compared whole, or by their beginning', () => {
  expect(wants([], 'order.placed')).toBe(true)
  expect(wants(['order.*'], 'order.placed')).toBe(true)
  expect(wants(['order.*'], 'orders.placed')).toBe(false)
  expect(wants(['order.place', 'order'], 'order.placed')).toBe(false)
})

test('a secret signs until its time is over', () => {
  const stored = JSON.stringify([{ secret: 'new' }, { secret: 'old', untilMs: 1_000 }])
  expect(secretsIn(undefined, stored, 999).map(({ secret }) => secret)).toEqual(['new', 'old'])
  expect(secretsIn(undefined, stored, 1_000).map(({ secret }) => secret)).toEqual(['new'])
})

import { afterEach, expect, test } from 'vitest'
import { createOnce } from '../core/once.ts'
import { memoryStore } from '../stores/memory.ts'
import { createMetrics } from './metrics.ts'
import type { Metrics } from './metrics.ts'

let metrics: Metrics
afterEach(() => metrics.close())

test('counts what happens to keys, in the text that Prometheus reads, without naming one', async () => {
  metrics = createMetrics()
  const once = createOnce({ store: memoryStore(), scope: 'secret-tenant' })
  await once.run('secret-key', () => 1)
  await once.run('secret-key', () => 1)
  await expect(once.run('secret-key', () => 1, { fingerprint: 'other' })).rejects.toThrow()
  metrics.gauge('onceonly_gateway_in_flight', 'Requests under way.', () => 7)
  const text = metrics.text()
  expect(text).toContain('# TYPE onceonly_claims_total counter\nonceonly_claims_total{how="fresh"} 1\n')
  expect(text).toContain('onceonly_replays_total 1\n')
  expect(text).toContain('onceonly_mismatches_total 1\n')
  expect(text).toContain('onceonly_expired_total 0\n')
  expect(text).toContain('onceonly_claim_seconds_bucket{le="+Inf"} 1\n')
  expect(text).toContain('onceonly_gateway_in_flight 7\n')
  expect(text).not.toContain('secret')
  // Every line is a comment or a sample.
  const sample = /^(?:# (?:HELP|TYPE) [a-z_]+ .+|[a-z_]+(?:\{[a-z]+="[^"{}\\]*"(?:,[a-z]+="[^"{}\\]*")*\})? [\d.e+-]+)$/
  for (const line of text.trimEnd().split('\n')) expect(line).toMatch(sample)
})

test('the buckets of a histogram add up', () => {
  metrics = createMetrics()
  for (const durationMs of [0.5, 3, 3, 100_000]) {
    metrics.request({ method: 'POST', path: '/', status: 201, result: 'executed', durationMs })
  }
  const text = metrics.text()
  const bucket = (le: string): string | undefined =>
    new RegExp(
      `^onceonly_gateway_request_seconds_bucket\\{result="executed",le="${le.replace('+', '\\+')}"\\} (\\d+)$`,
      'm',
    ).exec(text)?.[1]
  expect([bucket('0.001'), bucket('0.0025'), bucket('0.005'), bucket('60'), bucket('+Inf')]).toEqual([
    '1',
    '1',
    '3',
    '3',
    '4',
  ])
  expect(text).toContain('onceonly_gateway_request_seconds_count{result="executed"} 4\n')
  expect(text).toContain('onceonly_gateway_requests_total{result="executed",status="2xx"} 4\n')
})

test('the number of series does not grow with what clients send', () => {
  metrics = createMetrics()
  const size = (): number => metrics.text().split('\n').length
  metrics.request({ method: 'POST', path: '/a', status: 201, result: 'executed', durationMs: 1, keyHash: 'a' })
  const before = size()
  for (let at = 0; at < 1_000; at++) {
    metrics.request({
      method: `M${at}`,
      path: `/${at}`,
      status: 200 + (at % 100),
      result: 'executed',
      durationMs: at,
      keyHash: `${at}`,
    })
  }
  expect(size()).toBe(before)
})

test('nothing is counted any more when it is closed', async () => {
  metrics = createMetrics()
  metrics.close()
  await createOnce({ store: memoryStore(), scope: 'closed' }).run('k', () => 1)
  expect(metrics.text()).toContain('onceonly_claims_total 0\n')
})

import { readFileSync } from 'node:fs'
import { afterEach, expect, test } from 'vitest'
import { publish } from '../core/events.ts'
import type { EventName } from '../core/events.ts'
import { createOnce } from '../core/once.ts'
import { memoryStore } from '../stores/memory.ts'
import { manualClock } from '../testing/manual-clock.ts'
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
  expect(text).toMatch(/^process_resident_memory_bytes \d+$/m)
  expect(text).not.toContain('secret')
  // Every line is a comment or a sample.
  const sample = /^(?:# (?:HELP|TYPE) [a-z_]+ .+|[a-z_]+(?:\{[a-z]+="[^"{}\\]*"(?:,[a-z]+="[^"{}\\]*")*\})? [\d.e+-]+)$/
  for (const line of text.trimEnd().split('\n')) expect(line).toMatch(sample)
})

const lag = { unsent: 12, lagMs: 3_500, blockedKeys: 2, headOfLineMs: 90_000, parked: 4, dead: 5 }

test.each<[line: string, name: EventName, event: object]>([
  ['onceonly_claims_total{how="taken-over"} 1', 'claimed', { attempt: 2, how: 'taken-over', durationMs: 3 }],
  ['onceonly_claim_seconds_bucket{le="0.005"} 1', 'claimed', { attempt: 1, how: 'fresh', durationMs: 3 }],
  ['onceonly_replays_total 1', 'replayed', { attempt: 1, durationMs: 1 }],
  ['onceonly_settles_total{kind="failure"} 1', 'settled', { attempt: 1, kind: 'failure', durationMs: 2 }],
  ['onceonly_settle_seconds_bucket{le="0.0025"} 1', 'settled', { attempt: 1, kind: 'value', durationMs: 2 }],
  ['onceonly_releases_total{how="left-to-lease"} 1', 'released', { attempt: 1, how: 'left-to-lease', durationMs: 1 }],
  ['onceonly_claims_lost_total 1', 'lost', { attempt: 1, durationMs: 1 }],
  ['onceonly_mismatches_total 1', 'mismatched', {}],
  ['onceonly_expired_total 1', 'expired', {}],
  ['onceonly_waits_total{ended="in-flight"} 1', 'waited', { durationMs: 1, ended: 'in-flight' }],
  ['onceonly_doubts_total 1', 'doubted', { attempt: 1 }],
  ['onceonly_unprotected_total{code="STORE_UNAVAILABLE"} 1', 'unprotected', { code: 'STORE_UNAVAILABLE' }],
  [
    'onceonly_store_failures_total{during="claim",code="STORE_UNAVAILABLE"} 1',
    'store-failed',
    { during: 'claim', code: 'STORE_UNAVAILABLE' },
  ],
  [
    'onceonly_store_unfit_total{store="postgres",code="SCHEMA_MISSING"} 1',
    'store-unfit',
    { store: 'postgres', code: 'SCHEMA_MISSING' },
  ],
  [
    'onceonly_data_loss_total{evidence="emptied"} 1',
    'data-loss',
    { store: 'redis', register: 'r', evidence: 'emptied', quarantined: true },
  ],
  ['onceonly_swept_total{what="tombstoned"} 4', 'swept', { tombstoned: 4, forgotten: 2 }],
  ['onceonly_swept_total{what="forgotten"} 2', 'swept', { tombstoned: 4, forgotten: 2 }],
  ['onceonly_mended_total{action="resolve"} 1', 'mended', { action: 'resolve' }],
  ['onceonly_messages_total{is="handled",code=""} 1', 'message', { is: 'handled' }],
  ['onceonly_messages_total{is="refused",code="STALE"} 1', 'message', { is: 'refused', code: 'STALE' }],
  [
    'onceonly_consumer_failures_total{broker="sqs",during="extend"} 1',
    'consumer-failed',
    { broker: 'sqs', consumer: 'mailer', during: 'extend' },
  ],
  [
    'onceonly_messages_trimmed_total{broker="redis-streams"} 7',
    'messages-trimmed',
    { broker: 'redis-streams', consumer: 'mailer', count: 7 },
  ],
  ['onceonly_relayed_total 5', 'relayed', { shard: 1, publisher: 'kafka', count: 5, lagMs: 3 }],
  ['onceonly_relay_blocked_total 1', 'relay-blocked', { shard: 1, tries: 2, ageMs: 3 }],
  ['onceonly_dead_letters_total{how="parked"} 1', 'dead-lettered', { shard: 1, tries: 2, how: 'parked' }],
  ['onceonly_relay_failures_total 1', 'relay-failed', { publisher: 'kafka', reason: 'ECONNREFUSED' }],
  ['onceonly_relay_shards_total{how="lost"} 1', 'relay-shard', { shard: 1, epoch: 2, how: 'lost' }],
  [
    'onceonly_relay_decoding_total{how="polling"} 1',
    'relay-decoding',
    { slot: 'relay_1', how: 'polling', reason: '55006' },
  ],
  ['onceonly_outbox_unsent 12', 'relay-lag', lag],
  ['onceonly_outbox_lag_seconds 3.5', 'relay-lag', lag],
  ['onceonly_outbox_blocked_keys 2', 'relay-lag', lag],
  ['onceonly_outbox_head_of_line_seconds 90', 'relay-lag', lag],
  ['onceonly_outbox_parked 4', 'relay-lag', lag],
  ['onceonly_outbox_dead 5', 'relay-lag', lag],
])('%s after %s', (line, name, event) => {
  metrics = createMetrics()
  publish(name, undefined, event as never)
  expect(metrics.text().split('\n')).toContain(line)
})

test('every family of the page is tested above, or is the gateway’s own', () => {
  metrics = createMetrics()
  const families = Array.from(metrics.text().matchAll(/^# TYPE (\S+)/gm), ([, name]) => name!)
  const tested = readFileSync(import.meta.filename, 'utf8')
  expect(families.filter((name) => !tested.includes(name))).toEqual([])
})

test('a process without an inbox and a relay has no figures of them, and the lag of a relay that fell silent is no figure', async () => {
  const clock = manualClock()
  metrics = createMetrics(clock)
  expect(metrics.text()).not.toMatch(/onceonly_(messages|relay|dead|consumer|outbox)/)
  publish('relay-lag', undefined, lag)
  await clock.advance(60_000)
  expect(metrics.text()).toContain('# TYPE onceonly_outbox_lag_seconds gauge\nonceonly_outbox_lag_seconds 3.5\n')
  await clock.advance(1)
  expect(metrics.text()).not.toContain('outbox')
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

import { expect, test } from 'vitest'
import { checkEvent, rowOf } from './envelope.ts'
import type { EnvelopeContext, EnvelopeMode, OutboxEvent } from './envelope.ts'
import { laneOf, lanesCount, lanesOf } from './lanes.ts'

const event: OutboxEvent = { topic: 'orders', type: 'order.placed', key: 'order-42', data: { total: 1999 } }

const context = (mode: EnvelopeMode): EnvelopeContext => ({
  mode,
  source: 'shop',
  id: '0192f0c1-0000-7000-8000-000000000000',
  atMs: Date.UTC(2026, 10, 16),
  traceparent: undefined,
})

const trace = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'

test('binary: the attributes are headers, and the body is the data', () => {
  const row = rowOf({ ...event, subject: 'cart', headers: { tenant: 'acme' } }, 0, context('binary'))
  expect(row).toMatchObject({ topic: 'orders', key: 'order-42', type: 'order.placed', payload: '{"total":1999}' })
  expect(row.headers).toEqual({
    tenant: 'acme',
    'ce-specversion': '1.0',
    'ce-id': '0192f0c1-0000-7000-8000-000000000000',
    'ce-source': 'shop',
    'ce-type': 'order.placed',
    'ce-subject': 'cart',
    'ce-time': '2026-11-16T00:00:00.000Z',
    'ce-partitionkey': 'order-42',
    'content-type': 'application/json',
  })
})

test('structured: the body is the whole event, and the headers still say which one it is', () => {
  const row = rowOf({ ...event, traceparent: trace }, 0, context('structured'))
  expect(JSON.parse(row.payload)).toEqual({
    specversion: '1.0',
    id: '0192f0c1-0000-7000-8000-000000000000',
    source: 'shop',
    type: 'order.placed',
    time: '2026-11-16T00:00:00.000Z',
    datacontenttype: 'application/json',
    partitionkey: 'order-42',
    traceparent: trace,
    data: { total: 1999 },
  })
  expect(row.headers).toMatchObject({ 'ce-id': '0192f0c1-0000-7000-8000-000000000000', traceparent: trace })
  expect(row.headers['content-type']).toBe('application/cloudevents+json; charset=utf-8')
})

test('bytes are sent as they are, or as data_base64', () => {
  const data = new Uint8Array([0, 255, 1]).subarray(1)
  expect(rowOf({ ...event, data }, 0, context('binary'))).toMatchObject({ payload: '/wE=', encoding: 'base64' })
  const structured = rowOf({ ...event, data }, 0, context('structured'))
  expect(JSON.parse(structured.payload)).toMatchObject({
    data_base64: '/wE=',
    datacontenttype: 'application/octet-stream',
  })
})

test('an event without data has no body and no content type; text of another media type goes as it is', () => {
  const { data: _, ...bare } = event
  const row = rowOf(bare, 0, context('binary'))
  expect(row.payload).toBe('')
  expect(row.headers).not.toHaveProperty('content-type')
  expect(JSON.parse(rowOf(bare, 0, context('structured')).payload)).not.toHaveProperty('data')
  const xml = { ...event, data: '<a/>', contentType: 'application/xml' }
  expect(rowOf(xml, 0, context('binary')).payload).toBe('<a/>')
  expect(JSON.parse(rowOf(xml, 0, context('structured')).payload)).toMatchObject({ data: '<a/>' })
  expect(rowOf({ ...event, data: null }, 0, context('binary')).payload).toBe('null')
})

test('the trace of the moment is carried, and an event can have its own', () => {
  const given = { ...context('binary'), traceparent: trace }
  expect(rowOf(event, 0, given).headers['traceparent']).toBe(trace)
  const own = trace.replace(/01$/, '00')
  expect(rowOf({ ...event, traceparent: own }, 0, given).headers['traceparent']).toBe(own)
})

test.each<[object, string]>([
  [{ topic: '' }, 'topic'],
  [{ type: undefined }, 'type'],
  [{ key: 'x'.repeat(256) }, 'key'],
  [{ key: 'a\nb' }, 'key'],
  [{ key: '\ud800' }, 'key'],
  [{ headers: { 'ce-id': 'mine' } }, 'headers'],
  [{ headers: { Tenant: 'x' } }, 'headers'],
  [{ headers: { tenant: 'a\r\nb' } }, 'headers'],
  [{ traceparent: '00-xyz' }, 'traceparent'],
  [{ kee: 'order-42' }, 'did you mean "key"'],
])('an event that cannot be sent is refused: %j', (changes, what) => {
  expect(() => checkEvent({ ...event, ...changes })).toThrow(what)
})

test.each<[refused: string, data: unknown]>([
  ['NaN in "total" cannot be stored as JSON', { total: Number.NaN }],
  ['an invalid Date in "at" cannot be stored as JSON', { at: new Date('soon') }],
  ['a Map in "lines" cannot be stored as JSON', { lines: new Map([[1, 2]]) }],
])('data that JSON would silently change is refused: %s', (refused, data) => {
  expect(() => rowOf({ ...event, data }, 0, context('binary'))).toThrow(
    `outbox.add: expected data to be JSON or bytes: ${refused}`,
  )
})

test('data that is no JSON is refused', () => {
  const circle: Record<string, unknown> = {}
  circle['self'] = circle
  for (const data of [circle, 1n, () => 1, Symbol('data')]) {
    expect(() => rowOf({ ...event, data }, 0, context('binary'))).toThrow('data')
  }
})

test('every lane belongs to one shard, and keys are spread over all of them', () => {
  for (const shards of [1, 3, 8, lanesCount]) {
    const dealt = Array.from({ length: shards }, (_, shard) => lanesOf(shard, shards)).flat()
    expect(dealt.toSorted((a, b) => a - b)).toEqual(Array.from({ length: lanesCount }, (_, lane) => lane))
  }
  const lanes = new Set(Array.from({ length: 20_000 }, (_, index) => laneOf(`order-${index}`)))
  expect(lanes.size).toBe(lanesCount)
})

test('the lane of a key never changes: its order would be lost', () => {
  expect(['order-42', 'a', 'ü'].map(laneOf)).toEqual([1016, 663, 116])
})

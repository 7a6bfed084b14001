import { expect, test } from 'vitest'
import { FinalError } from '../../core/errors.ts'
import { encodeOutcome } from '../../core/outcome.ts'
import type { Codec, Outcome } from '../../core/outcome.ts'
import { encodeAnswer, encodeNotStored } from '../../http/exchange.ts'
import { shownOutcome } from './outcome.ts'
import type { ShownOutcome } from './outcome.ts'

const key = { scope: 'payments', id: '42' }

function shown(outcome: Outcome, codec?: Codec): ShownOutcome {
  return shownOutcome(key, encodeOutcome(outcome, codec).bytes)
}

const secret = 'card wxyz'

test('JSON, a failure and nothing at all', () => {
  expect(shown({ kind: 'value', value: { secret } })).toMatchObject({
    what: 'a value as JSON, 23 bytes',
    content: { secret },
  })
  expect(shown({ kind: 'value', value: undefined })).toMatchObject({
    what: 'done, without a value',
    content: undefined,
  })
  expect(shown({ kind: 'failure', error: new FinalError(secret, { data: 1 }) })).toMatchObject({
    what: expect.stringContaining('a failure that is itself the answer') as string,
    content: { message: secret, data: 1 },
  })
  expect(shown({ kind: 'not-stored', reason: 'a BigInt' }).what).toContain('could not be stored: a BigInt')
})

test('an HTTP response is told by its status and type; body and headers are content', () => {
  const options = { replaySetCookie: false, replayHeader: 'idempotent-replayed' }
  const headers = [
    ['Content-Type', 'application/json'],
    ['X-Secret', secret],
  ] as const
  const value = encodeAnswer({ status: 201, headers, body: Buffer.from('{"id":1}') }, options)
  const { what, content } = shown({ kind: 'value', value })
  expect(what).toBe('an HTTP response, 201 application/json, body of 8 bytes')
  expect(content).toEqual({ status: 201, headers, body: { id: 1 } })
  expect(shown({ kind: 'value', value: encodeNotStored() }).what).toContain('too large to store')
})

test('bytes that are no response, text or not', () => {
  expect(shown({ kind: 'value', value: Buffer.from('plain') })).toMatchObject({
    what: 'bytes, 5 bytes',
    content: 'plain',
  })
  expect(shown({ kind: 'value', value: Uint8Array.of(255, 0) }).content).toEqual({ base64: '/wA=' })
})

test('what a codec wrote, and what nobody can read, is said to be so', () => {
  const codec: Codec = { encode: () => Uint8Array.of(1, 2), decode: () => undefined }
  expect(shown({ kind: 'value', value: 1 }, codec).what).toBe(
    '3 bytes that cannot be read here: it was written with a codec, and none is given',
  )
  expect(shownOutcome(key, Uint8Array.of(0)).what).toContain('which no version of onceonly writes')
  expect(shownOutcome(key, Buffer.from('j{"cut')).what).toContain('cannot be read here')
})

test('the few words hold nothing of what is inside', () => {
  const outcomes: Outcome[] = [
    { kind: 'value', value: { secret } },
    { kind: 'value', value: Buffer.from(secret) },
    { kind: 'failure', error: new FinalError(secret) },
  ]
  for (const outcome of outcomes) expect(shown(outcome).what).not.toContain('wxyz')
})

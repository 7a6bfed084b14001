// An answer from Redis counts for the key, the fingerprint and the secret that it was sealed for, and for no other.

import { createSecretKey } from 'node:crypto'
import { expect, test } from 'vitest'
import { key } from '../../core/key.ts'
import { seal, unseal } from './sealed.ts'

const secret = createSecretKey(Buffer.alloc(32, 1))
const subject = key('payments', '42')
const cached = {
  untilMs: 1_700_000_000_123,
  answer: { version: 3, attempt: 2, outcome: new Uint8Array(Buffer.from('j"charged"')) },
}
const sealed = seal(secret, subject, 'print', cached)

test('what was sealed is read as it was', () => {
  expect(unseal(secret, subject, 'print', sealed)).toStrictEqual(cached)
  const empty = { untilMs: 1, answer: { version: -1, attempt: 2 ** 31 - 1, outcome: new Uint8Array() } }
  expect(unseal(secret, subject, 'print', seal(secret, subject, 'print', empty))).toStrictEqual(empty)
})

test('for another key, fingerprint or secret it is nothing', () => {
  expect(unseal(secret, key('payments', '43'), 'print', sealed)).toBeUndefined()
  expect(unseal(secret, key('payments4', '2'), 'print', sealed)).toBeUndefined()
  expect(unseal(secret, key('payment', 's42'), 'print', sealed)).toBeUndefined()
  expect(unseal(secret, key('payments', '42p'), 'rint', sealed)).toBeUndefined()
  expect(unseal(secret, subject, 'other', sealed)).toBeUndefined()
  expect(unseal(createSecretKey(Buffer.alloc(32, 2)), subject, 'print', sealed)).toBeUndefined()
})

test('no byte of it can be changed, added or left out', () => {
  for (let at = 0; at < sealed.length; at++) {
    const changed = Buffer.from(sealed)
    changed[at]! ^= 1
    expect(unseal(secret, subject, 'print', changed), `byte ${at}`).toBeUndefined()
  }
  for (const length of [0, 31, 32, 47, sealed.length - 1])
    expect(unseal(secret, subject, 'print', sealed.subarray(0, length))).toBeUndefined()
  expect(unseal(secret, subject, 'print', Buffer.concat([sealed, Buffer.alloc(1)]))).toBeUndefined()
})

test('what is read holds on to nothing of the reply that it came in', () => {
  const reply = Buffer.concat([Buffer.alloc(1_000), sealed])
  const { answer } = unseal(secret, subject, 'print', reply.subarray(1_000))!
  expect(answer.outcome.buffer.byteLength).toBe(answer.outcome.length)
})

// The official package of Standard Webhooks verifies what we sign, and we verify what it signs. Where it is lax, we are not.

import { createHmac } from 'node:crypto'
import { expect, test } from 'vitest'
import { needs } from '../servers/needs.ts'
import { requireStandardWebhooks } from '../servers/standardwebhooks.ts'
import type { OfficialWebhook } from '../servers/standardwebhooks.ts'
import { scheme, secret, signer } from './signed.ts'

const id = 'msg_1'

// It reads the wall clock, so these are signed now.
function signedNow(body: Uint8Array): Record<string, string> {
  return { ...signer.sign({ id, sentAtMs: Date.now(), body }) }
}

needs('standardwebhooks').describe('the official package', () => {
  const official = (): OfficialWebhook => new (requireStandardWebhooks())(secret)
  const texts = ['{"test": 2432232314}', '', '"ü😀\u0000"', `{"long":"${'x'.repeat(100_000)}"}`]

  /** As it signs, now. */
  function itsHeaders(body: string | Buffer): Record<string, string> {
    const at = new Date()
    const seconds = String(Math.floor(at.getTime() / 1_000))
    return { 'webhook-id': id, 'webhook-timestamp': seconds, 'webhook-signature': official().sign(id, at, body) }
  }

  test('verifies what we sign', () => {
    for (const text of texts) {
      const headers = signedNow(Buffer.from(text))
      expect(() => official().verify(Buffer.from(text), headers, { jsonParse: false })).not.toThrow()
      expect(() => official().verify(`${text} `, headers, { jsonParse: false })).toThrow('No matching signature')
    }
  })

  test('signs what we verify', () => {
    for (const text of texts) expect(scheme.verify({ headers: itsHeaders(text), body: Buffer.from(text) }).id).toBe(id)
  })

  test('accepts a time with junk behind it, and we do not', () => {
    const body = Buffer.from('{"test": 2432232314}')
    const seconds = String(Math.floor(Date.now() / 1_000))
    const key = Buffer.from(secret.slice(6), 'base64')
    const signature = createHmac('sha256', key).update(`${id}.${seconds}.`).update(body).digest('base64')
    const headers = { 'webhook-id': id, 'webhook-timestamp': `${seconds}abc`, 'webhook-signature': `v1,${signature}` }
    expect(() => official().verify(body, headers)).not.toThrow()
    expect(() => scheme.verify({ headers, body })).toThrow('must be an integer of seconds')
  })

  test('accepts another body under the same signature where it is not UTF-8, and we do not', () => {
    const [meant, other] = [Buffer.from([0x22, 0xff, 0x22]), Buffer.from([0x22, 0xfe, 0x22])]
    expect(() => official().verify(other, itsHeaders(meant))).not.toThrow()
    const headers = signedNow(meant)
    expect(scheme.verify({ headers, body: meant }).id).toBe(id)
    expect(() => scheme.verify({ headers, body: other })).toThrow('no signature')
  })
})

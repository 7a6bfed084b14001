// The secrets of Standard Webhooks. The prefix decides the algorithm: `whsec_` is HMAC-SHA256 (v1), `whsk_` and `whpk_` are the private
// and the public half of ed25519 (v1a). Invariant: a secret is decoded strictly or refused, so that a cut or mistyped one signs nothing.

import {
  createHmac,
  createPrivateKey,
  createPublicKey,
  createSecretKey,
  sign,
  timingSafeEqual,
  verify,
} from 'node:crypto'
import type { KeyObject } from 'node:crypto'
import { invalidArgument } from '../../core/errors.ts'

/** `whsec_…`, `whsk_…` or `whpk_…`. Bytes are a secret for HMAC-SHA256. */
export type WebhookSecret = string | Uint8Array

export interface WebhookKey {
  readonly version: 'v1' | 'v1a'
  /** The signature of `head` and the body, in base64. Undefined for a public key. */
  readonly sign: ((head: string, body: Uint8Array) => string) | undefined
  /** Computes once, and then tells of each signature whether it is one of this key. */
  verifier(head: string, body: Uint8Array): (signature: string) => boolean
}

// The specification asks for 24 to 64 bytes. A shorter one can only be given as bytes, by a user who knows.
const secretBytesMin = 24

export function webhookKeys(what: string, secrets: WebhookSecret | readonly WebhookSecret[]): readonly WebhookKey[] {
  const all = Array.isArray(secrets) ? (secrets as readonly WebhookSecret[]) : [secrets as WebhookSecret]
  if (all.length === 0) throw invalidArgument(`${what}: expected secrets to have at least one, got none`)
  return all.map((secret) => webhookKey(what, secret))
}

function webhookKey(what: string, secret: WebhookSecret): WebhookKey {
  if (secret instanceof Uint8Array) {
    if (secret.length === 0) throw invalidArgument(`${what}: expected a secret to have at least one byte, got none`)
    return hmacKey(Buffer.from(secret))
  }
  if (typeof secret !== 'string') throw invalidArgument(`${what}: expected a secret to be a string or bytes`)
  const [prefix] = /^wh(sec|sk|pk)_/.exec(secret) ?? []
  if (prefix === undefined) {
    // The message must not show the secret.
    throw invalidArgument(
      `${what}: expected a secret to begin with whsec_ (HMAC), whsk_ or whpk_ (ed25519). Give a secret of another form as bytes.`,
    )
  }
  const bytes = strictBase64(secret.slice(prefix.length))
  if (!bytes) throw invalidArgument(`${what}: expected base64 after ${prefix} of a secret`)
  if (prefix === 'whpk_') return ed25519Key(what, { publicBytes: bytes })
  if (prefix === 'whsk_') return ed25519Key(what, { privateBytes: bytes })
  if (bytes.length < secretBytesMin) {
    throw invalidArgument(
      `${what}: expected at least ${secretBytesMin} bytes after whsec_, got ${bytes.length}. Give a shorter secret as bytes.`,
    )
  }
  return hmacKey(bytes)
}

/** The bytes of canonical base64, padded or not. Undefined for anything else: Node's own decoder skips what it does not know. */
export function strictBase64(text: string): Buffer | undefined {
  const bytes = Buffer.from(text, 'base64')
  const canonical = bytes.toString('base64')
  return canonical === text || canonical.replace(/=+$/, '') === text ? bytes : undefined
}

function hmacKey(bytes: Buffer): WebhookKey {
  // Once, and not for every webhook: Node takes eight times as long with bytes.
  const secret = createSecretKey(bytes)
  const signature = (head: string, body: Uint8Array): string =>
    createHmac('sha256', secret).update(head, 'latin1').update(body).digest('base64')
  return {
    version: 'v1',
    sign: signature,
    verifier(head, body) {
      const expected = Buffer.from(signature(head, body), 'latin1')
      // The texts are compared and not what they decode to: base64 has many ways to write the same bytes.
      return (given) => /^[A-Za-z0-9+/]{43}=$/.test(given) && timingSafeEqual(expected, Buffer.from(given, 'latin1'))
    },
  }
}

interface Ed25519Bytes {
  readonly publicBytes?: Buffer
  readonly privateBytes?: Buffer
}

// What DER has before the 32 bytes of a key (RFC 8410).
const privateKeyHead = Buffer.from('302e020100300506032b657004220420', 'hex')
const publicKeyHead = Buffer.from('302a300506032b6570032100', 'hex')

function ed25519Key(what: string, { publicBytes, privateBytes }: Ed25519Bytes): WebhookKey {
  const privateKey = privateBytes && privateKeyOf(what, privateBytes)
  const publicKey = privateKey ? createPublicKey(privateKey) : publicKeyOf(what, publicBytes!)
  const contentOf = (head: string, body: Uint8Array): Buffer => Buffer.concat([Buffer.from(head, 'latin1'), body])
  return {
    version: 'v1a',
    sign: privateKey && ((head, body) => sign(null, contentOf(head, body), privateKey).toString('base64')),
    verifier(head, body) {
      const content = contentOf(head, body)
      return (given) => {
        if (!/^[A-Za-z0-9+/]{86}==$/.test(given)) return false
        const signature = strictBase64(given)
        return signature !== undefined && verify(null, content, publicKey, signature)
      }
    },
  }
}

/** 32 bytes, or 64 with the public half behind them, as libsodium writes it. */
function privateKeyOf(what: string, bytes: Buffer): KeyObject {
  if (bytes.length !== 32 && bytes.length !== 64) {
    throw invalidArgument(`${what}: expected 32 or 64 bytes after whsk_, got ${bytes.length}`)
  }
  const key = createPrivateKey({
    key: Buffer.concat([privateKeyHead, bytes.subarray(0, 32)]),
    format: 'der',
    type: 'pkcs8',
  })
  if (bytes.length === 64 && !bytes.subarray(32).equals(publicBytesOf(key))) {
    throw invalidArgument(`${what}: the two halves of a secret after whsk_ do not belong together`)
  }
  return key
}

function publicKeyOf(what: string, bytes: Buffer): KeyObject {
  if (bytes.length !== 32) throw invalidArgument(`${what}: expected 32 bytes after whpk_, got ${bytes.length}`)
  return createPublicKey({ key: Buffer.concat([publicKeyHead, bytes]), format: 'der', type: 'spki' })
}

export function publicBytesOf(privateKey: KeyObject): Buffer {
  return createPublicKey(privateKey).export({ format: 'der', type: 'spki' }).subarray(publicKeyHead.length)
}

export function privateBytesOf(privateKey: KeyObject): Buffer {
  return privateKey.export({ format: 'der', type: 'pkcs8' }).subarray(privateKeyHead.length)
}

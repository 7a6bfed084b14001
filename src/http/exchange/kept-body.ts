// The raw body that a parser before us kept. Without it there is nothing to fingerprint: the parsed value loses differences
// (two members of one name, digits beyond a double), and two different requests would pass for one.

import { hash } from 'node:crypto'
import { OnceError } from '../../core/errors.ts'
import type { Body, BodyLimits } from '../exchange.ts'

export function keptBytes(bytes: Uint8Array | undefined, limits: BodyLimits): Body {
  if (!bytes) throw bodyIsGone()
  if (bytes.length <= limits.bytesMax) return { is: 'bytes', bytes }
  if (limits.sha256 === undefined) return { is: 'too-large' }
  return hash('sha256', bytes, 'base64') === limits.sha256 ? { is: 'bytes', bytes } : { is: 'digest-mismatch' }
}

function bodyIsGone(): OnceError {
  return new OnceError('UNSUPPORTED', {
    message:
      'The body of a request with an Idempotency-Key was consumed before idempotency() could see its bytes. ' +
      'Put idempotency() before the body parser, or have the parser keep the raw bytes: ' +
      'express.json({ verify: (req, res, bytes) => { req.rawBody = bytes } }), or rawBody: true in NestFactory.create.',
  })
}

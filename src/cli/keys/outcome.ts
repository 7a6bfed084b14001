// What an entry holds, as far as it can be read without the service's own code. The contents are shown only with --reveal:
// outcomes are answers to customers.

import { decodeOutcome } from '../../core/outcome.ts'
import type { Key } from '../../core/key.ts'
import { decodeStored } from '../../http/exchange.ts'
import type { Answer } from '../../http/exchange.ts'
import { size } from '../words.ts'

export interface ShownOutcome {
  /** In a few words, without the contents. */
  readonly what: string
  readonly bytes: number
  /** The contents: text, JSON or, for bytes, { base64 }. */
  readonly content: unknown
}

export function shownOutcome(key: Key, stored: Uint8Array): ShownOutcome {
  const bytes = stored.length
  try {
    const outcome = decodeOutcome(stored, undefined, key)
    if (outcome.kind === 'not-stored') {
      return { what: `done, but its value could not be stored: ${outcome.reason}`, bytes, content: undefined }
    }
    if (outcome.kind === 'failure') {
      const { message, data } = outcome.error
      const content = data === undefined ? { message } : { message, data }
      return { what: `a failure that is itself the answer, ${size(bytes)}`, bytes, content }
    }
    if (outcome.value instanceof Uint8Array) return { ...bytesOrResponse(outcome.value), bytes }
    if (outcome.value === undefined) return { what: 'done, without a value', bytes, content: undefined }
    return { what: `a value as JSON, ${size(bytes)}`, bytes, content: outcome.value }
  } catch (error) {
    // A codec of the service (encryption, BigInt), or data that cannot be read any more: the message distinguishes them.
    const why = error instanceof Error && error.cause instanceof Error ? error.cause.message : String(error)
    return { what: `${size(bytes)} that cannot be read here: ${why}`, bytes, content: contentOf(stored) }
  }
}

function bytesOrResponse(value: Uint8Array): Omit<ShownOutcome, 'bytes'> {
  try {
    const stored = decodeStored(value)
    if (stored.is === 'not-stored') {
      return { what: 'an HTTP response that was too large to store; it was sent once', content: undefined }
    }
    return responseOf(stored.answer)
  } catch {
    return { what: `bytes, ${size(value.length)}`, content: contentOf(value) }
  }
}

function responseOf({ status, message, headers, body }: Answer): Omit<ShownOutcome, 'bytes'> {
  const type = headers.find(([name]) => name.toLowerCase() === 'content-type')?.[1]
  const what = `an HTTP response, ${status}${type === undefined ? '' : ` ${type}`}, body of ${size(body.length)}`
  return { what, content: { status, ...(message === undefined ? {} : { message }), headers, body: contentOf(body) } }
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/** JSON or text where it is that, else base64. */
export function contentOf(given: Uint8Array): unknown {
  let content: string
  try {
    content = utf8.decode(given)
  } catch {
    return { base64: Buffer.from(given).toString('base64') }
  }
  try {
    return JSON.parse(content) as unknown
  } catch {
    return content
  }
}

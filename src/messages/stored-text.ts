// What an inbox keeps of a message, and of what its handler said. With a codec nothing of it is stored in the clear.

import type { Codec } from '../core/outcome.ts'

const encoded = '$codec:'

export function encodeText(codec: Codec | undefined, text: string): string {
  return codec ? `${encoded}${Buffer.from(codec.encode(text)).toString('base64')}` : text
}

/** What another process encoded stays as it is without its codec. */
export function decodeText(codec: Codec | undefined, text: string): string {
  const bytes = encodedBytes(text)
  return codec && bytes ? (codec.decode(bytes) as string) : text
}

function encodedBytes(text: string): Uint8Array | undefined {
  return text.startsWith(encoded) ? new Uint8Array(Buffer.from(text.slice(encoded.length), 'base64')) : undefined
}

/**
 * For people, who do not have the codec of the service: JSON in lines, with bodies as text where they are text. Of what a codec wrote, how
 * much it is and what it looks like, as `onceonly keys show` does with an outcome.
 */
export function shownText(stored: string): string {
  const bytes = encodedBytes(stored)
  if (bytes === undefined) return readable(stored)
  return `${bytes.length} bytes that cannot be read here: a codec of the service wrote them.\n${textOf(bytes) ?? Buffer.from(bytes).toString('base64')}`
}

function readable(text: string): string {
  try {
    const said: unknown = JSON.parse(text, withText)
    return typeof said === 'object' ? JSON.stringify(said, undefined, 2) : text
  } catch {
    return text
  }
}

function withText(_name: string, value: unknown): unknown {
  const bytes = (value as { readonly $bytes?: unknown } | null)?.$bytes
  return typeof bytes === 'string' ? (textOf(Buffer.from(bytes, 'base64')) ?? value) : value
}

const utf8 = new TextDecoder('utf-8', { fatal: true })

function textOf(bytes: Uint8Array): string | undefined {
  try {
    return utf8.decode(bytes)
  } catch {
    return undefined
  }
}

// Values as SQL literals. Invariant: every value that comes from outside passes through one of these functions, so that what is
// sent consists of our words, digits and hexadecimal. Nothing in it depends on the SQL mode or the character set of the session,
// and no client finds a parameter in it.

import { invalidArgument } from '../../core/errors.ts'
import { keyPartBytesMax } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Claim } from '../../core/store.ts'

export function keyLiterals({ scope, id }: Key): [string, string] {
  return [keyPart(scope), keyPart(id)]
}

export function claimLiterals({ key, token: held, fence }: Claim): string[] {
  return [...keyLiterals(key), token(held), integer('fence', fence)]
}

export function keyPart(text: string): string {
  return name('scope and id', text)
}

export function recordName(text: string): string {
  return name('the name of a record', text)
}

// Without the strict mode the server would cut off what is too long, and two keys would be one.
function name(what: string, text: string): string {
  const bytes = Buffer.from(text)
  if (bytes.length > keyPartBytesMax) {
    throw invalidArgument(`expected ${what} of at most ${keyPartBytesMax} bytes of UTF-8, got ${bytes.length}`)
  }
  return hex(bytes)
}

/** Longer than core makes them, shorter than the column. */
const fingerprintBytesMax = 64

export function fingerprint(text: string): string {
  const bytes = Buffer.from(text)
  if (bytes.length <= fingerprintBytesMax) return hex(bytes)
  throw invalidArgument(
    `expected a fingerprint of at most ${fingerprintBytesMax} bytes of UTF-8, got ${bytes.length} bytes`,
  )
}

export function hex(bytes: Uint8Array): string {
  return `x'${Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('hex')}'`
}

export function integer(what: string, value: number): string {
  if (!Number.isSafeInteger(value)) throw invalidArgument(`expected ${what} to be an integer, got ${String(value)}`)
  return String(value)
}

export function token(text: string): string {
  if (!/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(text)) {
    throw invalidArgument(`expected a token to be a UUID in lower case, got ${JSON.stringify(text)}`)
  }
  return `'${text}'`
}

export function word(text: string): string {
  if (!/^[a-z0-9_]+$/.test(text)) throw invalidArgument(`expected a word of our own, got ${JSON.stringify(text)}`)
  return `'${text}'`
}

// A statement of ours as a text constant: it has quotes, and no backslash.
export function quoted(statement: string): string {
  return `'${statement.replaceAll("'", "''")}'`
}

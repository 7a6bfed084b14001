// The parts of a multipart body, without the boundary between them. `fetch` draws a new boundary per attempt, so the bytes of a
// retry differ though the form is the same. One pass over the body, no copy.

import { createHash } from 'node:crypto'

/** RFC 2046, 5.1.1: 1 to 70 characters, and no blank at the end. */
const boundaryParameter =
  /^multipart\/[^;\s]+\s*;(?:[^"]*;)?\s*boundary=(?:"([0-9A-Za-z'()+_,./:=? -]{1,70})"|([0-9A-Za-z'()+_,./:=?-]{1,70}))\s*(?:;|$)/i

/** Undefined when the field names no boundary, or an invalid one. */
export function boundaryOf(contentType: string | undefined): string | undefined {
  if (contentType === undefined || contentType.length > 1_024) return undefined
  const [, quoted, bare] = boundaryParameter.exec(contentType) ?? []
  const boundary = quoted ?? bare
  return boundary === undefined || boundary.endsWith(' ') ? undefined : boundary
}

/**
 * A digest of what stands between the delimiters, framed by lengths, so that no two lists of parts collide. Undefined when the
 * body does not match its boundary. Such a body is compared as bytes.
 */
export function multipartDigest(body: Uint8Array, boundary: string): string | undefined {
  const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  const delimiter = Buffer.from(`\r\n--${boundary}`)
  const digest = createHash('sha256')
  const add = (part: Buffer): void => void digest.update(`${part.length}:`).update(part)
  // The first delimiter may stand at the very beginning, without a line break before it.
  const opens = bytes.subarray(0, delimiter.length - 2).equals(delimiter.subarray(2))
  let at = opens ? delimiter.length - 2 : after(bytes, delimiter, 0)
  if (at < 0) return undefined
  add(opens ? bytes.subarray(0, 0) : bytes.subarray(0, at - delimiter.length))
  for (;;) {
    // Two dashes close the body. What follows is no part, and is compared, too.
    if (bytes[at] === 0x2d && bytes[at + 1] === 0x2d) {
      add(bytes.subarray(at + 2))
      return digest.digest('base64')
    }
    const next = after(bytes, delimiter, at)
    if (next < 0) return undefined
    add(bytes.subarray(at, next - delimiter.length))
    at = next
  }
}

function after(bytes: Buffer, delimiter: Buffer, from: number): number {
  const found = bytes.indexOf(delimiter, from)
  return found < 0 ? -1 : found + delimiter.length
}

// The id that `keyOf` of onceonly makes, with Web Crypto: browsers have no other SHA-256, and theirs is asynchronous.

import { formatUuid } from '../../core/clock.ts'
import { invalidArgument, OnceError } from '../../core/errors.ts'

/**
 * A key from business parts, always the same for the same parts: the id that `keyOf` of onceonly makes of them. It needs Web Crypto,
 * which a browser has on https and localhost only.
 *
 * @example
 * ```ts
 * import { browserKeys, createClient, keyOf } from 'onceonly/client'
 *
 * const client = createClient({ keys: browserKeys(), newKey: (operation) => keyOf(['shop', operation]) })
 * ```
 */
export async function keyOf(parts: readonly (string | number | boolean)[]): Promise<string> {
  const { subtle } = crypto as { subtle?: typeof crypto.subtle }
  if (!subtle) {
    throw new OnceError('UNSUPPORTED', {
      message:
        'keyOf: there is no crypto.subtle here. Browsers have it on https and localhost only. Serve the page from there.',
    })
  }
  if (!Array.isArray(parts) || parts.length === 0) throw invalidArgument('keyOf: expected a non-empty array of parts')
  const framed = ['keyOf', ...parts.flatMap((part: unknown, index) => [typeof part, textOf(part, index)])].map(frame)
  const digest = await subtle.digest('SHA-256', await new Blob(framed.flat()).arrayBuffer())
  return formatUuid(new Uint8Array(digest, 0, 16), 8)
}

function textOf(part: unknown, index: number): string {
  const text = String(part)
  const isPart = /^(string|boolean)$/.test(typeof part) || Number.isFinite(part)
  if (isPart && text.isWellFormed()) return text
  throw invalidArgument(
    `keyOf: expected part ${index} to be well-formed text, a finite number or a boolean, got ${JSON.stringify(part) ?? typeof part}`,
  )
}

/** Each part with its length in front: 'a' + 'bc' and 'ab' + 'c' must not meet. */
function frame(text: string): Uint8Array<ArrayBuffer>[] {
  const bytes = new TextEncoder().encode(text)
  const length = new Uint8Array(4)
  new DataView(length.buffer).setUint32(0, bytes.length)
  return [length, bytes]
}

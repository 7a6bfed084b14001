// For servers that take the key as a part of the body.

import { fromBase64, toBase64 } from './bytes.ts'
import type { ServerRules } from './settings.ts'

/**
 * Rules of a server that takes the key in the body: `put` returns the body with the key in it. No header is sent.
 *
 * @example
 * ```ts
 * import { createClient, keyInBody, memoryKeys } from 'onceonly/client'
 *
 * const server = keyInBody((body, key) => JSON.stringify({ ...JSON.parse(body), idempotency_key: key }))
 * const client = createClient({ keys: memoryKeys(), server })
 * ```
 */
export function keyInBody(put: (body: string, key: string) => string): ServerRules {
  return {
    header: '',
    place(request, key) {
      const text = new TextDecoder().decode(fromBase64(request.body) ?? undefined)
      return { ...request, body: toBase64(new TextEncoder().encode(put(text, key))) }
    },
  }
}

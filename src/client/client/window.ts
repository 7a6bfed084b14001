// For how long a server remembers a key: it says so in a response, or publishes it. A retry after that could run the effect again.

import { invalidArgument } from '../../core/errors.ts'
import type { ClientSettings } from './settings.ts'

/** Reads the window of a response. A window that is shorter than the horizon is reported, once per server. */
export type ReadWindow = (url: string, headers: Headers) => number

export function createReadWindow({ retry, server, onShortWindow }: ClientSettings): ReadWindow {
  const reported = new Set<string>()
  return (url, headers) => {
    const { origin } = new URL(url)
    const { horizonMs } = retry
    const said = headers.get('idempotency-window')
    const windowMs = said && /^\d+$/.test(said) ? +said * 1_000 : server.windowMs
    if (windowMs < horizonMs && !reported.has(origin)) {
      reported.add(origin)
      const message = `${origin} remembers keys for ${windowMs / 1_000} s, and retry.horizonMs is ${horizonMs / 1_000} s: retries end with the window.`
      onShortWindow({ origin, windowMs, horizonMs, message })
    }
    return windowMs
  }
}

interface PublishedRules {
  readonly windowSeconds?: unknown
  readonly routes?: readonly { readonly windowSeconds?: unknown }[]
}

/**
 * The window that a server publishes in its rules, in milliseconds, for `server.windowMs`. Where its routes differ, it is the shortest.
 *
 * @example
 * ```ts
 * import { createClient, memoryKeys, publishedWindow } from 'onceonly/client'
 *
 * const windowMs = await publishedWindow('https://shop.example')
 * const client = createClient({ keys: memoryKeys(), server: { windowMs } })
 * ```
 */
export async function publishedWindow(
  server: string | URL,
  ask: (url: URL) => Promise<Response> = askJson,
): Promise<number> {
  const url = new URL('/.well-known/idempotency', server)
  const response = await ask(url)
  const rules = response.ok ? ((await response.json()) as PublishedRules) : {}
  const windows = [rules, ...(rules.routes ?? [])].map(({ windowSeconds }) => windowSeconds)
  const known = windows.filter((each): each is number => typeof each === 'number' && each > 0)
  if (known.length > 0) return Math.min(...known) * 1_000
  throw invalidArgument(
    `publishedWindow: ${url.href} (${response.status}) publishes no windowSeconds. Give server.windowMs from the server's documents.`,
  )
}

function askJson(url: URL): Promise<Response> {
  return fetch(url, { headers: { accept: 'application/json' } })
}

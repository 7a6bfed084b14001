// For how long a server remembers a key: from the header of a response, from the published rules, or as the caller said. A retry
// after that could run the effect again.

import { span } from '../../core/clock.ts'
import type { ClientSettings } from './settings.ts'

export interface Windows {
  /** What the server publishes, if `rules` names its document. Undefined when that is not to be had. */
  published(url: string): Promise<number | undefined>
  /** What a response says. A window that is shorter than the horizon is reported, once per server. */
  learn(url: string, headers: Headers): number | undefined
}

export function createWindows(settings: ClientSettings): Windows {
  const { retry, server, onShortWindow } = settings
  const published = new Map<string, number>()
  const reported = new Set<string>()

  const check = (origin: string, windowMs: number): void => {
    const { horizonMs } = retry
    if (windowMs >= horizonMs || reported.has(origin)) return
    reported.add(origin)
    const message = `${origin} remembers a key for ${span(windowMs)}, and this client may retry an operation for ${span(horizonMs)}. It will stop after ${span(windowMs)}: what is unknown then stays unknown. Set retry.horizonMs to ${windowMs} or less, or ask the server for a longer window.`
    onShortWindow({ origin, windowMs, horizonMs, message })
  }

  return {
    async published(url) {
      const { origin } = new URL(url)
      if (!server.rules) return server.windowMs
      const known = published.get(origin) ?? (await readPublished(settings, new URL(server.rules, origin).href))
      if (known === undefined) return server.windowMs
      published.set(origin, known)
      return known
    },
    learn(url, headers) {
      const { origin } = new URL(url)
      const said = headers.get('idempotency-window')
      const windowMs = said && /^\d+$/.test(said) ? Number(said) * 1_000 : (published.get(origin) ?? server.windowMs)
      if (windowMs !== undefined) check(origin, windowMs)
      return windowMs
    },
  }
}

interface PublishedRules {
  readonly windowSeconds?: unknown
  readonly routes?: readonly { readonly windowSeconds?: unknown }[]
}

/** The shortest window of the document: which of its routes a request takes is the server's to say. */
async function readPublished(settings: ClientSettings, url: string): Promise<number | undefined> {
  const controller = new AbortController()
  const cancel = settings.clock.schedule(() => controller.abort(), settings.retry.attemptMs)
  try {
    const headers = { accept: 'application/json' }
    const response = await settings.fetch(url, { headers, signal: controller.signal })
    if (!response.ok) return undefined
    const rules = (await response.json()) as PublishedRules
    const windows = [rules, ...(rules.routes ?? [])].map(({ windowSeconds }) => windowSeconds)
    const known = windows.filter((each): each is number => typeof each === 'number' && each >= 0)
    return known.length === 0 ? undefined : Math.min(...known) * 1_000
  } catch {
    // The first response says it as well.
    return undefined
  } finally {
    cancel()
  }
}

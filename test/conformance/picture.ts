// The neutral picture of a request and a response: what every framework is translated into, and all that the routes know.

import { AsyncLocalStorage } from 'node:async_hooks'

/** What an application puts around a request for all code below it: tracing, logging, tenants. Here it is the key. */
export const callerContext: AsyncLocalStorage<string> = new AsyncLocalStorage()

export interface FixtureRequest {
  readonly method: string
  /** Without the query. */
  readonly path: string
  readonly query: URLSearchParams
  /** The query parameters that steer the fixture; the middleware never saw them. */
  readonly knobs: URLSearchParams
  header(name: string): string | undefined
  /** As the handler got it from the framework. */
  readonly body: Buffer
  readonly idempotency: FixtureContext | undefined
  /** Aborts when the client goes away. */
  readonly gone: AbortSignal
}

/** The slice of the adapters' context that the routes use. */
export interface FixtureContext {
  keyFor(name: string): string
  notBegun(): void
  release(): void
  store(): void
  readonly signal: AbortSignal
  inDoubt(): void
  readonly tx: unknown
}

export interface FixtureResponse {
  readonly status: number
  /** A name that comes twice is two lines. */
  readonly headers: readonly (readonly [name: string, value: string])[]
  readonly body: Buffer | AsyncIterable<Buffer>
  /** Where a handler answers by itself and not by returning, it goes wrong when it has done so. */
  readonly afterwards?: 'throws'
}

export function json(
  status: number,
  value: unknown,
  headers: readonly (readonly [name: string, value: string])[] = [],
): FixtureResponse {
  return {
    status,
    headers: [['Content-Type', 'application/json'], ...headers],
    body: Buffer.from(typeof value === 'string' ? value : JSON.stringify(value)),
  }
}

/** Every body has a tag; what has none is counted as such. */
export function tagOf(body: Buffer): string {
  const text = body.toString('utf8')
  try {
    const parsed = JSON.parse(text) as { tag?: unknown } | null
    if (typeof parsed?.tag === 'string') return parsed.tag
  } catch {
    const tag = new URLSearchParams(text).get('tag')
    if (tag) return tag
  }
  return 'untagged'
}

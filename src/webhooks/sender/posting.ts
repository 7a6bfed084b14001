// One attempt: the request, with limits on its time and on what is read of the answer. The status decides what became of it. The body is
// for people, so one that is too long, too slow or broken changes nothing.

import { request } from 'undici'
import type { Agent } from 'undici'
import { msUntil } from '../../core/backoff.ts'
import type { Clock } from '../../core/clock.ts'

export interface Post {
  readonly url: string
  readonly headers: Readonly<Record<string, string>>
  readonly body: Uint8Array
}

export interface PostLimits {
  readonly timeoutMs: number
  /** The connection is closed when the answer is longer. */
  readonly responseBytesMax: number
}

/** What an attempt came to. It has a status, or why there is none. */
export interface Posted {
  readonly status?: number
  readonly failure?: string
  readonly retryAfterMs?: number
  readonly durationMs: number
  /** The first bytes of the answer, as text. */
  readonly response: string
}

/** As much as tells a page of errors from a message. It is kept for every attempt. */
export const responseBytesKept = 1_024
const failureCharactersMax = 500

export async function post(
  agent: Agent,
  { url, headers, body }: Post,
  limits: PostLimits,
  clock: Clock,
): Promise<Posted> {
  const startedAtMs = clock.elapsed()
  const tookMs = (): number => Math.round(clock.elapsed() - startedAtMs)
  const late = new AbortController()
  const cancel = clock.schedule(
    () => late.abort(new Error(`no answer within ${limits.timeoutMs} ms`)),
    limits.timeoutMs,
  )
  try {
    const answer = await request(url, { dispatcher: agent, method: 'POST', headers, body, signal: late.signal })
    const retryAfterMs = msUntil(String(answer.headers['retry-after'] ?? ''), clock.now())
    const response = await firstBytes(answer.body, limits.responseBytesMax)
    return {
      status: answer.statusCode,
      durationMs: tookMs(),
      response,
      ...(retryAfterMs !== undefined && { retryAfterMs }),
    }
  } catch (error) {
    return { failure: failureOf(error), durationMs: tookMs(), response: '' }
  } finally {
    cancel()
  }
}

async function firstBytes(body: AsyncIterable<Buffer>, bytesMax: number): Promise<string> {
  const kept: Buffer[] = []
  let bytes = 0
  try {
    for await (const chunk of body) {
      if (bytes < responseBytesKept) kept.push(chunk.subarray(0, responseBytesKept - bytes))
      bytes += chunk.length
      // Leaving the loop closes the connection.
      if (bytes > bytesMax) break
    }
  } catch {
    // What came is kept.
  }
  // PostgreSQL keeps no NUL in a text.
  return Buffer.concat(kept).toString('utf8').replaceAll('\0', '\ufffd')
}

function failureOf(error: unknown): string {
  const { code, message } = error as { readonly code?: unknown; readonly message?: string }
  const words = message || String(error)
  return (typeof code === 'string' && !words.includes(code) ? `${code}: ${words}` : words)
    .replaceAll('\0', '\ufffd')
    .slice(0, failureCharactersMax)
}

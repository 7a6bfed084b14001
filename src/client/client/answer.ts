// An answer that is read whole: it can be judged, kept, and given to the caller as a Response. A body that breaks off is a failed
// attempt. What cannot be kept (server-sent events, a Content-Length above answerBytesMax) goes to the caller as it arrives.

import type { KeptAnswer } from '../pending.ts'
import { fromBase64, toBase64 } from './bytes.ts'

export interface Arrived {
  readonly response: Response
  /** Undefined for a body that passes through. */
  readonly bytes?: Uint8Array | null
}

export async function readAnswer(response: Response, bytesMax: number): Promise<Arrived> {
  const { headers, body } = response
  if (!body) return { response, bytes: null }
  const passes = headers.get('content-type')?.startsWith('text/event-stream')
  if (passes || Number(headers.get('content-length')) > bytesMax) return { response }
  return { response, bytes: new Uint8Array(await response.arrayBuffer()) }
}

/** Without cookies: they are credentials, and are not written down. */
export function keepAnswer({ response, bytes }: Arrived): KeptAnswer {
  const { status, statusText, url, headers } = response
  const kept = [...headers].filter(([name]) => name !== 'set-cookie')
  return { status, statusText, url, headers: kept, body: bytes ? toBase64(bytes) : null }
}

export function keptResponse(answer: KeptAnswer): Response {
  return rebuilt(answer, new Headers(answer.headers as [string, string][]), fromBase64(answer.body))
}

export function liveResponse({ response, bytes }: Arrived): Response {
  return bytes === undefined ? response : rebuilt(response, response.headers, bytes)
}

function rebuilt(
  of: { status: number; statusText: string; url: string },
  headers: Headers,
  body: Uint8Array | null,
): Response {
  const { status, statusText, url } = of
  const response = new Response(body as Uint8Array<ArrayBuffer> | null, { status, statusText, headers })
  return Object.defineProperty(response, 'url', { value: url })
}

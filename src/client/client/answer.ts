// An answer that is read whole: it can be judged, kept, and given to the caller as a Response. A body that breaks off is a failed
// attempt. What cannot be kept (server-sent events, more than answerBytesMax) goes to the caller as it arrives.

import type { KeptAnswer } from '../pending.ts'
import { fromBase64, toBase64 } from './bytes.ts'

/** Not written down: they are credentials of the caller. */
const secretAnswerHeaders = ['set-cookie']

export interface Arrived {
  readonly response: Response
  /** Undefined for a body that passes through. */
  readonly bytes: Uint8Array<ArrayBuffer> | null | undefined
}

export async function readAnswer(response: Response, bytesMax: number): Promise<Arrived> {
  const { headers, body } = response
  if (!body) return { response, bytes: null }
  const isStream = headers.get('content-type')?.startsWith('text/event-stream')
  if (isStream || Number(headers.get('content-length') ?? 0) > bytesMax) return { response, bytes: undefined }
  return { response, bytes: new Uint8Array(await response.arrayBuffer()) }
}

export function keepAnswer({ response, bytes }: Arrived): KeptAnswer {
  const { status, statusText, url } = response
  const headers = [...response.headers].filter(([name]) => !secretAnswerHeaders.includes(name))
  return { status, statusText, url, headers, body: bytes ? toBase64(bytes) : null }
}

export function liveResponse({ response, bytes }: Arrived): Response {
  if (bytes === undefined) return response
  const { status, statusText, headers, url } = response
  return named(new Response(bytes, { status, statusText, headers }), url)
}

export function keptResponse({ status, statusText, url, headers, body }: KeptAnswer): Response {
  const lines = headers.map(([name, value]) => [name, value] as [string, string])
  return named(new Response(body === null ? null : fromBase64(body), { status, statusText, headers: lines }), url)
}

function named(response: Response, url: string): Response {
  return Object.defineProperty(response, 'url', { value: url })
}

// An answer that is read whole: it can be judged, kept, and given to the caller as a Response. A body that breaks off is a failed
// attempt. What cannot be kept (server-sent events, more bytes than answerBytesMax) goes to the caller as it arrives.

import type { KeptAnswer } from '../pending.ts'
import { fromBase64, readUpTo, toBase64 } from './bytes.ts'

export interface Arrived {
  readonly status: number
  readonly statusText: string
  readonly url: string
  readonly headers: Headers
  /** A stream if the body passes through. */
  readonly body: Uint8Array<ArrayBuffer> | ReadableStream<Uint8Array> | null
}

export async function readAnswer(response: Response, bytesMax: number): Promise<Arrived> {
  const { status, statusText, url, headers, body } = response
  const isEndless = headers.get('content-type')?.startsWith('text/event-stream')
  return { status, statusText, url, headers, body: body && !isEndless ? await readUpTo(body, bytesMax) : body }
}

/** Without cookies: they are credentials, and are not written down. Undefined for what passes through. */
export function keepAnswer(arrived: Arrived): KeptAnswer | undefined {
  const { body } = arrived
  if (body instanceof ReadableStream) return undefined
  const headers = [...arrived.headers].filter(([name]) => name !== 'set-cookie')
  return { ...arrived, headers, body: body && toBase64(body) }
}

export function keptResponse(answer: KeptAnswer): Response {
  return responseOf({ ...answer, body: fromBase64(answer.body) })
}

type Answered = Omit<Arrived, 'headers'> & { readonly headers: Headers | KeptAnswer['headers'] }

export function responseOf({ url, body, ...init }: Answered): Response {
  return Object.defineProperty(new Response(body, init as ResponseInit), 'url', { value: url })
}

// A request, serialised once: every attempt sends the same bytes, a form keeps its boundary, and a stream is read before the
// first attempt, as it can be read only once.

import { invalidArgument } from '../../core/errors.ts'
import type { KeptRequest } from '../pending.ts'
import { fromBase64, readAll, toBase64 } from './bytes.ts'

/** Sent with the attempts of this call, and never written down. After a restart they come from the option `headers`. */
const secretHeaders = ['authorization', 'proxy-authorization', 'cookie', 'x-api-key']

/** What of `init` an attempt after a restart is sent with, too. */
const keptInit = ['credentials', 'mode', 'redirect', 'referrerPolicy', 'cache'] as const

export interface SerialisedRequest {
  readonly kept: KeptRequest
  readonly secrets: readonly (readonly [name: string, value: string])[]
  /** What the caller set in the header of the key, or null. */
  readonly givenKey: string | null
  /** What of `init` goes to `fetch` as it is: a dispatcher, the credentials mode. */
  readonly init: RequestInit
  readonly signal: AbortSignal | undefined
}

export async function serialise(
  input: string | URL | Request,
  init: RequestInit,
  limits: { readonly bodyBytesMax: number; readonly keyHeader: string },
): Promise<SerialisedRequest> {
  const { signal } = init
  const request = requestOf(input, { ...init, signal: null })
  const bytes = await bytesOf(request, limits.bodyBytesMax)
  const headers = [...request.headers]
  const asked = limits.keyHeader.toLowerCase()
  const kept = Object.fromEntries(
    keptInit.flatMap((name) => {
      const value = init[name] ?? (input instanceof Request ? input[name] : undefined)
      return typeof value === 'string' ? [[name, value]] : []
    }),
  )
  return {
    kept: {
      method: request.method,
      url: request.url,
      headers: headers.filter(([name]) => name !== asked && !secretHeaders.includes(name)),
      body: bytes && toBase64(bytes),
      ...(Object.keys(kept).length > 0 && { init: kept }),
    },
    secrets: headers.filter(([name]) => secretHeaders.includes(name)),
    givenKey: request.headers.get(asked),
    init: otherInit(init),
    signal: signal ?? (input instanceof Request ? input.signal : undefined),
  }
}

/** `fetch` is told these anew with every attempt. */
const setPerAttempt = new Set(['method', 'headers', 'body', 'signal', 'duplex'])

function otherInit(init: RequestInit): RequestInit {
  return Object.fromEntries(Object.entries(init).filter(([name]) => !setPerAttempt.has(name)))
}

function requestOf(input: string | URL | Request, init: RequestInit): Request {
  try {
    // A stream needs it, and for every other body it changes nothing.
    return new Request(input, { ...init, ...(init.body && { duplex: 'half' }) } as RequestInit)
  } catch (error) {
    throw invalidArgument(
      `client.fetch: the request cannot be made: ${(error as Error).message}. A body that was read already, or that is locked, cannot be sent. Nothing was sent.`,
    )
  }
}

async function bytesOf(request: Request, bytesMax: number): Promise<Uint8Array<ArrayBuffer> | null> {
  let bytes: Uint8Array<ArrayBuffer> | null | undefined
  try {
    // Not every browser has `body` on a request.
    if (request.body === undefined) bytes = new Uint8Array(await request.arrayBuffer())
    else bytes = request.body && (await readAll(request.body, bytesMax))
  } catch (error) {
    throw invalidArgument(
      `client.fetch: the body of ${request.method} ${request.url} could not be read: ${(error as Error).message}. Nothing was sent.`,
    )
  }
  if (bytes === null || bytes?.length === 0) return null
  if (bytes && bytes.length <= bytesMax) return bytes
  throw invalidArgument(
    `client.fetch: expected a body of at most ${bytesMax} bytes for ${request.method} ${request.url}, got more. A retry must send the same bytes, so a body is kept whole. Raise bodyBytesMax, or upload it first and send its address. Nothing was sent.`,
  )
}

export function bodyBytes(kept: KeptRequest): Uint8Array<ArrayBuffer> | null {
  return kept.body === null ? null : fromBase64(kept.body)
}

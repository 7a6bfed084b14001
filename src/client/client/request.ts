// A request, serialised once: every attempt sends the same bytes, a form keeps its boundary, and a stream is read before the
// first attempt, as it can be read only once.

import { invalidArgument } from '../../core/errors.ts'
import type { KeptRequest } from '../pending.ts'
import { readUpTo, toBase64 } from './bytes.ts'
import type { ClientSettings } from './settings.ts'

/** Sent with the attempts of this call, and never written down. After a restart they come from the option `headers`. */
const isSecret = /^(authorization|proxy-authorization|cookie|x-api-key)$/

/** What of `init` an attempt after a restart is sent with, too. */
const keptInit = ['credentials', 'mode', 'redirect'] as const

export interface SerialisedRequest {
  readonly kept: KeptRequest
  /** For the attempts of this call only: credentials, and whatever else `fetch` was told, such as a dispatcher. */
  readonly secrets: readonly (readonly [name: string, value: string])[]
  readonly init: RequestInit
  readonly signal: AbortSignal
  /** What the caller set in the header of the key, or null. */
  readonly givenKey: string | null
}

/** For a call that no caller can abort. */
export function unaborted(): AbortSignal {
  return new AbortController().signal
}

export async function serialise(
  input: string | URL | Request,
  init: RequestInit,
  { bodyBytesMax, server }: Pick<ClientSettings, 'bodyBytesMax' | 'server'>,
): Promise<SerialisedRequest> {
  try {
    // A stream needs `duplex`, and for every other body it changes nothing.
    const request = new Request(input, { ...init, duplex: 'half', signal: null } as RequestInit)
    const { method, url, headers } = request
    // Firefox has no `body` of a request.
    const { body = (await request.blob()).stream() } = request as Partial<Pick<Request, 'body'>>
    const bytes = body && (await readUpTo(body, bodyBytesMax))
    if (bytes instanceof ReadableStream) {
      await bytes.cancel()
      throw new Error(`its body has more than ${bodyBytesMax} bytes (bodyBytesMax)`)
    }
    const all = [...headers]
    const name = server.header.toLowerCase()
    const said = keptInit.map((each) => [each, init[each] ?? (input as Request)[each]]).filter(([, value]) => value)
    return {
      kept: {
        method,
        url,
        headers: all.filter(([each]) => each !== name && !isSecret.test(each)),
        body: bytes?.length ? toBase64(bytes) : null,
        init: Object.fromEntries(said) as Record<string, string>,
      },
      secrets: all.filter(([each]) => isSecret.test(each)),
      init,
      signal: init.signal ?? (input as Partial<Request>).signal ?? unaborted(),
      givenKey: name && headers.get(name),
    }
  } catch (error) {
    // A body that was read already, or a stream that fails, cannot be sent a second time either.
    throw invalidArgument(`client.fetch: the request cannot be read: ${(error as Error).message}. Nothing was sent.`)
  }
}

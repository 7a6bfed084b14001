// A fetch for libraries that take one: each request that changes something has a key and safe retries.

/** The part of a client that is used. */
interface Sender {
  fetch(
    input: Request,
    init: RequestInit,
    options: { readonly operation?: string },
  ): Promise<Response & { settled(): Promise<void> }>
}

/**
 * A `fetch` for a library that takes one (ky, axios, an SDK): requests other than GET, HEAD and OPTIONS go through the client. They are
 * settled when they are answered. A key that the library has set is used, so that retries of its own have the same key.
 *
 * @example
 * ```ts
 * import { createClient, keyedFetch, memoryKeys } from 'onceonly/client'
 *
 * const fetch = keyedFetch(createClient({ keys: memoryKeys() }))
 * await fetch('https://shop.example/payments', { method: 'POST', body: '{"cents":500}' })
 * ```
 */
export function keyedFetch(
  client: Sender,
  operationOf: (request: Request) => string | undefined = () => undefined,
): (input: string | URL | Request, init?: RequestInit) => Promise<Response> {
  return async (input, init) => {
    const request = new Request(input, init)
    if (/^(GET|HEAD|OPTIONS)$/.test(request.method)) return fetch(request)
    const operation = operationOf(request)
    const response = await client.fetch(request, {}, operation === undefined ? {} : { operation })
    await response.settled()
    return response
  }
}

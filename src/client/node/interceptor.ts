// An interceptor for undici's dispatchers: requests that change something have one key and safe retries, whatever library sends them
// through the dispatcher. The attempts go to the dispatcher behind it, with the caller's own options.

import { buffer } from 'node:stream/consumers'
import type { Dispatcher } from 'undici'
import { createClient } from '../client.ts'
import type { Client, ClientOptions } from '../client.ts'

type HeaderValues = Record<string, string | string[] | undefined>

/** The part of undici's interfaces that is used. */
interface DispatchController {
  readonly aborted: boolean
  readonly paused: boolean
  readonly reason: Error | null
  abort(reason: Error): void
  pause(): void
  resume(): void
}
interface DispatchHandlerSlice {
  onRequestStart?(controller: DispatchController, context: object): void
  onResponseStart?(controller: DispatchController, status: number, headers: HeaderValues, statusText?: string): void
  onResponseData?(controller: DispatchController, chunk: Buffer): void
  onResponseEnd?(controller: DispatchController, trailers: HeaderValues): void
  onResponseError?(controller: DispatchController, error: Error): void
}
interface DispatchOptionsSlice {
  readonly origin?: string | URL
  readonly path: string
  readonly method: string
  readonly headers?: unknown
  readonly body?: unknown
  readonly upgrade?: unknown
}
type Dispatch = (options: DispatchOptionsSlice, handler: DispatchHandlerSlice) => boolean

/** Handed through the client to its `fetch`. */
type Through = RequestInit & { readonly dispatchOptions: DispatchOptionsSlice }

/**
 * An interceptor for `dispatcher.compose()` of undici: requests other than GET, HEAD and OPTIONS have a key and safe retries. They are
 * settled when they are answered.
 *
 * @example
 * ```ts
 * import { Agent, request } from 'undici'
 * import { memoryKeys } from 'onceonly/client'
 * import { keyedInterceptor } from 'onceonly/client/node'
 *
 * const dispatcher = new Agent().compose(keyedInterceptor({ keys: memoryKeys() }))
 * await request('https://shop.example/payments', { method: 'POST', body: '{"cents":500}', dispatcher })
 * ```
 */
export function keyedInterceptor(options: Omit<ClientOptions, 'fetch'>): Dispatcher.DispatcherComposeInterceptor {
  const intercept = (dispatch: Dispatch): Dispatch => {
    const client = createClient({ ...options, fetch: (_, init) => attemptThrough(dispatch, init as Through) })
    return (asked, handler) => {
      if (/^(GET|HEAD|OPTIONS|CONNECT)$/.test(asked.method) || asked.upgrade) return dispatch(asked, handler)
      void answer(client, asked, handler)
      return true
    }
  }
  return intercept as never
}

async function answer(client: Client, asked: DispatchOptionsSlice, handler: DispatchHandlerSlice): Promise<void> {
  const aborting = new AbortController()
  const { signal } = aborting
  const gate = createGate()
  const controller: DispatchController = {
    get aborted() {
      return signal.aborted
    },
    get reason() {
      return (signal.reason as Error | undefined) ?? null
    },
    get paused() {
      return gate.isClosed()
    },
    abort(reason) {
      aborting.abort(reason)
      gate.open()
    },
    pause: gate.close,
    resume: gate.open,
  }
  try {
    handler.onRequestStart?.(controller, {})
    const init: Through = {
      method: asked.method,
      headers: headersOf(asked.headers),
      body: await bodyOf(asked.body),
      signal,
      dispatchOptions: asked,
    }
    const response = await client.fetch(new URL(asked.path, asked.origin), init)
    await response.settled()
    const { status, statusText, body } = response
    handler.onResponseStart?.(controller, status, valuesOf(response.headers), statusText)
    for await (const chunk of body ?? []) {
      await gate.opened()
      signal.throwIfAborted()
      handler.onResponseData?.(controller, Buffer.from(chunk))
    }
    await gate.opened()
    signal.throwIfAborted()
    handler.onResponseEnd?.(controller, {})
  } catch (error) {
    handler.onResponseError?.(controller, error as Error)
  }
}

/** Closed while the reader of the response wants no more of it. */
interface Gate {
  isClosed(): boolean
  close(): void
  open(): void
  opened(): Promise<void>
}

function createGate(): Gate {
  let closed: PromiseWithResolvers<void> | undefined
  return {
    isClosed: () => closed !== undefined,
    close: () => void (closed ??= Promise.withResolvers()),
    open() {
      closed?.resolve()
      closed = undefined
    },
    opened: async () => closed?.promise,
  }
}

/** One attempt of the client, through the dispatcher behind. Its body comes as fast as it is read. */
function attemptThrough(dispatch: Dispatch, init: Through): Promise<Response> {
  const { dispatchOptions, signal, body } = init
  const { promise, resolve, reject } = Promise.withResolvers<Response>()
  let receiving: ReadableStreamDefaultController<Uint8Array> | undefined
  const headers = Object.fromEntries(init.headers as Headers)
  // undici counts the bytes itself.
  delete headers['content-length']
  dispatch(
    { ...dispatchOptions, headers, body: body ?? null },
    {
      onRequestStart(controller) {
        const abort = (): void => controller.abort(signal!.reason as Error)
        if (signal!.aborted) abort()
        else signal!.addEventListener('abort', abort, { once: true })
      },
      onResponseStart(controller, status, received, statusText = '') {
        // 103 and the like come before the response.
        if (status < 200) return
        const body = new ReadableStream<Uint8Array>({
          start: (stream) => void (receiving = stream),
          pull: () => controller.resume(),
          cancel: (reason) => controller.abort(reason as Error),
        })
        const head = { status, statusText, headers: headersOf(received) }
        resolve(new Response(isBodiless.has(status) ? null : body, head))
      },
      onResponseData(controller, chunk) {
        // undici says "no bytes" when it resumes: to pause for that would go round for ever.
        if (chunk.length === 0) return
        receiving!.enqueue(chunk)
        if (receiving!.desiredSize! <= 0) controller.pause()
      },
      onResponseEnd: () => receiving!.close(),
      onResponseError(_, error) {
        reject(error)
        receiving?.error(error)
      },
    },
  )
  return promise
}

/** A `Response` with one of these takes no body. */
const isBodiless = new Set([204, 205, 304])

function valuesOf(headers: Headers): HeaderValues {
  const cookies = headers.getSetCookie()
  return { ...Object.fromEntries(headers), ...(cookies.length > 0 && { 'set-cookie': cookies }) }
}

/** undici takes a flat list of names and values, pairs, or an object. */
function headersOf(given: unknown): Headers {
  const headers = new Headers()
  if (!given) return headers
  const flat = Array.isArray(given) && typeof given[0] === 'string' ? (given as string[]) : undefined
  const pairs = flat
    ? flat.flatMap((name, index) => (index % 2 === 0 ? [[name, flat[index + 1]!] as const] : []))
    : Symbol.iterator in Object(given)
      ? (given as Iterable<readonly [string, string]>)
      : Object.entries(given as HeaderValues)
  for (const [name, value] of pairs) for (const each of [value ?? []].flat()) headers.append(name, each)
  return headers
}

type SentBody = Exclude<RequestInit['body'], undefined>

async function bodyOf(body: unknown): Promise<SentBody> {
  const isStream = typeof body === 'object' && body !== null && Symbol.asyncIterator in body
  return isStream ? await buffer(body as AsyncIterable<Uint8Array>) : ((body ?? null) as SentBody)
}

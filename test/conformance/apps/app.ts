// What every app is built from and what it gives back, and the server that all of them listen with: real HTTP on the
// loopback, with the fixture's controls and knobs in front of the framework, where no adapter can see them.
import { createServer, type IncomingMessage, type RequestListener, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { gzipSync } from 'node:zlib'
import type { Once } from '../../../src/core/once.ts'
import { type Fixture, knobNames } from '../fixture.ts'
import { callerContext, type FixtureContext, type FixtureRequest, type FixtureResponse } from '../picture.ts'

export interface AppGround {
  readonly once: Once
  readonly fixture: Fixture
  /** The knobs of the case, for routes of this protection; the scope function is the app's own. */
  readonly options: (protection: Protection) => Readonly<Record<string, unknown>>
  /** The store has transactions, and the case is about them. */
  readonly transactions: 'offered' | 'none'
  /** What the framework logs, at its most talkative. */
  readonly log: (line: string) => void
  /** Answers the /__ctl/ routes. */
  readonly control: (path: string) => Promise<string>
}

export interface App {
  readonly handler: RequestListener
  close(): Promise<void>
}

export type StartApp = (ground: AppGround) => Promise<App>

export type Protection = 'default' | 'required' | 'transaction'

/** The routes that are not guarded like all others. */
export const apart: Readonly<Record<string, Protection | 'none'>> = {
  '/required': 'required',
  '/unprotected': 'none',
  '/commit-then-crash': 'transaction',
  '/transaction/201': 'transaction',
  '/transaction/402': 'transaction',
  '/transaction/500': 'transaction',
}

/** One of what `make` makes for each protection, by the path of a request. */
export function byPath<T>(ground: AppGround, make: (protection: Protection | 'none') => T): (url: string) => T {
  const made = new Map(protectionsOf(ground).map((each) => [each, make(each)]))
  return (url) => made.get(apart[pathOf(url)] ?? 'default')!
}

export function protectionsOf({ transactions }: AppGround): (Protection | 'none')[] {
  return ['default', 'required', 'none', ...(transactions === 'offered' ? (['transaction'] as const) : [])]
}

export interface Listening {
  readonly port: number
  /** How many requests came, and how many clients went away before they were answered. */
  readonly requestsSeen: () => number
  readonly clientsGone: () => number
  close(): Promise<void>
}

export async function listen(start: StartApp, ground: AppGround): Promise<Listening> {
  const app = await start(ground)
  let seen = 0
  let gone = 0
  const server = createServer((request, response) => {
    seen++
    response.on('close', () => {
      if (!response.writableFinished) gone++
    })
    if (request.url!.startsWith('/__ctl/')) return void answerControl(ground, request, response)
    takeKnobs(request)
    if (ground.fixture.settings.compression === 'outside' && request.url === '/compressible')
      compress(request, response)
    callerContext.run(String(request.headers['idempotency-key']), () => app.handler(request, response))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    port: (server.address() as AddressInfo).port,
    requestsSeen: () => seen,
    clientsGone: () => gone,
    async close() {
      const closed = new Promise((resolve) => server.close(resolve))
      server.closeAllConnections()
      await closed
      await app.close()
    },
  }
}

async function answerControl(ground: AppGround, request: IncomingMessage, response: ServerResponse): Promise<void> {
  request.resume()
  try {
    response.end(await ground.control(request.url!.slice('/__ctl/'.length)))
  } catch (error) {
    response.writeHead(500).end(String(error))
  }
}

const knobHeader = 'x-fixture-knobs'

/** From the query into a header, which is no part of the fingerprint. */
function takeKnobs(request: IncomingMessage): void {
  const [path, search = ''] = request.url!.split('?', 2)
  const query = new URLSearchParams(search)
  const knobs = new URLSearchParams([...query].filter(([name]) => knobNames.includes(name)))
  if (knobs.size === 0) return
  for (const name of knobNames) query.delete(name)
  request.url = query.size === 0 ? path! : `${path}?${query}`
  request.rawHeaders.push(knobHeader, knobs.toString())
  request.headers[knobHeader] = knobs.toString()
}

/** The picture of a request that came through a framework. */
export function fixtureRequest(from: {
  readonly method: string
  readonly url: string
  readonly header: (name: string) => string | undefined
  readonly body: Buffer
  readonly idempotency: unknown
  readonly gone: AbortSignal
}): FixtureRequest {
  const { pathname, searchParams } = new URL(from.url, 'http://127.0.0.1')
  const { method, header, body, gone } = from
  const idempotency = from.idempotency as FixtureContext | undefined
  const knobs = new URLSearchParams(header(knobHeader) ?? '')
  return { method, path: pathname, query: searchParams, knobs, header, body, idempotency, gone }
}

/** Aborts when the connection ends before the response did. */
export function goneSignal(response: ServerResponse): AbortSignal {
  const controller = new AbortController()
  response.on('close', () => {
    if (!response.writableFinished) controller.abort()
  })
  return controller.signal
}

export async function readBody(request: AsyncIterable<Buffer>): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk)
  return Buffer.concat(chunks)
}

export function pathOf(url: string): string {
  return url.split('?', 1)[0]!
}

/** Header lines by name, as frameworks take them: one value, or all of them. */
export function headersByName(headers: FixtureResponse['headers']): Record<string, string | string[]> {
  const byName: Record<string, string | string[]> = {}
  for (const [name, value] of headers) {
    const before = byName[name]
    byName[name] = before === undefined ? value : [before, value].flat()
  }
  return byName
}

/** Writes to a response of node:http, chunk by chunk where there are chunks. A failing chunk rejects. */
export async function writeTo(response: ServerResponse, answer: FixtureResponse): Promise<void> {
  response.statusCode = answer.status
  for (const [name, value] of Object.entries(headersByName(answer.headers))) response.setHeader(name, value)
  if (Buffer.isBuffer(answer.body)) response.end(answer.body)
  else {
    for await (const chunk of answer.body) response.write(chunk)
    response.end()
  }
  if (answer.afterwards) throw new Error('the handler failed after its answer')
}

/** The same as a response of the fetch standard. */
export function asFetchResponse(answer: FixtureResponse): Response {
  const headers = new Headers()
  for (const [name, value] of answer.headers) headers.append(name, value)
  const body = Buffer.isBuffer(answer.body)
    ? answer.body.length === 0
      ? null
      : new Uint8Array(answer.body)
    : ReadableStream.from(answer.body)
  return new Response(body, { status: answer.status, headers })
}

/**
 * Compression outside the middleware, as a module or a proxy would do it: whatever is written is gathered and compressed if
 * the client asked for it and it is not compressed already.
 */
function compress(request: IncomingMessage, response: ServerResponse): void {
  if (!/\bgzip\b/.test(request.headers['accept-encoding'] ?? '')) return
  const { writeHead, flushHeaders, write, end } = response
  const chunks: Buffer[] = []
  const gather = (chunk: unknown, encoding?: unknown): void => {
    if (typeof chunk === 'string') {
      chunks.push(Buffer.from(chunk, typeof encoding === 'string' ? (encoding as BufferEncoding) : 'utf8'))
    } else if (chunk instanceof Uint8Array) chunks.push(Buffer.from(chunk))
  }
  const patched = {
    writeHead(status: number, ...rest: unknown[]) {
      response.statusCode = status
      const given = rest.find((each) => typeof each === 'object' && each !== null)
      for (const [name, value] of headerPairs(given)) response.setHeader(name, value)
      return response
    },
    flushHeaders() {},
    write(chunk: unknown, encoding?: unknown) {
      gather(chunk, encoding)
      return true
    },
    end(chunk?: unknown, encoding?: unknown) {
      gather(chunk, encoding)
      let body = Buffer.concat(chunks)
      if (body.length > 0 && !response.hasHeader('Content-Encoding')) {
        body = gzipSync(body)
        response.setHeader('Content-Encoding', 'gzip')
      }
      response.setHeader('Content-Length', body.length)
      Object.assign(response, { writeHead, flushHeaders, write, end })
      return response.end(body)
    },
  }
  Object.assign(response, patched)
}

function headerPairs(given: unknown): [name: string, value: string | string[]][] {
  if (!Array.isArray(given)) return Object.entries((given ?? {}) as Record<string, string | string[]>)
  if (Array.isArray(given[0])) return given as [string, string][]
  const flat = given as string[]
  const pairs = Array.from({ length: flat.length / 2 }, (_, index): [string, string] => [
    flat[2 * index]!,
    flat[2 * index + 1]!,
  ])
  return Object.entries(headersByName(pairs))
}

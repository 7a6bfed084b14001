// An exchange on the web's Request and Response, for fetch handlers and Hono. The body of the request is read once and handed
// on in a new Request. The body of the response is read to its end before any of it leaves.

import { checkDigest, DigestError, keptBytes, numberedBy } from './exchange.ts'
import type {
  Answer,
  AskedRequest,
  Body,
  BodyLimits,
  Delivery,
  Exchange,
  HeaderLine,
  IdempotencyContext,
  Produced,
} from './exchange.ts'

export interface WebStage<Asked> {
  /** The argument of the user's functions. */
  readonly asked: Asked
  readonly request: Request
  /** The key's lines, where the platform can tell them apart. */
  readonly keyLines?: readonly string[] | undefined
  /** The body, where another middleware read it before us and kept it. */
  readonly keptBody?: (() => Promise<Uint8Array | undefined>) | undefined
  /** Run the handler on a request that can be read again. */
  handle(request: Request, context: IdempotencyContext): Response | Promise<Response>
}

type BodyContent = ConstructorParameters<typeof Response>[0]

export function concernsWeb(exchange: Exchange<never>, request: Request): boolean {
  const { method, headers, url } = request
  const isNamed = headers.has(exchange.settings.keyHeader) || headers.has(numberedBy[0]) || headers.has(numberedBy[1])
  return (exchange.concerns(method, isNamed) || exchange.managesSession(method, url)) && !(request as Taken)[underway]
}

const underway = Symbol('onceonly: the exchange is under way')

/** A request may pass two of our adapters. The first that accepted the request holds its key. */
type Taken = Request & { [underway]?: true }

/** Rejects with the handler's error, after its key was released. */
export async function exchangeOnWeb<Asked>(exchange: Exchange<Asked>, stage: WebStage<Asked>): Promise<Response> {
  let handed = stage.request
  let held: HeldWebResponse | undefined
  const run = async (context: IdempotencyContext): Promise<Produced> => {
    try {
      ;(handed as Taken)[underway] = true
      const response = await stage.handle(handed, context)
      held = await holdWebResponse(response, exchange.settings)
      return held.produced
    } catch (error) {
      return { is: 'thrown', error }
    }
  }
  const asked = askedOf(exchange, stage, (request) => (handed = request))
  return responseOf(await exchange.handle(asked, run), held)
}

/** The rules as a response, if the request asks for them. */
export function rulesOnWeb(exchange: Exchange<never>, request: Request): Response | undefined {
  // The method is checked first, so a URL is parsed only for these.
  if (request.method !== 'GET' && request.method !== 'HEAD') return undefined
  const rules = exchange.rules('GET', targetOf(request.url), request.headers.get('accept') ?? '')
  return rules && toResponse(rules)
}

function askedOf<Asked>(
  { settings }: Exchange<Asked>,
  stage: WebStage<Asked>,
  handOn: (request: Request) => void,
): AskedRequest<Asked> {
  const { asked, request } = stage
  const joined = request.headers.get(settings.keyHeader)
  return {
    request: asked,
    method: request.method,
    target: targetOf(request.url),
    // Joined lines have a comma, which no bare key and no pair of strings may have.
    keyLines: stage.keyLines ?? (joined === null ? [] : [joined]),
    header: (name) => request.headers.get(name) ?? undefined,
    body: (limits) => readWebBody(stage, limits, handOn),
  }
}

function targetOf(url: string): string {
  const authority = url.indexOf('://')
  const slash = authority < 0 ? 0 : url.indexOf('/', authority + 3)
  return slash < 0 ? '/' : url.slice(slash)
}

async function readWebBody<Asked>(
  { request, keptBody }: WebStage<Asked>,
  limits: BodyLimits,
  handOn: (request: Request) => void,
): Promise<Body> {
  if (!request.body) return { is: 'bytes', bytes: new Uint8Array() }
  if (request.bodyUsed) return keptBytes(await keptBody?.(), limits)
  const known = Number(request.headers.get('content-length') ?? 0)
  if (known > limits.bytesMax && limits.sha256 === undefined) return { is: 'too-large' }
  const reader = request.body.getReader() as ReadableStreamDefaultReader<Uint8Array>
  const chunks: Uint8Array[] = []
  const complete = known <= limits.bytesMax && (await readUpTo(reader, chunks, limits.bytesMax)) === 'whole'
  if (complete) {
    const bytes = join(chunks)
    handOn(withBody(request, { body: bytes } as RequestInit).request)
    return { is: 'bytes', bytes }
  }
  if (limits.sha256 === undefined) {
    void reader.cancel().catch(() => {})
    return { is: 'too-large' }
  }
  return streamOn(request, reader, chunks, limits.sha256, handOn)
}

/** What reads the body of a request. */
const bodyMembers: ReadonlySet<string | symbol> = new Set([
  'arrayBuffer',
  'blob',
  'body',
  'bodyUsed',
  'bytes',
  'clone',
  'formData',
  'json',
  'text',
])

/**
 * The request for the handler, with a body that can be read. A framework's own request (Next.js hands a Proxy of its NextRequest) stays
 * what it is: only what reads the body is taken from a second Request.
 */
function withBody(request: Request, init: RequestInit): { readonly request: Request; readonly body: Request } {
  const plain = Object.getPrototypeOf(request) === Request.prototype ? copied(request, init) : undefined
  if (plain) return { request: plain, body: plain }
  const { url, method, headers } = request
  const body = new Request(url, { method, headers: [...headers], ...init })
  const proxy = new Proxy(request, {
    get(target, name) {
      const from = bodyMembers.has(name) ? body : target
      const value: unknown = Reflect.get(from, name, from)
      return typeof value === 'function' ? (value as (...all: unknown[]) => unknown).bind(from) : value
    },
  })
  return { request: proxy, body }
}

/** Undefined for a Proxy of a Request, which has no private state of a Request. */
function copied(request: Request, init: RequestInit): Request | undefined {
  try {
    return new Request(request, init)
  } catch (error) {
    if (error instanceof TypeError) return undefined
    throw error
  }
}

/** Reads on until the end or until there is more than `bytesMax`. */
async function readUpTo(
  reader: ReadableStreamDefaultReader<Uint8Array>,
  chunks: Uint8Array[],
  bytesMax: number,
): Promise<'whole' | 'more'> {
  for (let size = 0; ;) {
    const { done, value } = await reader.read()
    if (done) return 'whole'
    chunks.push(value)
    size += value.length
    if (size > bytesMax) return 'more'
  }
}

function streamOn(
  request: Request,
  reader: ReadableStreamDefaultReader<Uint8Array>,
  chunks: Uint8Array[],
  sha256: string,
  handOn: (request: Request) => void,
): Body {
  const check = checkDigest(sha256)
  const { promise: verified, resolve } = Promise.withResolvers<boolean>()
  const body = new ReadableStream<Uint8Array>({
    async pull(controller) {
      const next = chunks.shift() ?? (await reader.read()).value
      if (next) {
        check.update(next)
        return controller.enqueue(next)
      }
      resolve(check.holds())
      if (check.holds()) controller.close()
      else controller.error(new DigestError())
    },
    cancel: (reason) => (resolve(false), reader.cancel(reason)),
  })
  const { request: handed, body: read } = withBody(request, { body, duplex: 'half' } as RequestInit)
  handOn(handed)
  return {
    is: 'claimed',
    sha256,
    async verify() {
      // A handler may answer without reading the body, which is then read and dropped. A half-read body proves nothing.
      if (!read.bodyUsed) await drain(read.body).catch(() => {})
      return Promise.race([verified, Promise.resolve(false)])
    },
  }
}

async function drain(body: ReadableStream | null): Promise<void> {
  if (body) for await (const _ of body);
}

interface HeldWebResponse {
  readonly produced: Produced
  readonly response: Response
  /** The body, or its beginning. */
  readonly chunks: Uint8Array[]
  /** What is still to come of a body that cannot be held. */
  readonly rest?: ReadableStreamDefaultReader<Uint8Array>
}

async function holdWebResponse(
  response: Response,
  limits: { readonly storedBytesMax: number; readonly stream: 'not-stored' | 'record' },
): Promise<HeldWebResponse> {
  const { status, headers } = response
  // Response.error() and the like: there is nothing that could be sent, let alone replayed.
  if (status < 200) throw new TypeError(`The handler answered with a response of status ${status}.`)
  const chunks: Uint8Array[] = []
  const stream = { is: 'stream', status } as const
  const reader = response.body?.getReader() as ReadableStreamDefaultReader<Uint8Array> | undefined
  if (reader) {
    const isEvents = /^\s*text\/event-stream\b/i.test(headers.get('content-type') ?? '')
    if (isEvents && limits.stream === 'not-stored') return { produced: stream, response, chunks, rest: reader }
    // A body that breaks off here is as if the handler had thrown: nothing of the answer has left.
    const read = await readUpTo(reader, chunks, limits.storedBytesMax)
    if (read === 'more') return { produced: stream, response, chunks, rest: reader }
  }
  const body = join(chunks)
  chunks.splice(0, chunks.length, body)
  return { produced: { is: 'answer', answer: answerOf(response, body) }, response, chunks }
}

function answerOf(response: Response, body: Uint8Array): Answer {
  // Set-Cookie comes as several lines. The platform has joined every other header already.
  const headers: HeaderLine[] = [...response.headers]
  const answer = { status: response.status, headers, body }
  return response.statusText ? { ...answer, message: response.statusText } : answer
}

function responseOf(delivery: Delivery, held: HeldWebResponse | undefined): Response {
  // The source of an answer that goes nowhere must stop producing the rest.
  if (delivery.is !== 'handler') void held?.rest?.cancel().catch(() => {})
  if (delivery.is === 'thrown') throw delivery.error
  if (delivery.is === 'answer') return toResponse(delivery.answer)
  const { response, chunks, rest } = held!
  const headers = new Headers(response.headers)
  // A Response has no trailers, and Node refuses to announce trailers with a body of known length.
  headers.delete('trailer')
  for (const [name, value] of delivery.headers) headers.set(name, value)
  const body = rest ? continued(chunks, rest) : hasBody(response.status) && chunks[0]
  return new Response((body || null) as BodyContent, {
    status: response.status,
    statusText: response.statusText,
    headers,
  })
}

/** What was held so far, then what follows. */
function continued(chunks: Uint8Array[], rest: ReadableStreamDefaultReader<Uint8Array>): ReadableStream<Uint8Array> {
  return new ReadableStream({
    async pull(controller) {
      const next = chunks.shift() ?? (await rest.read()).value
      if (next) controller.enqueue(next)
      else controller.close()
    },
    cancel: (reason) => rest.cancel(reason),
  })
}

function toResponse({ status, message, headers, body }: Answer): Response {
  const init = { status, headers: headers.map(([name, value]): [string, string] => [name, value]) }
  const content = hasBody(status) && body.length > 0 ? (body as BodyContent) : null
  return new Response(content, message === undefined ? init : { ...init, statusText: message })
}

function hasBody(status: number): boolean {
  return status !== 204 && status !== 205 && status !== 304
}

function join(chunks: readonly Uint8Array[]): Uint8Array {
  return chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks)
}

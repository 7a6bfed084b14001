// The headers on their way through: what belongs to one connection is removed (RFC 9110, 7.6.1), what the upstream must know of
// the client is added. Names and values are passed on as they came, line by line.

import type { IncomingMessage } from 'node:http'
import { isIPv6 } from 'node:net'
import { hopByHop, sessionHeaders } from '../../http/exchange.ts'

const attemptHeader = 'Idempotency-Attempt'
const notToUpstream = new Set([
  ...hopByHop,
  // The upstream gets its own name, never a name that the client has chosen.
  'host',
  'content-length',
  // Node has answered it already.
  'expect',
  // Only the gateway knows it.
  attemptHeader.toLowerCase(),
])
const keyName = 'Idempotency-Key'
/** Of a request with a number in a session. The upstream never registered it, and is given a key in its place. */
const replacedByKey = new Set([...sessionHeaders, keyName.toLowerCase()])
const forwardedNames = new Set(['forwarded', 'x-forwarded-for', 'x-forwarded-host', 'x-forwarded-proto'])
/** What the service says about its own answer, whatever its status. It is for the gateway. */
const answerHeader = 'idempotency-answer'
// To the client the gateway is the server, so the gateway sets the date of an answer, as it does for replays.
const notToClient = new Set([...hopByHop, 'date', answerHeader])

/**
 * As CGI, WSGI and PHP read it: to them X_Forwarded_For is X-Forwarded-For, and a client could set what only the gateway sets.
 */
export function nameAsRead(name: string): string {
  return name.toLowerCase().replaceAll('_', '-')
}

/** The headers that a Connection header removes from a message besides itself. */
export function nominatedBy(connection: string | undefined): ReadonlySet<string> {
  // "keep-alive" and "close" in nearly every message: neither names a header that is not left behind anyway.
  if (connection === undefined || /^(?:keep-alive|close)$/i.test(connection)) return none
  return new Set(connection.split(',').map((name) => name.trim().toLowerCase()))
}
const none: ReadonlySet<string> = new Set()

export interface ForwardedRequest {
  readonly req: IncomingMessage
  readonly remoteAddress: string | undefined
  readonly attempt: number | undefined
  readonly derivedKey: string | undefined
  /** The Content-Length of a streamed body. The sender counts a body that is held. */
  readonly contentLength: string | undefined
}

export interface ForwardingRules {
  /** The name of the gateway in Via. */
  readonly pseudonym: string
  readonly trustForwarded: boolean
}

/** Names and values in turn. */
export function requestHeaders(request: ForwardedRequest, rules: ForwardingRules): string[] {
  const { req, attempt, derivedKey, contentLength } = request
  const { rawHeaders } = req
  const nominated = nominatedBy(req.headers.connection)
  const headers: string[] = []
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const lower = nameAsRead(rawHeaders[at]!)
    if (notToUpstream.has(lower) || forwardedNames.has(lower) || lower === 'via' || nominated.has(lower)) continue
    if (derivedKey !== undefined && replacedByKey.has(lower)) continue
    headers.push(rawHeaders[at]!, rawHeaders[at + 1]!)
  }
  if (derivedKey !== undefined) headers.push(keyName, derivedKey)
  addForwarded(headers, request, rules)
  headers.push('Via', viaThrough(req.headers.via, req.httpVersion, rules))
  if (wantsTrailers(req)) headers.push('TE', 'trailers')
  if (attempt !== undefined) headers.push(attemptHeader, String(attempt))
  if (contentLength !== undefined) headers.push('Content-Length', contentLength)
  return headers
}

/**
 * The client wrote these headers, unless the operator says that a proxy in front did. Then ours is added behind them.
 */
function addForwarded(
  headers: string[],
  { req, remoteAddress = 'unknown' }: ForwardedRequest,
  rules: ForwardingRules,
): void {
  const came = rules.trustForwarded ? req.headers : {}
  const lines = (name: string): string | undefined => came[name] as string | undefined
  const { host = '' } = req.headers
  const before = lines('x-forwarded-for')
  headers.push('X-Forwarded-For', before === undefined ? remoteAddress : `${before}, ${remoteAddress}`)
  headers.push('X-Forwarded-Host', lines('x-forwarded-host') ?? host)
  headers.push('X-Forwarded-Proto', lines('x-forwarded-proto') ?? 'http')
  const node = isIPv6(remoteAddress) ? `"[${remoteAddress}]"` : remoteAddress
  const element = `for=${node};host="${host.replace(/["\\]/g, '')}";proto=http`
  const chain = lines('forwarded')
  headers.push('Forwarded', chain === undefined ? element : `${chain}, ${element}`)
}

export function viaThrough(before: string | undefined, version: string, { pseudonym }: ForwardingRules): string {
  const own = `${version} ${pseudonym}`
  return before === undefined ? own : `${before}, ${own}`
}

export function wantsTrailers(req: IncomingMessage): boolean {
  const { te } = req.headers
  return te !== undefined && /(?:^|,)\s*trailers\s*(?:,|$)/i.test(String(te))
}

export interface ResponseHead {
  /** Names and values in turn. */
  readonly headers: string[]
  readonly contentLength: number | undefined
  /** The end of the answer can be distinguished from a cut connection. */
  readonly isFramed: boolean
  /** The body has a coding that no reader of ours could read. Passed on without its coding it would be another body. */
  readonly isCoded: boolean
  /** What the service wants done with its answer: `store`, `release` or `not-begun`. */
  readonly wish: string | undefined
}

/** What came from the upstream, as it came: names and values in turn. */
export function responseHead(raw: readonly Buffer[], rules: ForwardingRules): ResponseHead {
  const lines = raw.map((each) => each.toString('latin1'))
  // All lines of one name: a second Connection line counts as much as the first.
  const valueOf = (name: string): string | undefined => {
    const named = lines.filter(
      (_, index) =>
        index % 2 === 1 && lines[index - 1]!.length === name.length && lines[index - 1]!.toLowerCase() === name,
    )
    return named.length === 0 ? undefined : named.join(', ')
  }
  const nominated = nominatedBy(valueOf('connection'))
  const headers: string[] = []
  let via: string | undefined
  for (let at = 0; at < lines.length; at += 2) {
    const lower = lines[at]!.toLowerCase()
    if (notToClient.has(lower) || nominated.has(lower)) continue
    if (lower === 'via') via = via === undefined ? lines[at + 1]! : `${via}, ${lines[at + 1]!}`
    else headers.push(lines[at]!, lines[at + 1]!)
  }
  if (via !== undefined) headers.push('Via', viaThrough(via, '1.1', rules))
  const contentLength = valueOf('content-length')
  const coding = valueOf('transfer-encoding')
  return {
    headers,
    contentLength: contentLength === undefined ? undefined : Number(contentLength),
    isFramed: contentLength !== undefined || coding !== undefined,
    isCoded: coding !== undefined && coding.trim().toLowerCase() !== 'chunked',
    wish: valueOf(answerHeader)?.trim().toLowerCase(),
  }
}

/** A header that must be known before a body is read, or says who may read it, cannot come after it (RFC 9110, 6.5.1). */
const notInTrailers = new Set([
  ...notToClient,
  'content-length',
  'content-encoding',
  'content-type',
  'content-range',
  'host',
  'set-cookie',
  'cache-control',
  'authorization',
  'www-authenticate',
  'location',
  'retry-after',
  'vary',
  'via',
])

/** Names with values, several lines of one name joined. */
export function responseTrailers(raw: readonly Buffer[]): Record<string, string> {
  const trailers = new Map<string, string>()
  for (let at = 0; at + 1 < raw.length; at += 2) {
    const name = raw[at]!.toString('latin1')
    if (notInTrailers.has(name.toLowerCase())) continue
    const before = trailers.get(name)
    const value = raw[at + 1]!.toString('latin1')
    trailers.set(name, before === undefined ? value : `${before}, ${value}`)
  }
  return Object.fromEntries(trailers)
}

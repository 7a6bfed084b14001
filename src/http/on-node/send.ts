// Writes a complete answer to a Node response that nothing was written to, and holds what the writers of responses share.

import { ServerResponse, STATUS_CODES } from 'node:http'
import type { OutgoingHttpHeaders } from 'node:http'
import type { Answer, HeaderLine } from '../exchange.ts'

/** Sends a complete answer on a response that nothing was written to. */
export function sendAnswer(
  res: ServerResponse,
  answer: Answer,
  before: OutgoingHttpHeaders = {},
  end: (body: readonly unknown[]) => void = (body) => void Reflect.apply(res.end, res, body),
): void {
  for (const [name, value] of Object.entries(before)) if (value !== undefined) res.setHeader(name, value)
  if (sendPlain(res, answer)) return
  setHeaders(res, answer.headers)
  res.statusCode = answer.status
  res.statusMessage = answer.message ?? STATUS_CODES[answer.status] ?? 'unknown'
  end(answer.body.length > 0 && hasBody(answer.status) ? [answer.body] : [])
}

/** Below this a copy costs less than a second buffer in the write. */
const textBytesMax = 16_384

/**
 * Head and body in one piece, when the response is not wrapped and has no header set. Latin-1 keeps every octet as it is, and
 * Node writes head and text together. False, and nothing done, in all other cases.
 */
function sendPlain(res: ServerResponse, { status, message, headers, body }: Answer): boolean {
  const { writeHead, end } = ServerResponse.prototype
  if (res.writeHead !== writeHead || res.end !== end || res.getHeaderNames().length > 0) return false
  if (body.length === 0 || body.length > textBytesMax || !hasBody(status)) return false
  const head: Record<string, string> = { 'Content-Length': String(body.length) }
  for (const [name, value] of headers) {
    // A second line of that name, or a name that no object can have.
    if (name in head) return false
    head[name] = value
  }
  res.writeHead(status, message ?? STATUS_CODES[status] ?? 'unknown', head)
  res.end(toBuffer(body, undefined).toString('latin1'), 'latin1')
  return true
}

/** A name that comes more than once is sent as one line per value. */
export function setHeaders(res: ServerResponse, headers: readonly HeaderLine[]): void {
  if (headers.length === 1) return void res.setHeader(...headers[0]!)
  const lines = new Map<string, [string, string[]]>()
  for (const [name, value] of headers) {
    const lower = name.toLowerCase()
    const line = lines.get(lower)
    if (line) line[1].push(value)
    else lines.set(lower, [name, [value]])
  }
  for (const [name, values] of lines.values()) res.setHeader(name, values.length === 1 ? values[0]! : values)
}

/** 1xx, 204 and 304 have no body, whatever is written. */
export function hasBody(status: number): boolean {
  return status >= 200 && status !== 204 && status !== 304
}

export function toBuffer(chunk: string | Uint8Array, encoding: unknown): Buffer {
  if (typeof chunk === 'string') return Buffer.from(chunk, encodingOf(encoding))
  return Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength)
}

export function encodingOf(encoding: unknown): BufferEncoding {
  return typeof encoding === 'string' ? (encoding as BufferEncoding) : 'utf8'
}

// A client that writes the octets it is told to and reads what comes back exactly: header lines one by one, the body as it
// was on the wire after its framing. It never retries, follows or joins anything. One connection for each request.
import { connect, type Socket } from 'node:net'

export interface WireRequest {
  readonly port: number
  readonly method: string
  readonly path: string
  /** Each is written as it is, with CR LF after it; Host is added, and Content-Length where no line says how it is framed. */
  readonly headerLines: readonly string[]
  readonly body: Buffer | undefined
  /** Half of the body is held back. */
  readonly sends?: 'all' | 'half'
}

export interface WireResponse {
  readonly status: number
  /** In the order and case of the wire. */
  readonly headerLines: readonly (readonly [name: string, value: string])[]
  readonly body: Buffer
  readonly trailerLines: readonly (readonly [name: string, value: string])[]
  /** The message ended as its framing says. */
  readonly complete: boolean
  /** Octets after its end, where there should be none. */
  readonly excess: number
}

export interface Exchange {
  /** Rejects when the connection ended before there was a complete head. */
  readonly response: Promise<WireResponse>
  /** What has come so far, as it is on the wire. */
  received(): Buffer
  /** The client goes away. */
  abort(): void
}

export class ConnectionError extends Error {}

export function send(request: WireRequest): Exchange {
  const socket = connect({ port: request.port, host: '127.0.0.1', noDelay: true })
  const chunks: Buffer[] = []
  const response = read(socket, request.method, chunks)
  response.catch(() => {}) // an aborted request is nobody's to await
  socket.write(headOf(request), 'latin1')
  const { body } = request
  if (body)
    socket.write(
      isChunked(request) ? framed(body) : request.sends === 'half' ? body.subarray(0, body.length / 2) : body,
    )
  return { response, received: () => Buffer.concat(chunks), abort: () => void socket.resetAndDestroy() }
}

function isChunked({ headerLines }: WireRequest): boolean {
  return headerLines.some((line) => /^transfer-encoding: *chunked$/i.test(line))
}

/** In chunks of seven octets: no framework may take a chunk for the whole. */
function framed(body: Buffer): Buffer {
  const parts: Buffer[] = []
  for (let at = 0; at < body.length; at += 7) {
    const part = body.subarray(at, at + 7)
    parts.push(Buffer.from(`${part.length.toString(16)}\r\n`), part, Buffer.from('\r\n'))
  }
  return Buffer.concat([...parts, Buffer.from('0\r\n\r\n')])
}

export function valuesOf(response: WireResponse, name: string): string[] {
  return response.headerLines.filter(([each]) => each.toLowerCase() === name.toLowerCase()).map(([, value]) => value)
}

export function valueOf(response: WireResponse, name: string): string | undefined {
  const values = valuesOf(response, name)
  return values.length === 0 ? undefined : values.join(', ')
}

function headOf(request: WireRequest): string {
  const { port, method, path, headerLines, body } = request
  const lines = [`${method} ${path} HTTP/1.1`, `Host: 127.0.0.1:${port}`, ...headerLines]
  if (body && !isChunked(request)) lines.push(`Content-Length: ${body.length}`)
  return `${lines.join('\r\n')}\r\n\r\n`
}

function read(socket: Socket, method: string, chunks: Buffer[]): Promise<WireResponse> {
  return new Promise((resolve, reject) => {
    const finish = (response: WireResponse): void => {
      resolve(response)
      socket.destroy()
    }
    socket.on('data', (chunk) => {
      chunks.push(chunk)
      const response = parse(Buffer.concat(chunks), method, 'open')
      if (response?.complete) finish(response)
    })
    const ended = (): void => {
      const received = Buffer.concat(chunks)
      const response = parse(received, method, 'ended')
      if (response) finish(response)
      else reject(new ConnectionError(`the connection ended after ${received.length} octets and no complete head`))
    }
    socket.on('end', ended)
    socket.on('error', ended)
    socket.on('close', ended)
  })
}

/** Undefined while the head is incomplete. Informational responses are passed over. */
function parse(received: Buffer, method: string, connection: 'open' | 'ended'): WireResponse | undefined {
  const end = received.indexOf('\r\n\r\n')
  if (end < 0) return undefined
  const [statusLine, ...lines] = received.subarray(0, end).toString('latin1').split('\r\n')
  const status = Number(/^HTTP\/1\.1 (\d{3})/.exec(statusLine!)?.[1])
  const rest = received.subarray(end + 4)
  if (status >= 100 && status < 200) return parse(rest, method, connection)
  const headerLines = lines.map(splitLine)
  const value = (name: string): string | undefined =>
    headerLines.find(([each]) => each.toLowerCase() === name)?.[1].toLowerCase()
  const head = { status, headerLines }
  if (method === 'HEAD' || status === 204 || status === 304) {
    return { ...head, body: Buffer.alloc(0), trailerLines: [], complete: true, excess: rest.length }
  }
  if (value('transfer-encoding') === 'chunked') return { ...head, ...parseChunks(rest) }
  const length = Number(value('content-length') ?? Infinity)
  const complete = length === Infinity ? connection === 'ended' : rest.length >= length
  const excess = Math.max(0, rest.length - length)
  return { ...head, body: rest.subarray(0, length), trailerLines: [], complete, excess }
}

type Content = Pick<WireResponse, 'body' | 'trailerLines' | 'complete' | 'excess'>

function parseChunks(rest: Buffer): Content {
  const chunks: Buffer[] = []
  const cutOff = (): Content => ({ body: Buffer.concat(chunks), trailerLines: [], complete: false, excess: 0 })
  for (let at = 0; ;) {
    const lineEnd = rest.indexOf('\r\n', at)
    if (lineEnd < 0) return cutOff()
    const size = Number.parseInt(rest.toString('latin1', at, lineEnd), 16)
    if (size === 0) return { ...cutOff(), ...parseTrailers(rest.subarray(lineEnd + 2)) }
    chunks.push(rest.subarray(lineEnd + 2, lineEnd + 2 + size))
    if (rest.length < lineEnd + 4 + size) return cutOff()
    at = lineEnd + 4 + size
  }
}

function parseTrailers(rest: Buffer): Partial<Content> {
  if (rest.subarray(0, 2).equals(Buffer.from('\r\n'))) return { complete: true, excess: rest.length - 2 }
  const end = rest.indexOf('\r\n\r\n')
  if (end < 0) return {}
  const trailerLines = rest.toString('latin1', 0, end).split('\r\n').map(splitLine)
  return { trailerLines, complete: true, excess: rest.length - end - 4 }
}

function splitLine(line: string): [name: string, value: string] {
  const colon = line.indexOf(':')
  return [line.slice(0, colon), line.slice(colon + 1).trim()]
}

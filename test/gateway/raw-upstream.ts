// A service at the level of its socket: a test decides what leaves it, byte by byte, and when it breaks off. It writes down
// every request that came, and dedupes nothing.
import { createServer, type AddressInfo, type Socket } from 'node:net'

export interface Seen {
  readonly head: string
  readonly body: string
  /** The how many-th request on its connection this was, from 1. */
  readonly onConnection: number
}

export interface RawUpstream {
  readonly url: string
  readonly port: number
  readonly seen: Seen[]
  readonly connections: Socket[]
  close(): Promise<void>
}

export type Script = (socket: Socket, seen: Seen) => void

/** `script` is called when all of a request is there. Bodies have a Content-Length or no chunk that contains a blank line. */
export async function rawUpstream(script: Script): Promise<RawUpstream> {
  const seen: Seen[] = []
  const connections: Socket[] = []
  const server = createServer((socket) => {
    connections.push(socket)
    let text = ''
    let onConnection = 0
    socket.on('error', () => {})
    socket.on('data', (chunk: Buffer) => {
      text += chunk.toString('latin1')
      for (let read = readOne(text); read; read = readOne(text)) {
        text = read.rest
        const request = { head: read.head, body: read.body, onConnection: ++onConnection }
        seen.push(request)
        script(socket, request)
      }
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  return {
    url: `http://127.0.0.1:${port}`,
    port,
    seen,
    connections,
    async close() {
      for (const socket of connections) socket.destroy()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

function readOne(text: string): { head: string; body: string; rest: string } | undefined {
  const end = text.indexOf('\r\n\r\n')
  if (end < 0) return undefined
  const head = text.slice(0, end)
  const start = end + 4
  if (/^transfer-encoding: *chunked$/im.test(head)) {
    const last = text.indexOf('0\r\n\r\n', start)
    return last < 0 ? undefined : { head, body: text.slice(start, last), rest: text.slice(last + 5) }
  }
  const length = Number(/^content-length: *(\d+)$/im.exec(head)?.[1] ?? 0)
  if (text.length < start + length) return undefined
  return { head, body: text.slice(start, start + length), rest: text.slice(start + length) }
}

/** A plain answer with a length, on a connection that stays open. */
export function answerWith(body: string, lines: readonly string[] = [], status = '201 Created'): Script {
  return (socket) => void socket.write(response(body, lines, status))
}

export function response(body: string, lines: readonly string[] = [], status = '201 Created'): string {
  return `HTTP/1.1 ${[status, `Content-Length: ${Buffer.byteLength(body)}`, ...lines].join('\r\n')}\r\n\r\n${body}`
}

export function valueIn(head: string, name: string): string[] {
  return Array.from(head.matchAll(new RegExp(`^${name}: ?(.*)$`, 'gim')), (match) => match[1]!.trim())
}

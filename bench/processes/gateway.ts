// One server of bench/gateway.ts in a process of its own: the service, a bare proxy on undici, or the gateway. Its argument is a
// ProcessOptions; it sends its port when it listens, and what it has cost so far whenever it is asked.

import { createServer } from 'node:http'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { pipeline } from 'node:stream/promises'
import { Pool } from 'undici'
import { startGateway } from '../../src/gateway/proxy.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'

export type ProcessOptions =
  | { readonly is: 'service' }
  | { readonly is: 'bare'; readonly upstream: string }
  | { readonly is: 'gateway'; readonly upstream: string; readonly path: string; readonly keepMs?: number }

export interface Spent {
  readonly cpuMicroseconds: number
  readonly residentBytes: number
  readonly heapBytes: number
}

const options = JSON.parse(process.argv[2]!) as ProcessOptions

// 300 bytes of JSON.
const answer = JSON.stringify({ id: 'pay_01HZX3J5T9Q8W7E6R5T4Y3U2I1', status: 'succeeded', receipt: 'x'.repeat(227) })

function service(req: IncomingMessage, res: ServerResponse): void {
  req.resume().on('end', () => {
    res.writeHead(201, { 'Content-Type': 'application/json', 'Content-Length': answer.length }).end(answer)
  })
}

/** What one would write by hand: both bodies are streamed, the headers that belong to the connection left out. */
function bareProxy(upstream: string): (req: IncomingMessage, res: ServerResponse) => void {
  const pool = new Pool(upstream)
  const hop = new Set(['connection', 'keep-alive', 'transfer-encoding', 'host', 'upgrade', 'te', 'trailer'])
  const passed = (headers: Record<string, string | string[] | undefined>): Record<string, string | string[]> =>
    Object.fromEntries(
      Object.entries(headers).filter(
        (line): line is [string, string | string[]] => line[1] !== undefined && !hop.has(line[0]),
      ),
    )
  const proxy = async (req: IncomingMessage, res: ServerResponse): Promise<void> => {
    const { statusCode, headers, body } = await pool.request({
      path: req.url!,
      method: req.method as 'POST',
      headers: passed(req.headers),
      body: req.method === 'GET' ? null : req,
    })
    res.writeHead(statusCode, passed(headers))
    await pipeline(body, res)
  }
  return (req, res) => void proxy(req, res).catch(() => res.destroy())
}

async function listen(server: Server): Promise<number> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return (server.address() as AddressInfo).port
}

async function start(): Promise<number> {
  if (options.is === 'service') return listen(createServer(service))
  if (options.is === 'bare') return listen(createServer(bareProxy(options.upstream)))
  const gateway = await startGateway({
    store: sqliteStore({ path: options.path }),
    upstream: options.upstream,
    listen: { host: '127.0.0.1', port: 0 },
    tenant: 'shared',
    ...(options.keepMs !== undefined && { keepMs: options.keepMs, tombstoneMs: options.keepMs, sweepEveryMs: 1_000 }),
  })
  return Number(new URL(gateway.url).port)
}

function spent(): Spent {
  const { user, system } = process.cpuUsage()
  const { rss, heapUsed } = process.memoryUsage()
  return { cpuMicroseconds: user + system, residentBytes: rss, heapBytes: heapUsed }
}

const port = await start()
process.on('message', () => process.send!(spent()))
// The bench has ended, however it ended.
process.on('disconnect', () => process.exit())
process.send!(port)

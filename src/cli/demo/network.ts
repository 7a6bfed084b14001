// The network of the demo, and its page. A browser cannot lose an answer on purpose, so its requests go through here: to the
// gateway (/with) or straight to the payment service (/without). A request may ask that its answer is lost on the way,
// or that the gateway's store is down while it travels. All other traffic passes unchanged. The messages are asked for here, too.

import { createServer, request as ask } from 'node:http'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { createGuard, readPages, securityHeaders } from '../../gateway/admin.ts'
import type { Entries, Page } from '../../gateway/admin.ts'
import { scopedKey } from '../../http/exchange.ts'
import type { DemoMessages } from './messages.ts'
import { clientModules } from './network/client-modules.ts'
import type { SupervisedService } from './supervisor.ts'

export interface NetworkOptions {
  readonly port: number
  readonly gateway: { readonly url: string; readonly once: { readonly scope: string } }
  readonly service: SupervisedService
  readonly dashboardUrl: string
  readonly entries: Pick<Entries, 'life'>
  readonly messages: DemoMessages
  /** Takes the store down. The answer brings it back. */
  readonly takeStoreDown: () => Promise<() => void>
}

export interface DemoNetwork {
  readonly url: string
  close(): Promise<void>
}

export async function startNetwork(options: NetworkOptions): Promise<DemoNetwork> {
  const pages = demoPages()
  const server = createServer()
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject).listen(options.port, '127.0.0.1', resolve)
  })
  const { port } = server.address() as AddressInfo
  const guard = createGuard('127.0.0.1', undefined)
  server.on('request', (request: IncomingMessage, response: ServerResponse) => {
    for (const [name, value] of Object.entries(securityHeaders)) response.setHeader(name, value)
    const refusal = guard.refuse(request)
    if (refusal) return void response.writeHead(refusal.status).end(refusal.message)
    serve(options, pages, request, response).catch(() => response.destroy())
  })
  return {
    url: `http://127.0.0.1:${port}`,
    async close() {
      const closed = new Promise((resolve) => server.close(resolve))
      server.closeAllConnections()
      await closed
    },
  }
}

/** The style and the timeline are those of the dashboard, and the client is the one of the package. */
function demoPages(): ReadonlyMap<string, Page> {
  const dashboard = readPages(join(import.meta.dirname, '..', '..', 'gateway', 'dashboard'))
  return new Map([...dashboard, ...readPages(join(import.meta.dirname, 'page')), ...clientModules()])
}

async function serve(
  options: NetworkOptions,
  pages: ReadonlyMap<string, Page>,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const { gateway, service, entries, dashboardUrl } = options
  const { pathname, searchParams } = new URL(request.url ?? '/', 'http://demo')
  const [, road, ...rest] = pathname.split('/')
  if (road === 'with' || road === 'without') {
    return travel(options, `${road === 'with' ? gateway.url : service.url}/${rest.join('/')}`, request, response)
  }
  const page = pages.get(pathname)
  if (page) return void response.writeHead(200, { 'Content-Type': page.type }).end(page.body)
  const orders = searchParams.getAll('order')
  if (pathname === '/api/about')
    return send(response, { dashboardUrl, gatewayUrl: gateway.url, serviceUrl: service.url })
  if (pathname === '/api/ledger')
    return send(
      response,
      service.charges().filter(({ order }) => orders.includes(order)),
    )
  if (pathname.startsWith('/api/messages')) return messagesOf(options, pathname, request, response)
  if (pathname !== '/api/life') return void response.writeHead(404).end()
  const key = scopedKey({ service: gateway.once.scope, tenant: undefined, route: undefined }, orders[0] ?? '', 'plain')
  return send(response, { key, ...(await entries.life(key)) })
}

/** Every answer has the counts. Only a POST changes something. */
async function messagesOf(
  { messages }: NetworkOptions,
  pathname: string,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const { searchParams } = new URL(request.url ?? '/', 'http://demo')
  const asked = searchParams.get('order') ?? undefined
  const change = pathname.slice('/api/messages'.length)
  if (change !== '' && request.method !== 'POST') return void response.writeHead(405).end()
  let placed: readonly string[] = []
  if (change === '/start') await messages.start()
  else if (change === '/orders') placed = await messages.place(searchParams.get('count') === '25' ? 25 : 1)
  else if (change === '/kill') messages.killAt(searchParams.get('at') ?? '')
  else if (change === '/again') messages.deliverAgain(asked)
  else if (change !== '') return void response.writeHead(404).end()
  return send(response, { placed, ...(await messages.counts(asked)) })
}

async function travel(
  { service, takeStoreDown }: NetworkOptions,
  url: string,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const fault = String(request.headers['demo-fault'] ?? '')
  // Like a load balancer: nothing is sent to a service that is restarting.
  await service.up()
  const bringStoreBack = fault.includes('store-down') ? await takeStoreDown() : undefined
  try {
    // A client that gave up meanwhile has not sent a whole request to pass on.
    if (request.socket.destroyed) return
    const answer = await forward(url, request, response)
    response.writeHead(answer.status, { ...answer.headers, 'Content-Length': answer.body.length })
    if (!fault.includes('response-lost')) return void response.end(answer.body)
    // The answer was made, and breaks off on the way. Not before its first byte: Chromium resends a POST by itself when a
    // reused connection ends without a byte, and the page would count fewer requests than there were.
    response.write(answer.body.subarray(0, 1), () => response.destroy())
  } finally {
    bringStoreBack?.()
  }
}

interface Answer {
  readonly status: number
  readonly headers: Record<string, string | string[]>
  readonly body: Buffer
}

/** A broken connection to the server gives 502, as with a load balancer. */
async function forward(url: string, request: IncomingMessage, response: ServerResponse): Promise<Answer> {
  const { host: _host, origin: _origin, connection: _connection, ...headers } = request.headers
  const onward = ask(url, { method: request.method ?? 'GET', headers, agent: false })
  response.once('close', () => onward.destroy())
  request.pipe(onward)
  try {
    const answer = await new Promise<IncomingMessage>((resolve, reject) => {
      onward.on('response', resolve).on('error', reject)
    })
    const chunks: Buffer[] = []
    for await (const chunk of answer as AsyncIterable<Buffer>) chunks.push(chunk)
    const { connection: _hop, 'keep-alive': _alive, 'transfer-encoding': _framing, ...kept } = answer.headers
    return { status: answer.statusCode ?? 502, headers: kept as Answer['headers'], body: Buffer.concat(chunks) }
  } catch {
    const body = Buffer.from('{"error":"the service broke off"}\n')
    return { status: 502, headers: { 'content-type': 'application/json' }, body }
  }
}

function send(response: ServerResponse, value: unknown): void {
  response.writeHead(200, { 'Content-Type': 'application/json' }).end(JSON.stringify(value))
}

// The admin server: the dashboard and its data, /metrics, /healthz and /readyz, on a separate port. It changes an entry only
// with the token and a reason, and audits the change. It is off unless started, and loopback unless there is a token.
//
// Decisions, and what they cost:
// - The dashboard's numbers are of one process. Events are kept in a ring of 10,000. Entries and audit come from the store.
//   Costs: with several gateways each shows only what it has seen itself.
// - Settled entries are not counted. Running, abandoned and open ones are counted up to 1,000. `list` returns whole outcomes,
//   and a count could hold gigabytes. A dashboard rests twenty times as long as the store took. Costs: on a large store its
//   numbers are minutes old.
// - On loopback the Host's name is checked, not its port (tunnels change it), and reading needs no token there. Costs: every user
//   of the machine can read keys.
// - Wrong tokens: ten are free per address (per /64 in IPv6), then one per second is checked, right or wrong. A token that would
//   wait more than 10 s is 429. Costs: the right token from the guesser's own address waits meanwhile.
// - A resume is audited as a release with the reason `resume: …`: the parked key is claimed for a moment and released manually,
//   so no store had to change. Costs: the attempt number grows by two.
// - A redrive is audited as a forget with the reason `redrive: …`, and a discard with `discard: …`: a message has no entry, so its key is
//   claimed for a moment. Costs: a process that dies between the two calls blocks the next redrive of the message for a minute.
// - Messages, sessions and webhooks are read when a person opens their tab. Costs: their numbers are as old as the page says.
// - A SQLite file that the program creates is 0600. Costs: a service under another user on the same file needs a chmod.
// - The demo's gateway runs `onTakeover: 'refuse'`: a service that knows no keys and is killed after the charge ends in doubt,
//   with one charge, never two. Costs: that customer gets "in doubt".
// - The demo has its own network, on a fourth port, as a browser cannot lose an answer on purpose. Chromium resends a POST by
//   itself when a reused connection ends without a byte, so answers are broken off after their first byte.

import { createServer } from 'node:http'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { systemClock } from '../core/clock.ts'
import { OnceError } from '../core/errors.ts'
import type { ErrorCode } from '../core/errors.ts'
import type { Key } from '../core/key.ts'
import type { Once } from '../core/once.ts'
import {
  aFunction,
  aString,
  checkOptions,
  oneOf,
  optional,
  positiveInteger,
  positiveMs,
  withMethods,
} from '../core/options.ts'
import type { Inspectable, Store } from '../core/store.ts'
import {
  changeBytesMax,
  deliveryFilter,
  deliveryName,
  endpointFilter,
  filterOf,
  foundAs,
  foundText,
  keyOf,
  letterFilter,
  parkedFilter,
  readChange,
  resolveBytesMax,
  sessionFilter,
} from './admin/asked.ts'
import type { FoundAs, GivenRules } from './admin/asked.ts'
import { entriesOf } from './admin/entries.ts'
import type { Entries, ManualChange } from './admin/entries.ts'
import { checkListen, createGuard, securityHeaders } from './admin/guard.ts'
import type { Guard, Listen, Refusal } from './admin/guard.ts'
import { startJournal } from './admin/journal.ts'
import { messagesOf } from './admin/messages.ts'
import type { MessagesView, ParkedName } from './admin/messages.ts'
import { overviewOf } from './admin/overview.ts'
import type { AdminSection } from './admin/overview.ts'
import { readPages } from './admin/pages.ts'
import { sessionsOf } from './admin/sessions.ts'
import type { SeenSession, SessionsView } from './admin/sessions.ts'
import { startStream } from './admin/stream.ts'
import { webhooksOf } from './admin/webhooks.ts'
import type { DeliveryName, WebhooksView } from './admin/webhooks.ts'

export { entriesOf } from './admin/entries.ts'
export type { Entries } from './admin/entries.ts'
export { createGuard, securityHeaders } from './admin/guard.ts'
export { startJournal } from './admin/journal.ts'
export { hasLedger, operationsAmong, operationsSection } from './admin/operations.ts'
export type { FoundOperation } from './admin/operations.ts'
export type { AdminSection } from './admin/overview.ts'
export { readPages } from './admin/pages.ts'
export type { Page } from './admin/pages.ts'

export interface AdminOptions {
  readonly once: Once<Store & Inspectable>
  readonly store: Store & Partial<Inspectable>
  readonly metrics: { text(): string }
  /** Port 0 takes a free one. */
  readonly listen: Listen
  /** Allows changes, to any client that sends it. Needed on any address that other machines can reach. */
  readonly token?: string | undefined
  /** Why no keyed request can be served now, or undefined. */
  notReady(): string | undefined
  /** Why keyed requests run without protection now (`onStoreDown: 'run'`), or undefined. */
  degraded?(): string | undefined
  /** More to show: operations, outbox, inbox, sessions. Each is there only if the store has it. */
  readonly sections?: readonly AdminSection[] | undefined
}

export interface Admin {
  readonly url: string
  close(): Promise<void>
}

const rules = {
  once: withMethods('run', 'release', 'forget'),
  store: withMethods('claim', 'settle'),
  metrics: withMethods('text'),
  listen: (value: unknown): string | undefined =>
    typeof (value as Listen | undefined)?.host === 'string' && Number.isInteger((value as Listen).port)
      ? undefined
      : 'an object with host and port',
  token: optional(aString),
  notReady: aFunction,
  degraded: optional(aFunction),
  sections: optional((value) => (Array.isArray(value) ? undefined : 'a list of sections')),
}

type Handler = (request: IncomingMessage, response: ServerResponse, url: URL) => unknown
interface Route {
  readonly method: 'GET' | 'POST'
  readonly needs: 'nothing' | 'reading' | 'change'
  readonly handle: Handler
}

export async function startAdmin(options: AdminOptions): Promise<Admin> {
  checkOptions('admin', options, rules)
  checkListen(options.listen, options.token)
  const journal = startJournal()
  const entries = entriesOf(options.once, options.store, journal)
  const picture = overviewOf({ ...options, clock: systemClock, entries, journal })
  const stream = startStream({ clock: systemClock, picture })
  const { once, store } = options
  const routes = {
    ...plainRoutes(options),
    ...entryRoutes(entries),
    ...messageRoutes(messagesOf(once, store)),
    ...sessionRoutes(sessionsOf(once, store)),
    ...webhookRoutes(webhooksOf(once, store)),
    ...pageRoutes(),
  }
  const live: Route = {
    method: 'GET',
    needs: 'reading',
    handle: (request, response) =>
      // A stream without a body would never end.
      (request.method === 'HEAD' && response.end()) ||
      stream.add(response) ||
      sendProblem(response, { status: 503, message: 'Too many dashboards are open.' }),
  }
  const guard = createGuard(options.listen.host, options.token)
  const server = createServer((request, response) => {
    for (const [name, value] of Object.entries(securityHeaders)) response.setHeader(name, value)
    void answer({ ...routes, '/api/live': live }, guard, request, response)
  })
  limit(server)
  const { host, port } = await listenOn(server, options.listen).catch((error: unknown) => {
    journal.close()
    throw error
  })
  return {
    url: `http://${host.includes(':') ? `[${host}]` : host}:${port}`,
    async close() {
      stream.close()
      journal.close()
      const closed = new Promise((resolve) => server.close(resolve))
      server.closeAllConnections()
      await closed
    },
  }
}

/** People and scrapers are few. A client that opens more, or sends slowly, must not take files and memory from the gateway. */
function limit(server: Server): void {
  server.maxConnections = 256
  server.headersTimeout = 10_000
  server.requestTimeout = 10_000
}

async function listenOn(server: Server, { host, port }: Listen): Promise<Listen> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, host, () => {
      server.off('error', reject)
      resolve()
    })
  })
  return { host, port: (server.address() as AddressInfo).port }
}

async function answer(
  routes: Readonly<Record<string, Route>>,
  guard: Guard,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  try {
    const url = URL.parse(request.url ?? '/', 'http://admin')
    if (!url) return sendProblem(response, { status: 400, message: 'This is no target.' })
    const refusal = guard.refuse(request)
    if (refusal) return sendProblem(response, refusal)
    const route = Object.hasOwn(routes, url.pathname) ? routes[url.pathname] : undefined
    if (!route) return sendProblem(response, { status: 404, message: 'There is no such page.' })
    const method = request.method === 'HEAD' ? 'GET' : request.method
    if (route.method !== method) return sendProblem(response, { status: 405, message: `Use ${route.method}.` })
    const denied =
      route.needs === 'change'
        ? await guard.refuseChange(request)
        : route.needs === 'reading'
          ? await guard.refuseReading(request)
          : undefined
    if (denied) return sendProblem(response, denied)
    await route.handle(request, response, url)
  } catch (error) {
    sendProblem(response, problemOf(error))
  }
}

function plainRoutes({ metrics, notReady, degraded, token }: AdminOptions): Record<string, Route> {
  const text = (response: ServerResponse, status: number, body: string): void => {
    response.writeHead(status, { 'Content-Type': 'text/plain; charset=utf-8' }).end(body)
  }
  const open = { method: 'GET', needs: 'nothing' } as const
  return {
    '/healthz': { ...open, handle: (_request, response) => text(response, 200, 'ok\n') },
    '/readyz': {
      ...open,
      // Any client may ask. The reason, which may name hosts, is on the dashboard and in the log.
      handle: (_request, response) =>
        notReady() !== undefined
          ? text(response, 503, 'not ready\n')
          : text(response, 200, degraded?.() === undefined ? 'ready\n' : 'ready, unprotected\n'),
    },
    '/metrics': {
      ...open,
      handle(_request, response) {
        response.writeHead(200, { 'Content-Type': 'text/plain; version=0.0.4; charset=utf-8' }).end(metrics.text())
      },
    },
    // Before anything else is known: whether a token would help.
    '/api/about': { ...open, handle: (_request, response) => send(response, { changes: token !== undefined }) },
    '/api/token': {
      method: 'GET',
      needs: 'change',
      handle: (_request, response) => send(response, { accepted: true }),
    },
  }
}

/** `needs: 'change'` is for what shows the contents of an answer or a message. */
function reading(needs: 'reading' | 'change', handle: (parameters: URLSearchParams) => Promise<unknown>): Route {
  return {
    method: 'GET',
    needs,
    handle: async (_request, response, { searchParams }) => send(response, (await handle(searchParams)) ?? {}),
  }
}

function changing<Given extends object>(
  rules: GivenRules<Given>,
  handle: (given: Given & { reason: string }) => Promise<unknown>,
  bytesMax = changeBytesMax,
): Route {
  return {
    method: 'POST',
    needs: 'change',
    handle: async (request, response) =>
      send(response, (await handle(await readChange(request, rules, bytesMax))) ?? {}),
  }
}

const keyRules: GivenRules<Key> = { scope: aString, id: aString }

function entryRoutes(entries: Entries): Record<string, Route> {
  const change = <Given extends object>(
    rules: GivenRules<Given>,
    read: (given: Given) => ManualChange,
    bytesMax?: number,
  ): Route =>
    changing<Key & Given>(
      { ...keyRules, ...rules } as GivenRules<Key & Given>,
      async (given) => ({ entry: await entries.mend({ scope: given.scope, id: given.id }, read(given), given.reason) }),
      bytesMax,
    )
  return {
    '/api/scopes': reading('reading', () => entries.scopes()),
    '/api/entries': reading('reading', (parameters) => entries.page(filterOf(parameters))),
    '/api/find': reading('reading', (parameters) =>
      entries.find(parameters.get('text') ?? '', parameters.get('scope') || undefined),
    ),
    '/api/entry': reading('reading', (parameters) => entries.life(keyOf(parameters))),
    '/api/outcome': reading('change', (parameters) => entries.reveal(keyOf(parameters))),
    '/api/release': change({}, () => ({ action: 'release' })),
    '/api/forget': change({}, () => ({ action: 'forget' })),
    '/api/resume': change({}, () => ({ action: 'resume' })),
    '/api/keep': change<{ forMs: number }>({ forMs: positiveMs }, ({ forMs }) => ({ action: 'keep', forMs })),
    '/api/resolve': change<{ as: FoundAs; text: string }>(
      { as: oneOf(...foundAs), text: aString },
      ({ as, text }) => ({ action: 'resolve', found: foundText(as, text) }),
      resolveBytesMax,
    ),
  }
}

function messageRoutes(messages: MessagesView): Record<string, Route> {
  return {
    '/api/parked': reading('reading', (parameters) => messages.parked(parkedFilter(parameters))),
    '/api/parked-message': reading('change', (parameters) =>
      messages.revealParked({ ...keyOf(parameters), fingerprint: parameters.get('fingerprint') ?? '' }),
    ),
    '/api/redrive': changing<ParkedName>({ ...keyRules, fingerprint: aString }, ({ reason, ...name }) =>
      messages.redriveParked(name, reason),
    ),
    '/api/discard': changing<ParkedName>({ ...keyRules, fingerprint: aString }, ({ reason, ...name }) =>
      messages.discardParked(name, reason),
    ),
    '/api/outbox': reading('reading', (parameters) => messages.outbox(letterFilter(parameters))),
    '/api/dead-letter': reading('change', (parameters) => messages.revealLetter(letterFilter(parameters))),
    '/api/redrive-letter': changing<{ id: string }>({ id: aString }, ({ reason, id }) =>
      messages.redriveLetter(id, reason),
    ),
    '/api/discard-letter': changing<{ id: string }>({ id: aString }, ({ reason, id }) =>
      messages.discardLetter(id, reason),
    ),
  }
}

function sessionRoutes(sessions: SessionsView): Record<string, Route> {
  return {
    '/api/sessions': reading('reading', (parameters) => sessions.page(sessionFilter(parameters))),
    '/api/session': reading('reading', (parameters) =>
      sessions.one({ scope: parameters.get('scope') ?? '', session: parameters.get('session') ?? '' }),
    ),
    '/api/close-session': changing<SeenSession>(
      { scope: aString, session: aString, epoch: positiveInteger },
      ({ reason, ...seen }) => sessions.close(seen, reason),
    ),
  }
}

function webhookRoutes(webhooks: WebhooksView): Record<string, Route> {
  const switching = (to: 'disable' | 'enable'): Route =>
    changing<{ id: string }>({ id: aString }, ({ reason, id }) => webhooks.switch(id, to, reason))
  return {
    '/api/webhook-endpoints': reading('reading', (parameters) => webhooks.endpoints(endpointFilter(parameters))),
    '/api/webhook-endpoint': reading('reading', (parameters) => webhooks.endpoint(parameters.get('id') ?? '')),
    '/api/webhook-deliveries': reading('reading', (parameters) => webhooks.deliveries(deliveryFilter(parameters))),
    '/api/webhook-delivery': reading('reading', (parameters) => webhooks.delivery(deliveryName(parameters))),
    '/api/webhook-sent': reading('change', (parameters) => webhooks.reveal(deliveryName(parameters))),
    '/api/replay-delivery': changing<DeliveryName>({ id: aString, endpoint: aString }, ({ reason, ...name }) =>
      webhooks.replay(name, reason),
    ),
    '/api/disable-endpoint': switching('disable'),
    '/api/enable-endpoint': switching('enable'),
  }
}

function pageRoutes(): Record<string, Route> {
  const pages = readPages(join(import.meta.dirname, 'dashboard'))
  return Object.fromEntries(
    Array.from(pages, ([path, { type, body }]) => [
      path,
      {
        method: 'GET',
        needs: 'nothing',
        handle: (_request, response) => response.writeHead(200, { 'Content-Type': type }).end(body),
      } satisfies Route,
    ]),
  )
}

function send(response: ServerResponse, value: unknown): void {
  response.writeHead(200, { 'Content-Type': 'application/json' }).end(JSON.stringify(value))
}

function sendProblem(response: ServerResponse, { status, message }: Refusal): void {
  if (response.headersSent) return void response.destroy()
  const headers = { 'Content-Type': 'application/json', ...(status === 401 && { 'WWW-Authenticate': 'Bearer' }) }
  // The unread rest of this request must not be taken for the next one.
  response.writeHead(status, { ...headers, Connection: 'close' }).end(JSON.stringify({ message }))
}

const statuses: Partial<Record<ErrorCode, number>> = {
  INVALID_ARGUMENT: 400,
  IN_FLIGHT: 409,
  UNSUPPORTED: 501,
  STORE_UNAVAILABLE: 503,
}

function problemOf(error: unknown): Refusal {
  if (error instanceof OnceError) return { status: statuses[error.code] ?? 500, message: error.message }
  return { status: 500, message: 'The admin server failed to answer this.' }
}

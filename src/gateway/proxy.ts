// A reverse proxy that makes the HTTP service behind it idempotent, in whatever language the service is written. Every request
// goes to the one configured upstream. The exchange of src/http decides a key before an answer leaves.
//
// Decisions, and what they cost:
// - The exchange stays the only home of the rules. The gateway wraps `exchange.handle`. An answer that broke off makes
//   `run` throw `InDoubtError`, so the key stays claimed until its lease ends, under every errorPolicy.
// - "Sent" begins when undici starts to write, and a second start aborts. Costs: a request that meets the close of a kept
//   connection is in doubt, so idle upstream connections live 1 s, below gunicorn's 2 s.
// - An answer that ends with its connection is kept as *not stored*: a killed process, too, ends with a clean FIN. Costs:
//   a service must send a length or chunks to be replayed.
// - A body streamed with a Content-Digest keeps its last piece back until the digest is right, or the upstream would see
//   a whole request.
// - The upstream gets its own name in Host. Forwarded and X-Forwarded-\* from clients are replaced unless `--trust-forwarded`.
// - Keys are in `gateway:SERVICE/tenant`, so a service behind it that uses onceonly on the same store and key works.
//   Costs: two services on one store need different `--service` names, and nothing can detect it if they do not.
// - A tenant header that is a credential is kept as a digest only. Costs: it is unreadable on the dashboard.
// - Memory is bounded by `--max-in-flight` × (max-body + max-stored). One request more is 503. Connections are bounded at four
//   times the requests, and a client that reads no byte for connect + upstream time-out is cut off. Costs: a client that pauses
//   longer must retry. With a key it gets a replay.
// - Header names are compared as CGI reads them: `X_Forwarded_For` would reach a WSGI or PHP service as ours. Costs: a
//   service that really wants that spelling does not get it.
// - An escaped slash is no slash, and a path that would be on another route if it were is 400. Costs: such a path from an
//   honest client is refused.
// - An answer that breaks off for an HTTP/1.0 client is reset, as its end is its only length. 499 in the log is "no
//   answer was begun".

import { createServer } from 'node:http'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { systemClock, systemRandom } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { invalidArgument, OnceError } from '../core/errors.ts'
import { createOnce } from '../core/once.ts'
import type { Once } from '../core/once.ts'
import type { OnceOptions } from '../core/settings.ts'
import type { Inspectable, Store } from '../core/store.ts'
import { checkStore, sessionHeaders, splitTarget } from '../http/exchange.ts'
import type { HttpOptions } from '../http/exchange.ts'
import { sendAnswer } from '../http/on-node.ts'
import { createSessions } from '../sessions/sessions.ts'
import type { Sessions, SessionsOptions } from '../sessions/sessions.ts'
import { gatewayScope } from './gateway-key.ts'
import type { ProxiedCall } from './proxy/call.ts'
import { createListener, createProtection, protectionBy } from './proxy/listener.ts'
import type { RouteProtection } from './proxy/listener.ts'
import { checkUpstream, protectionNames, readGatewayOptions } from './proxy/options.ts'
import type { GatewayOptions, GatewaySettings, ProtectionOptions } from './proxy/options.ts'
import { gatewayProblem, gatewayProblems } from './proxy/problem.ts'
import { recordOf } from './proxy/record.ts'
import { tenantOption, tenantName } from './proxy/tenants.ts'
import { openUpstream } from './proxy/upstream.ts'
import type { Upstream } from './proxy/upstream.ts'

export type { GatewayOptions, GatewayRoute } from './proxy/options.ts'
export { gatewayProblems } from './proxy/problem.ts'
export { routePath } from './proxy/routes.ts'

export interface Gateway {
  readonly url: string
  /** The manual methods are refused on a store that cannot show single entries. */
  readonly once: Once<Store & Inspectable>
  /** Requests under way. */
  readonly inFlight: number
  /** False from the moment the gateway drains. */
  readonly ready: boolean
  /** Accept nothing more, and wait for what is under way, for `drainMs` at the most. */
  drain(): Promise<void>
  /** End at once. A request that the upstream is working on keeps its key until the lease ends. The store stays open. */
  close(): Promise<void>
}

/** The sessions of a gateway, in the scope of its keys. The store may be another one than that of its keys. */
export function gatewaySessions(
  options: Omit<SessionsOptions, 'scope'> & Pick<GatewayOptions, 'service'>,
): Sessions<never> {
  const { service = 'default', ...rest } = options
  const scope = gatewayScope(service)
  return createSessions({ ...rest, scope }) as Sessions<never>
}

export async function startGateway(options: GatewayOptions): Promise<Gateway> {
  const settings = readGatewayOptions(options)
  const { clock = systemClock } = settings
  const once = createOnce(onceOptions(settings)) as Once<Store & Inspectable>
  // Before the gateway listens: every request with a key would be a 503.
  await checkStore(once, settings.sessions).catch(async (error: unknown) => {
    await once.close()
    throw error
  })
  const calls = createCalls(clock)
  const { listener, upstream } = build(settings, once, (call) => {
    if (calls.delete(call)) settings.log?.(recordOf(call, clock.elapsed()))
  })
  let draining = false
  const server = createServer(serverOptions, (req, res) => {
    if (calls.size() >= settings.inFlightMax) return refuseOverload(settings, req, res)
    calls.add(listener(req, res))
    if (draining) res.shouldKeepAlive = false
  })
  // The size of the head is bounded. Beyond a number of lines Node would drop some of them, and one may be the key.
  server.maxHeadersCount = 0
  // Idle and slow connections count, too: without a bound they would take all files and memory.
  server.maxConnections = connectionsPerRequest * settings.inFlightMax
  server.on('connect', (_req: IncomingMessage, socket: Socket) => refuseTunnel(socket))
  const url = await listen(server, settings.listen)
  return {
    url,
    once,
    get inFlight() {
      return calls.size()
    },
    get ready() {
      return !draining
    },
    async drain() {
      draining = true
      calls.forEach(({ res }) => void (res.shouldKeepAlive = false))
      // Connections without a request under way are closed with it.
      server.close()
      await calls.quiet(settings.drainMs)
    },
    async close() {
      draining = true
      server.close()
      await upstream.close()
      // Requests under way get an answer that says so, and a settle that has begun is let through.
      await calls.quiet(closingMs)
      server.closeAllConnections()
      await once.close()
    },
  }
}

/** Nothing waits for the upstream any more. A store that takes longer is down. */
const closingMs = 1_000

/** Clients and load balancers keep some idle connections per connection in use. */
const connectionsPerRequest = 4

function build(
  settings: GatewaySettings,
  once: Once,
  onEnd: (call: ProxiedCall) => void,
): { listener: ReturnType<typeof createListener>; upstream: Upstream } {
  const { clock = systemClock, profile, trustForwarded } = settings
  const pseudonym = `onceonly-${systemRandom.uuid().slice(0, 8)}`
  const upstream = openUpstream({
    origin: checkUpstream(settings.upstream),
    timeoutMs: settings.upstreamTimeoutMs,
    connectTimeoutMs: settings.connectTimeoutMs,
    idleMs: settings.upstreamIdleMs,
    profile,
    pseudonym,
    trustForwarded,
  })
  const routes = routesOf(once, settings)
  const published = createProtection(
    once,
    { ...protectionOf(settings), ...forAll(settings), methods: settings.methods },
    {
      problems: Object.values(gatewayProblems),
      routes: routes.map(({ protection, ...route }) => ({ ...route, settings: protection?.settings })),
    },
  )
  const listener = createListener({
    clock,
    upstream,
    published,
    protectionOf: protectionBy(routes, published, settings.pathCase),
    pseudonym,
    profile,
    // The upstream would have been given up by then, and the gateway waits for nothing else.
    patienceMs: settings.connectTimeoutMs + settings.upstreamTimeoutMs,
    essential: new Set([...namingHeaders(settings), 'host', 'content-type', tenantName(settings)]),
    onEnd,
  })
  return { listener, upstream }
}

interface Calls {
  add(call: ProxiedCall): void
  delete(call: ProxiedCall): boolean
  size(): number
  forEach(visit: (call: ProxiedCall) => void): void
  /** Resolves when no call is left, or after `patienceMs`. */
  quiet(patienceMs: number): Promise<void>
}

function createCalls(clock: Clock): Calls {
  const underWay = new Set<ProxiedCall>()
  let onQuiet = (): void => {}
  return {
    add(call) {
      // A request that was refused at once may have ended already.
      if (!(call.closed && call.decided)) underWay.add(call)
    },
    delete(call) {
      const was = underWay.delete(call)
      if (underWay.size === 0) onQuiet()
      return was
    },
    size: () => underWay.size,
    forEach: (visit) => underWay.forEach(visit),
    quiet: (patienceMs) =>
      new Promise((resolve) => {
        if (underWay.size === 0) return resolve()
        const cancel = clock.schedule(resolve, patienceMs)
        onQuiet = () => {
          cancel()
          resolve()
        }
      }),
  }
}

function onceOptions(settings: GatewaySettings): OnceOptions {
  const { store, service, sweepEveryMs, clock, leaseMs, keepMs, tombstoneMs } = settings
  // A flag for all stores must not stop a store that expires entries by itself.
  const sweeping = sweepEveryMs === 0 || !('sweep' in store) ? false : sweepEveryMs
  return {
    store,
    // A separate prefix: a service behind that uses onceonly on the same store and key has other keys.
    scope: gatewayScope(service),
    ...(leaseMs !== undefined && { leaseMs }),
    ...(keepMs !== undefined && { keepMs }),
    ...(tombstoneMs !== undefined && { tombstoneMs }),
    ...(sweeping !== undefined && { sweepEveryMs: sweeping }),
    ...(clock && { clock }),
  }
}

/** Only the options that are given. */
function protectionOf(options: ProtectionOptions): ProtectionOptions {
  const given = protectionNames.filter((name) => options[name] !== undefined).map((name) => [name, options[name]])
  return Object.fromEntries(given) as ProtectionOptions
}

/** Every header that a route reads a key from, or a number. */
function namingHeaders(settings: GatewaySettings): readonly string[] {
  const keyHeaders = [settings, ...settings.routes].map(({ header = settings.header }) =>
    (header ?? 'Idempotency-Key').toLowerCase(),
  )
  return settings.sessions ? [...keyHeaders, ...sessionHeaders] : keyHeaders
}

/** What no route sets for itself. */
function forAll(settings: GatewaySettings): Pick<HttpOptions<ProxiedCall>, 'tenant' | 'sessions'> {
  const { sessions } = settings
  return { ...tenantOption(settings), ...(sessions && { sessions }) }
}

function routesOf(once: Once, settings: GatewaySettings): RouteProtection[] {
  return settings.routes.map((route, at) => {
    const { path, methods, protect = true } = route
    // A route that says how a query is compared has not said how a body is.
    const fingerprint = { ...settings.fingerprint, ...route.fingerprint }
    const options = { ...protectionOf(settings), ...protectionOf(route), fingerprint, ...forAll(settings) }
    try {
      const protection = protect
        ? createProtection(once, { ...options, methods: methods ?? settings.methods })
        : undefined
      return { path, methods, protection }
    } catch (error) {
      if (!(error instanceof OnceError)) throw error
      throw invalidArgument(error.message.replace(/^idempotency: /, `gateway: routes[${at}]: `))
    }
  })
}

const serverOptions = {
  // Whatever the process was started with: a request that two parsers read in two ways is refused.
  insecureHTTPParser: false,
  // Longer than the 60 s of the usual load balancer: the side that would send next must close first.
  keepAliveTimeout: 65_000,
} as const

function refuseOverload({ profile, log }: GatewaySettings, req: IncomingMessage, res: ServerResponse): void {
  res.shouldKeepAlive = false
  req.resume()
  sendAnswer(res, gatewayProblem(gatewayProblems.overloaded, { profile }))
  const { path } = splitTarget(req.url ?? '')
  log?.({ method: req.method ?? '', path, status: res.statusCode, result: 'refused', durationMs: 0 })
}

function refuseTunnel(socket: Socket): void {
  const { status, headers, body } = gatewayProblem(gatewayProblems.notCarried)
  const lines = [...headers, ['Content-Length', body.length], ['Connection', 'close']].map((line) => line.join(': '))
  socket.on('error', () => {})
  socket.resume()
  const text = `HTTP/1.1 ${status} Not Implemented\r\n${lines.join('\r\n')}\r\n\r\n${Buffer.from(body).toString()}`
  // The server does not track this connection any more. A client could keep it open, also when the program wants to end.
  socket.end(text, () => socket.destroy())
}

async function listen(server: Server, { host, port }: GatewaySettings['listen']): Promise<string> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, host, () => {
      server.off('error', reject)
      resolve()
    })
  })
  const { address, port: bound, family } = server.address() as AddressInfo
  return `http://${family === 'IPv6' ? `[${address}]` : address}:${bound}`
}

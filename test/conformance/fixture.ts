// The application of the cases, on a neutral picture of a request and a response: what stands in front of the middleware
// (authentication, limiter), the routes behind it, gates, and the sleeps that the runner moves the clock by. No framework.
import type { Clock } from '../../src/core/clock.ts'
import type { Ledger } from './ledger.ts'
import { type FixtureRequest, type FixtureResponse, json } from './picture.ts'
import { routes } from './routes.ts'

/** What stands before the middleware says: an answer, or headers for whatever answer there will be. */
export interface Front {
  readonly headers: readonly (readonly [name: string, value: string])[]
  readonly answer?: FixtureResponse
}

export interface Fixture {
  readonly clock: Clock
  readonly ledger: Ledger
  readonly settings: FixtureSettings
  readonly limiter: Limiter
  /** Tenants whose permission was taken away. */
  readonly revoked: Set<string>
  /** Names that were deleted, and what people are called. */
  readonly deleted: Set<string>
  readonly people: Map<string, string>
  nextSequence(): number
  gate(name: string): { readonly opened: Promise<void>; open(): void }
  openAllGates(): void
  /** By the clock of the world; ends early when `signal` aborts. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>
  /** In how many ms the first sleeping handler wakes. */
  nextWakeMs(): number | undefined
  front(method: string, path: string, authorization: string | undefined): Front
  handle(request: FixtureRequest): Promise<FixtureResponse>
  scopeOf(path: string, authorization: string | undefined): string | undefined
}

export interface FixtureSettings {
  readonly scope: 'tenant' | 'credential'
  readonly compression: 'inside' | 'outside' | 'none'
  readonly limiterOrder: 'limiter-first' | 'replay-first'
  /** Called by the routes that die; absent where nothing may die. */
  readonly crash?: () => never
  /** Writes an effect with the transaction of the store. */
  readonly commitWith?: (tx: unknown, tag: string) => Promise<void>
}

export const defaultSettings: FixtureSettings = { scope: 'tenant', compression: 'none', limiterOrder: 'limiter-first' }

/** Taken out of the query before the middleware sees it, so that they are no part of the fingerprint. */
export const knobNames: readonly string[] = ['ms', 'fail', 'failAt', 'chunks', 'bytes', 'n', 'status']

export function createFixture(clock: Clock, ledger: Ledger, settings: FixtureSettings): Fixture {
  const gates = new Map<string, { opened: Promise<void>; open(): void }>()
  const sleepers = new Set<{ readonly dueMs: number }>()
  let sequence = 0
  const fixture: Fixture = {
    clock,
    ledger,
    settings,
    limiter: createLimiter(clock),
    revoked: new Set(),
    deleted: new Set(),
    people: new Map(),
    nextSequence: () => ++sequence,
    gate(name) {
      const { promise, resolve } = Promise.withResolvers<void>()
      const gate = gates.get(name) ?? { opened: promise, open: resolve }
      gates.set(name, gate)
      return gate
    },
    openAllGates: () => gates.forEach((gate) => gate.open()),
    sleep(ms, signal) {
      return new Promise((resolve) => {
        const sleeper = { dueMs: clock.elapsed() + ms }
        const wake = (): void => {
          sleepers.delete(sleeper)
          cancel()
          resolve()
        }
        sleepers.add(sleeper)
        const cancel = clock.schedule(wake, ms)
        signal?.addEventListener('abort', wake, { once: true })
      })
    },
    nextWakeMs() {
      if (sleepers.size === 0) return undefined
      return Math.max(0, Math.min(...Array.from(sleepers, (each) => each.dueMs)) - clock.elapsed())
    },
    front: (method, path, authorization) => frontOf(fixture, method, path, authorization),
    handle: (request) => handle(fixture, request),
    scopeOf(path, authorization) {
      const credential = credentialIn(authorization)
      if (path === '/anonymous' || credential === undefined) return undefined
      return settings.scope === 'credential' ? credential : tenantOf(credential)
    },
  }
  return fixture
}

/** A budget for each window of a minute. */
export interface Limiter {
  readonly resetSeconds: number
  left: number
  /** Counts one request; undefined when it may pass. */
  take(): FixtureResponse | undefined
  /** The RateLimit field of this moment. */
  field(): readonly [name: string, value: string]
}

function createLimiter(clock: Clock): Limiter {
  const windowMs = 60_000
  const limiter: Limiter = {
    left: 100,
    get resetSeconds() {
      return Math.ceil((windowMs - (clock.elapsed() % windowMs)) / 1_000)
    },
    field: () => ['RateLimit', `"default";r=${limiter.left};t=${limiter.resetSeconds}`],
    take() {
      if (limiter.left > 0) {
        limiter.left--
        return undefined
      }
      return json(429, { error: 'too many requests' }, [['Retry-After', `${limiter.resetSeconds}`]])
    },
  }
  return limiter
}

function frontOf(fixture: Fixture, method: string, path: string, authorization: string | undefined): Front {
  // The rules are public, and /anonymous has no principal.
  if (path.startsWith('/.well-known/') || path === '/anonymous') return { headers: [] }
  const credential = credentialIn(authorization)
  if (credential === undefined) {
    return { headers: [], answer: json(401, { error: 'who are you' }, [['WWW-Authenticate', 'Bearer']]) }
  }
  if (fixture.revoked.has(tenantOf(credential))) return { headers: [], answer: json(403, { error: 'not allowed' }) }
  if (method !== 'POST' || path !== '/limited' || fixture.settings.limiterOrder !== 'limiter-first') {
    return { headers: [] }
  }
  const answer = fixture.limiter.take()
  return answer ? { headers: [fixture.limiter.field()], answer } : { headers: [fixture.limiter.field()] }
}

async function handle(fixture: Fixture, request: FixtureRequest): Promise<FixtureResponse> {
  const [, name = '', ...rest] = request.path.split('/')
  const candidates = [`${request.method} ${request.path}`, `${request.method} /${name}/*`]
  const route = candidates.map((each) => routes[each]).find((each) => each !== undefined)
  return route ? route(request, fixture, rest.join('/')) : json(404, { error: `no route ${request.path}` })
}

function credentialIn(authorization: string | undefined): string | undefined {
  return /^Bearer (\S+)$/.exec(authorization ?? '')?.[1]
}

function tenantOf(credential: string): string {
  return credential.split('-', 1)[0]!
}

// Sessions: the idempotent receiver for a busy client. The client registers, numbers its requests, and acknowledges the answers that it
// has. The server keeps an answer until it is acknowledged, so what it remembers of a client is bounded by the window, and not by how many
// requests the client ever sent. Invariants: each (client, epoch, sequence) has its effect once, in its order of rules; a session that is
// not known is refused and never made up.

import { createCalls } from '../core/call.ts'
import type { Op, Result, RunContext } from '../core/call.ts'
import type { Clock, Random } from '../core/clock.ts'
import { pausesMs } from '../core/backoff.ts'
import { invalidArgument } from '../core/errors.ts'
import { key, newId } from '../core/key.ts'
import { runCall, transactionCall } from '../core/once.ts'
import type { TxOf } from '../core/once.ts'
import {
  checkGiven,
  checkOptions,
  nonNegativeMs,
  optional,
  positiveInteger,
  positiveMs,
  withMethods,
} from '../core/options.ts'
import type { Rule } from '../core/options.ts'
import type { Codec } from '../core/outcome.ts'
import { readOnceOptions } from '../core/settings.ts'
import type { OnceOptions } from '../core/settings.ts'
import type { Store, Transactional } from '../core/store.ts'
import type { Storable, Stored, ValueKind } from '../core/stored.ts'
import { callStore } from '../core/timed-call.ts'
import { sessionsOf } from './sessions/by-hand.ts'
import type { SessionsByHand } from './sessions/by-hand.ts'
import type { SessionFilter, SessionInFull, ShownSession } from './sessions/ground.ts'
import { groundOf, listedOn } from './sessions/grounds.ts'
import type { NumberedRequest, AskedSession } from './sessions/rules.ts'
import { timedGround } from './sessions/timed-ground.ts'

export type { Op, Result } from '../core/call.ts'
export type { ClosedByHand, ScopedSessionInFull, SessionsByHand } from './sessions/by-hand.ts'
export type {
  ScopedFilter,
  ScopedSession,
  SessionFilter,
  SessionInFull,
  SessionName,
  ShownSession,
} from './sessions/ground.ts'

export interface SessionsOptions<S extends Store = Store> {
  /** postgres, mysql, sqlite, redis, redis-postgres or memory. Sessions keep tables of their own beside its entries. */
  readonly store: S
  /** Whose clients these are: service, tenant. */
  readonly scope: string
  /** How long a session lives without a call of its client. 24 hours unless given. */
  readonly leaseMs?: number
  /** How long an ended session is still shown to people. A late request is refused with and without it. 7 days unless given. */
  readonly tombstoneMs?: number
  /** How many requests of a client may be in flight or unacknowledged. 1 to 10,000, 64 unless given. */
  readonly window?: number
  /** Sequence numbers must follow each other: one that leaves a gap is refused as GAP. Not unless given. */
  readonly strict?: boolean
  /** How long one attempt keeps others away from its number, on a store without transactions. A heartbeat extends it. 30 s unless given. */
  readonly attemptLeaseMs?: number
  /** The deadline of one attempt. 20 leases of an attempt unless given. */
  readonly attemptMs?: number
  /** How long a duplicate waits for the running effect before it gets IN_FLIGHT. 5 s unless given. */
  readonly waitMs?: number
  /** The time limit of each call to the store. 5 s unless given. */
  readonly storeTimeoutMs?: number
  readonly codec?: Codec
  readonly clock?: Clock
  readonly random?: Random
}

/** What a client gets by registering, and sends with every request. */
export interface ClientSession {
  readonly session: string
  /** Grows with every registration of the client. It is no count: the next one is anything above it. */
  readonly epoch: number
}

export interface RegisteredSession extends ClientSession {
  readonly window: number
  readonly leaseMs: number
}

export interface SessionRequest extends ClientSession {
  /** 1 for the first request of an epoch. A number stands for one request for good, whatever became of it. */
  readonly sequence: number
  /** The client has the answers of this number and of all below it, and will never ask for them again. 0 unless given. */
  readonly acknowledged?: number
  /** What is asked: bytes, a string or any JSON value. The same number with another fingerprint is a MISMATCH. */
  readonly fingerprint?: unknown
}

/** What `createSessions` gives. `Tx` is what effects write with, undefined on a store without transactions. */
export interface Sessions<Tx = unknown, Kind extends ValueKind = 'json'> {
  /** 'one-transaction' on a SQL store. Elsewhere 'claim-and-settle': a crash between effect and record runs the effect again. */
  readonly guarantee: 'one-transaction' | 'claim-and-settle'
  readonly store: Store
  /** Of the keys that effects run under. */
  readonly scope: string
  readonly window: number
  readonly leaseMs: number
  /** Creates the tables of sessions. Does nothing on a store without SQL. */
  migrate(): Promise<void>
  /** The same as SQL, for people who run their own migrations. */
  schema(): string
  /** Begins a session. Registering a client again raises its epoch, and whatever has an older one is FENCED. */
  register(clientId?: string): Promise<RegisteredSession>
  /** Run the effect of a request, or return its stored answer. */
  apply<T>(
    request: SessionRequest,
    effect: ((tx: Tx, op: Op) => T | Promise<T>) & Storable<T, Kind>,
  ): Promise<Result<Stored<T, Kind>>>
  /** Keeps the session of an idle client. Every request does, too. */
  keepAlive(session: ClientSession): Promise<void>
  /** Ends the session: its answers are let go, and what is still in flight is not committed. */
  close(session: ClientSession): Promise<void>
  show(sessionId: string): Promise<SessionInFull | undefined>
  list(filter?: SessionFilter): Promise<readonly ShownSession[]>
  /** Removes what ended sessions left behind, up to `limit` of them. `register` does it from time to time. */
  sweep(options?: { readonly limit?: number }): Promise<number>
}

/** A key is client, epoch and sequence, with 16 digits each and two slashes, in 255 bytes. */
const clientBytesMax = 200
// A window is memory per client and a bound of the work of one call. TCP and HTTP/2 are content with far less than this.
const windowMax = 10_000

const sequenceNumber: Rule = (value) =>
  Number.isSafeInteger(value) && (value as number) > 0 ? undefined : `an integer from 1 to ${Number.MAX_SAFE_INTEGER}`

const optionRules: Readonly<Record<keyof SessionsOptions, Rule>> = {
  store: withMethods('claim', 'extend', 'settle', 'release'),
  scope: () => undefined, // checked as part of a key
  leaseMs: optional(positiveMs),
  tombstoneMs: optional(nonNegativeMs),
  window: optional((value) =>
    positiveInteger(value) === undefined && (value as number) <= windowMax
      ? undefined
      : `an integer from 1 to ${windowMax}`,
  ),
  strict: optional((value) => (typeof value === 'boolean' ? undefined : 'true or false')),
  attemptLeaseMs: optional(positiveMs),
  attemptMs: optional(positiveMs),
  waitMs: optional(nonNegativeMs),
  storeTimeoutMs: optional(positiveMs),
  codec: optional(withMethods('encode', 'decode')),
  clock: optional(withMethods('now', 'elapsed', 'schedule')),
  random: optional(withMethods('uuid', 'fraction', 'bytes')),
}

const sessionRules: Readonly<Record<keyof RegisteredSession, Rule>> = {
  session: () => undefined, // checked by clientOf
  epoch: sequenceNumber,
  // What `register` returned may be given as it is.
  window: () => undefined,
  leaseMs: () => undefined,
}

const requestRules: Readonly<Record<keyof (SessionRequest & RegisteredSession), Rule>> = {
  ...sessionRules,
  sequence: sequenceNumber,
  acknowledged: optional((value) =>
    Number.isSafeInteger(value) && (value as number) >= 0 ? undefined : 'an integer from 0 to the sequence - 1',
  ),
  fingerprint: () => undefined,
}

const dayMs = 86_400_000
const sweptAtOnce = 1_000

/**
 * Sessions on a store: a client that numbers its requests and acknowledges the answers costs the server a window of rows, and not a row
 * for every request.
 *
 * @example
 * import pg from 'pg'
 * import { postgresStore } from 'onceonly/postgres'
 * import { createSessions } from 'onceonly/sessions'
 *
 * const sessions = createSessions({ store: postgresStore({ pool: new pg.Pool() }), scope: 'tills' })
 * await sessions.migrate()
 * const { session, epoch } = await sessions.register('till-7')
 * const request = { session, epoch, sequence: 1, acknowledged: 0, fingerprint: { cents: 500 } }
 * const { value } = await sessions.apply(request, async (tx) => {
 *   await tx.query('insert into sales (cents) values (500)')
 *   return { receipt: 'r1' }
 * })
 */
export function createSessions<S extends Store>(
  options: SessionsOptions<S> & { readonly codec: Codec },
): Sessions<SessionTxOf<S>, 'codec'>
export function createSessions<S extends Store>(options: SessionsOptions<S>): Sessions<SessionTxOf<S>>
export function createSessions(options: SessionsOptions): unknown {
  checkOptions('createSessions', options, optionRules)
  const { store, leaseMs = dayMs, tombstoneMs = 7 * dayMs, window = 64, strict = false } = options
  const asOnce = onceOptions(options)
  const { settings, clock, random } = readOnceOptions(asOnce)
  const scope = key(`${options.scope}/sessions`, 'any').scope
  const storeCalls = { clock, storeName: store.name, timeoutMs: settings.storeTimeoutMs }
  const kept = { scope, leaseMs, tombstoneMs, window, strict }
  const ground = timedGround(groundOf(store, kept, { clock, random }), storeCalls)
  const context: RunContext = {
    store,
    clock,
    random,
    storeCalls,
    background: (work) => void work.catch(() => {}),
    closing: new AbortController().signal,
  }
  const calls = createCalls(asOnce, settings, context)
  let sweepAfterMs = clock.elapsed() + pausesMs.sessionSweep
  const sweepSometimes = (): void => {
    if (clock.elapsed() < sweepAfterMs) return
    sweepAfterMs = clock.elapsed() + pausesMs.sessionSweep
    context.background(ground.sweep(sweptAtOnce))
  }
  const sessions: Sessions<never, 'codec'> = {
    guarantee: ground.guarantee,
    store,
    scope,
    window,
    leaseMs,
    migrate: () => ground.migrate(),
    schema: () => (ground.schema.length > 0 ? `${ground.schema.join(';\n\n')};\n` : ''),
    async register(clientId = newId(clock, random)) {
      const client = clientOf('sessions.register', clientId)
      sweepSometimes()
      const { epoch } = await ground.register(client)
      return { session: client, epoch, window, leaseMs }
    },
    async apply(request, effect) {
      const asked = readRequest(request)
      const { client, epoch, sequence } = asked
      const subject = { scope, id: `${client}/${epoch}/${sequence}` }
      const call = calls.read('sessions.apply', subject, effect, { fingerprint: request.fingerprint })
      const place = ground.storeFor(asked)
      const own = { ...calls, context: { ...context, store: place } }
      const run = effect as (tx: unknown, op: Op) => never
      if (ground.guarantee === 'one-transaction') {
        return transactionCall(own, call, place as Store & Transactional<unknown>, run)
      }
      return runCall(own, call, (op) => run(undefined, op))
    },
    keepAlive: async (session) => ground.keepAlive(readSession('sessions.keepAlive', session)),
    close: async (session) => ground.close(readSession('sessions.close', session)),
    show: async (sessionId) => ground.show(clientOf('sessions.show', sessionId)),
    async list({ after, ...limit } = {}) {
      const from = after === undefined ? {} : { after: { scope, session: after } }
      const list = (): ReturnType<typeof listedOn> => listedOn(store, { scope, ...from, ...limit })
      const found = await callStore(storeCalls, 'inspect', undefined, list)
      return found.map(({ scope: _scope, ...session }) => session)
    },
    sweep: async ({ limit = sweptAtOnce } = {}) => ground.sweep(limit),
  }
  return sessions
}

/**
 * The sessions of a store, for tools: those of every service, looked at and closed by a person.
 *
 * @example
 * import { sessionsByHand } from 'onceonly/sessions'
 * import { sqliteStore } from 'onceonly/sqlite'
 *
 * const sessions = sessionsByHand(sqliteStore({ path: 'tills.db' }))
 * for (const { scope, session, floor, last } of await sessions.list()) console.log(scope, session, floor, last)
 */
export function sessionsByHand(store: Store): SessionsByHand {
  return sessionsOf(store)
}

/** What the effects of sessions on this store write with. */
export type SessionTxOf<S extends Store> = [TxOf<S>] extends [never] ? undefined : TxOf<S>

function onceOptions(options: SessionsOptions): OnceOptions {
  const { store, scope, attemptLeaseMs, attemptMs, waitMs, storeTimeoutMs, codec, clock, random } = options
  return {
    store,
    scope,
    ...(attemptLeaseMs !== undefined && { leaseMs: attemptLeaseMs }),
    ...(attemptMs !== undefined && { attemptMs }),
    ...(waitMs !== undefined && { waitMs }),
    ...(storeTimeoutMs !== undefined && { storeTimeoutMs }),
    ...(codec && { codec }),
    ...(clock && { clock }),
    ...(random && { random }),
  }
}

function clientOf(what: string, id: unknown): string {
  if (typeof id !== 'string')
    throw invalidArgument(`${what}: expected the id of a client to be a string, got ${typeof id}`)
  if (id.length > clientBytesMax || Buffer.byteLength(id) > clientBytesMax) {
    throw invalidArgument(
      `${what}: expected the id of a client to be 1 to ${clientBytesMax} bytes of UTF-8, got ${Buffer.byteLength(id)}`,
    )
  }
  return key('any', id).id
}

function readSession(what: string, session: ClientSession): AskedSession {
  checkGiven(what, session, sessionRules)
  return { client: clientOf(what, session.session), epoch: needed(what, 'epoch', session.epoch) }
}

function readRequest(request: SessionRequest): NumberedRequest {
  const what = 'sessions.apply'
  checkGiven(what, request, requestRules)
  const sequence = needed(what, 'sequence', request.sequence)
  const acknowledged = request.acknowledged ?? 0
  if (acknowledged >= sequence) {
    throw invalidArgument(
      `${what}: expected acknowledged to be below sequence ${sequence}, got ${acknowledged}. A request whose answer the client has is not sent again.`,
    )
  }
  return {
    client: clientOf(what, request.session),
    epoch: needed(what, 'epoch', request.epoch),
    sequence,
    acknowledged,
  }
}

function needed(what: string, name: string, value: number | undefined): number {
  if (value === undefined)
    throw invalidArgument(`${what}: expected ${name} to be ${sequenceNumber(value)}, got undefined`)
  return value
}

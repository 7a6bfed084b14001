// A client that numbers its requests, for a server with sessions. It is the client of client.ts on keys that are numbers
// (numbered-keys.ts): attempts, retries, budget, `settled` and `resume` are the same. What is its own: the headers of a number, the window,
// and the end of a session, after which nothing is sent until the caller has decided to register again.

import { invalidArgument, OnceError } from '../../core/errors.ts'
import type { ErrorCode } from '../../core/errors.ts'
import type { Client, ClientResponse, ClientResumed, FetchOptions, PendingOperation } from '../client.ts'
import type { KeyStore } from '../pending.ts'
import { memoryKeys } from './memory-keys.ts'
import { epochOf, readNumbers, sequenceOf } from './number-records.ts'
import type { ServerSession } from './number-records.ts'
import {
  acknowledged,
  beginSession,
  createNumbers,
  endOf,
  endSession,
  inOrder,
  leaveSession,
  liveSession,
  numberedKeys,
  take,
} from './numbered-keys.ts'
import type { Numbers } from './numbered-keys.ts'
import { readSettings } from './settings.ts'
import type { ClientOptions, RetryOptions } from './settings.ts'

export interface SessionClientOptions extends Pick<
  ClientOptions,
  'fetch' | 'budget' | 'headers' | 'onAttempt' | 'bodyBytesMax' | 'answerBytesMax' | 'clock' | 'random'
> {
  /** The server. Paths are relative to it. */
  readonly url: string | URL
  /** The name that the client registers under, one per process or tab: 1 to 100 characters of ASCII without blanks, `"` and `\`. */
  readonly client: string
  /** Where numbers, requests and answers are kept. No other client may use these keys. */
  readonly keys: KeyStore
  readonly retry?: Omit<RetryOptions, 'horizonMs'>
}

export interface SessionClient {
  /** The session on record, of this process or of one before it. */
  session(): Promise<ServerSession | undefined>
  /** Begins a new session. Whatever is not settled belongs to the old one for good: its outcome is unknown unless its answer is kept. */
  register(): Promise<ServerSession>
  /** Sends a request under a number of its own, and again until there is an answer. Waits for room in the window. */
  fetch(path: string | URL, init?: RequestInit, options?: FetchOptions): Promise<ClientResponse>
  /** What was begun and not settled. 'expired': its session has ended, so a person must look. */
  pending(): Promise<readonly PendingOperation[]>
  /** Finishes what is pending under its own numbers. `use` is called with each answer, which is settled when it resolves. */
  resume(use: (response: ClientResponse, pending: PendingOperation) => unknown): Promise<ClientResumed>
  /** Drops an operation whose outcome a person has looked up. */
  forget(operation: string): Promise<void>
  /** Keeps the session of a client that has nothing to send. Every request does, too. */
  renew(): Promise<void>
  /** Ends the session at the server. What is not settled has an unknown outcome from then on. */
  close(): Promise<void>
}

const sessionsPath = '/.well-known/idempotency/sessions'
const sessionHeader = 'Idempotency-Session'

const problems: ReadonlyMap<unknown, ErrorCode> = new Map(
  Object.entries({
    'idempotency-session-expired': 'SESSION_EXPIRED',
    'idempotency-session-fenced': 'FENCED',
    'idempotency-session-forgotten': 'FORGOTTEN',
    'idempotency-sequence-reused': 'MISMATCH',
    'idempotency-window-exceeded': 'WINDOW_EXCEEDED',
    'idempotency-sequence-gap': 'GAP',
  } as const),
)

/** Nothing more can be said under the session. */
const isEnd = (code: ErrorCode | undefined): code is ErrorCode => code === 'SESSION_EXPIRED' || code === 'FENCED'

/** Said of a number that is not settled here: the numbers on record are older than what the server has seen, and would be used twice. */
const isCollision = (code: ErrorCode | undefined): code is ErrorCode => code === 'MISMATCH' || code === 'FORGOTTEN'

export function sessionClientOn(
  createClient: (options: ClientOptions) => Client,
  options: SessionClientOptions,
): SessionClient {
  const { url, client, ...given } = options
  if (!/^[!#-[\]-~]{1,100}$/.test(client) || !URL.canParse(`${url}`)) {
    throw invalidArgument(
      `createSessionClient: expected an absolute url, and client to be 1 to 100 characters of ASCII without blanks, " and \\, got ${String(url)} and ${client}`,
    )
  }
  const settings = readSettings(given)
  const numbers = createNumbers(client, settings)
  const retry = { ...given.retry, horizonMs: Infinity }
  const shared = { ...given, retry, onShortWindow: () => {} }
  const sending = createClient({
    ...shared,
    keys: numberedKeys(numbers),
    fetch: numberedFetch(numbers, settings.fetch),
    server: { header: sessionHeader, problems },
  })
  const asking = (): Client => createClient({ ...shared, keys: memoryKeys(), server: { problems } })
  return {
    ...sessionCalls(numbers, new URL(sessionsPath, url), asking),
    session: async () => (await readNumbers(client, settings.keys)).session,
    async fetch(path, init, fetchOptions) {
      await take(numbers)
      return sending.fetch(new URL(path, url), init, fetchOptions)
    },
    pending: () => sending.pending(),
    async resume(use) {
      await take(numbers)
      return sending.resume(use)
    },
    async forget(operation) {
      await take(numbers)
      await sending.forget(operation)
    },
  }
}

/**
 * What is asked at the path of sessions. Each call has a key of its own, so that a registration that arrives twice gives one epoch where the
 * server honours it. It needs no record: only what the server gave does.
 */
function sessionCalls(
  numbers: Numbers,
  url: URL,
  asking: () => Client,
): Pick<SessionClient, 'register' | 'renew' | 'close'> {
  async function call(address: string, init: RequestInit): Promise<Response> {
    const response = await asking().fetch(address, init)
    if (response.ok) return response
    throw invalidArgument(
      `createSessionClient: ${init.method} ${address} was answered with ${response.status}. Does the server offer sessions, and are the headers those of an account?`,
    )
  }
  async function callLive(method: 'PUT' | 'DELETE'): Promise<void> {
    await take(numbers)
    const { session, epoch } = liveSession(numbers)
    try {
      const headers = { 'Idempotency-Epoch': `${epoch}` }
      await call(`${url.href}/${encodeURIComponent(session)}`, { method, headers })
    } catch (error) {
      if (error instanceof OnceError && isEnd(error.code)) endSession(numbers, epoch, error.code)
      throw error
    }
  }
  return {
    register: () =>
      inOrder(numbers, async () => {
        await take(numbers, 'again')
        const body = JSON.stringify({ client: numbers.client })
        const headers = { 'Content-Type': 'application/json' }
        const registered = readSession(await (await call(url.href, { method: 'POST', body, headers })).json())
        await beginSession(numbers, registered)
        return registered
      }),
    renew: () => callLive('PUT'),
    async close() {
      try {
        await callLive('DELETE')
      } catch (error) {
        // It has ended already: by itself, or by a close whose reply was lost.
        if (!(error instanceof OnceError && error.code === 'SESSION_EXPIRED')) throw error
      }
      await leaveSession(numbers)
    },
  }
}

function readSession(said: unknown): ServerSession {
  const { session, epoch, window, leaseMs } = said as ServerSession
  if (typeof session === 'string' && epoch > 0 && window > 0) return { session, epoch, window, leaseMs }
  throw invalidArgument('client.register: the server answered without session, epoch and window.')
}

/** Puts the number into the headers, and hears when the session has ended. */
function numberedFetch(numbers: Numbers, fetch: NonNullable<ClientOptions['fetch']>): typeof fetch {
  return async (address, init) => {
    const headers = new Headers(init.headers)
    const key = headers.get(sessionHeader)!
    const [epoch, sequence] = [epochOf(key), sequenceOf(key)]
    const ended = endOf(numbers, epoch)
    if (ended) return endedAnswer(ended)
    headers.set(sessionHeader, `"${numbers.known.session!.session}"`)
    headers.set('Idempotency-Epoch', `${epoch}`)
    headers.set('Idempotency-Sequence', `${sequence}`)
    headers.set('Idempotency-Acknowledged', `${Math.min(acknowledged(numbers), sequence - 1)}`)
    const response = await fetch(address, { ...init, headers })
    const code = problems.get(await problemOf(response))
    if (isEnd(code) || (isCollision(code) && numbers.known.open.has(key))) endSession(numbers, epoch, code)
    return response
  }
}

/** What the server would say, without asking it. */
function endedAnswer(ended: ErrorCode): Response {
  const [code] = [...problems].find(([, each]) => each === ended)!
  return Response.json({ code, retryable: false, executed: 'unknown' }, { status: 409 })
}

async function problemOf(response: Response): Promise<unknown> {
  const { status, headers } = response
  if (status < 400 || status >= 500 || !headers.get('content-type')?.includes('json')) return undefined
  try {
    const { code, error } = (await response.clone().json()) as { code?: unknown; error?: { code?: unknown } }
    return error?.code ?? code
  } catch {
    return undefined
  }
}

// A `fetch` that keeps one key for one intention. The key and the request are durable before the first attempt, every attempt sends
// the same bytes with the same key, and the record leaves only when the caller has used the answer. So a process that dies anywhere
// in between goes on with the same key, and a server that honours keys runs the effect once.
//
// No Node module is imported here: browsers, Bun and Deno use it as it is. Key stores for Node are in node.ts.
//
// Decisions, and what they cost:
// - Answers are kept with the key until the caller has used them, so that a crash between answer and use needs no server, and two
//   tabs see one answer. Costs: a second durable write per operation, and bodies are read whole (up to answerBytesMax).
// - `await using` settles at the end of the block, also when the block throws: JavaScript does not tell. Code that uses the response
//   and can fail calls `settled()` itself.
// - There is no hedging (a second request before the first has failed): it doubles the load of a slow server and gains nothing, as
//   the second request with the same key waits for the first.

import { invalidArgument, OnceError } from '../core/errors.ts'
import { ask } from './client/asking.ts'
import type { AskedBy } from './client/asking.ts'
import { serialise, unaborted } from './client/request.ts'
import type { SerialisedRequest } from './client/request.ts'
import { readSettings } from './client/settings.ts'
import type { ClientOptions, ClientSettings } from './client/settings.ts'
import { sessionClientOn } from './client/session-client.ts'
import type { SessionClient, SessionClientOptions } from './client/session-client.ts'
import { createReadWindow } from './client/window.ts'
import { isSameRequest, stateOf } from './pending.ts'
import type { KeyStore, PendingRecord, PendingState } from './pending.ts'

export { OnceError } from '../core/errors.ts'
export { retryBudget } from './client/budget.ts'
export type { RetryBudget, RetryBudgetOptions } from './client/budget.ts'
export { browserKeys, indexedDbKeys, webStorageKeys } from './client/browser-keys.ts'
export { keyInBody } from './client/key-in-body.ts'
export type { ServerSession } from './client/number-records.ts'
export type { SessionClient, SessionClientOptions } from './client/session-client.ts'
export { keyOf } from './client/key-of.ts'
export { keyedFetch } from './client/keyed-fetch.ts'
export { memoryKeys } from './client/memory-keys.ts'
export { providers } from './client/providers.ts'
export type {
  AddedHeaders,
  AttemptReport,
  ClientOptions,
  RetryOptions,
  ServerRules,
  ShortWindow,
} from './client/settings.ts'
export { publishedWindow } from './client/window.ts'
export type { KeptAnswer, KeptRequest, KeyStore, PendingRecord, PendingState, TransactionalKeys } from './pending.ts'

/** A response whose key is kept until `settled` is called, or the `await using` block ends. */
export interface ClientResponse extends Response, AsyncDisposable {
  readonly operation: string
  readonly key: string
  /** The answer of an earlier attempt: the server or the key store had it already. */
  readonly replayed: boolean
  /** The caller has used the answer: its record is removed. */
  settled(): Promise<void>
}

/** An operation without a settled answer. */
export interface PendingOperation {
  readonly operation: string
  readonly key: string
  readonly method: string
  readonly url: string
  readonly createdAtMs: number
  /** 'waiting': no attempt was made. 'answered': the answer is kept. 'expired': past the server's window, so a person must look. */
  readonly state: PendingState
}

export interface ClientResumed {
  readonly settled: readonly string[]
  /** They stay pending. */
  readonly failed: readonly { readonly operation: string; readonly error: unknown }[]
}

export interface FetchOptions {
  /** The caller's name for what it intends, such as 'pay:order-42'. A new name with every call unless given. */
  readonly operation?: string
}

export interface PrepareOptions {
  readonly operation: string
  /** `keys.within(tx)` of `sqlKeys`: the record commits with the caller's transaction. The client's own unless given. */
  readonly keys?: Pick<KeyStore, 'open'>
}

export interface Client {
  /** Sends a request under the key of its operation, and again until there is an answer. */
  fetch(input: string | URL | Request, init?: RequestInit, options?: FetchOptions): Promise<ClientResponse>
  /** Keeps key and request, and sends nothing. `fetch` or `resume` sends it later. */
  prepare(input: string | URL | Request, init: RequestInit, options: PrepareOptions): Promise<PendingOperation>
  /** What was begun and not settled, here or in a process that is gone. */
  pending(): Promise<readonly PendingOperation[]>
  /** Finishes what is pending and not in the hands of this client. `use` is called with each answer, which is settled when it resolves. */
  resume(use: (response: ClientResponse, pending: PendingOperation) => unknown): Promise<ClientResumed>
  /** Drops an operation whose outcome a person has looked up. The next call has a new key. */
  forget(operation: string): Promise<void>
}

/**
 * A client whose `fetch` has one key per operation, kept before the first attempt and until the answer was used.
 *
 * @example
 * ```ts
 * import { createClient } from 'onceonly/client'
 * import { fileKeys } from 'onceonly/client/node'
 *
 * const client = createClient({ keys: fileKeys('./pending') })
 * const body = JSON.stringify({ order: 'order-42', cents: 500 })
 * await using response = await client.fetch('https://shop.example/payments', { method: 'POST', body }, { operation: 'pay:order-42' })
 * ```
 */
export function createClient(options: ClientOptions): Client {
  const settings = readSettings(options)
  const { keys, clock, server } = settings
  const readWindow = createReadWindow(settings)
  /** What this client has in its hands: an attempt, or an answer that is being used. */
  const held = new Set<{ readonly operation: string }>()
  const shown = shownBy(settings)

  async function send(opened: PendingRecord, isFresh: boolean, asked: AskedBy): Promise<ClientResponse> {
    const { operation, key, answer } = opened
    held.add(opened)
    try {
      const response = await ask({
        ...settings,
        readWindow,
        record: await begun(settings, opened),
        executed: isFresh ? 'no' : 'unknown',
        attempt: 0,
        startedMs: clock.elapsed(),
        asked,
      })
      const settled = async (): Promise<void> => {
        await keys.remove(operation, key)
        held.delete(opened)
      }
      const replayed = !!answer || response.headers.get(server.replayHeader) === 'true'
      return Object.assign(response, { operation, key, replayed, settled, [Symbol.asyncDispose]: settled })
    } catch (error) {
      held.delete(opened)
      throw error
    }
  }

  return {
    async fetch(input, init = {}, { operation } = {}) {
      const { record, isFresh, request } = await open(settings, keys, { input, init, operation, sentAtMs: clock.now() })
      return await send({ ...record }, isFresh, request)
    },
    async prepare(input, init, { operation, keys: others = keys }) {
      return shown((await open(settings, others, { input, init, operation })).record)
    },
    pending: async () => (await keys.list()).map(shown),
    async resume(use) {
      const settled: string[] = []
      const failed: { operation: string; error: unknown }[] = []
      for (const standing of await keys.list()) {
        const { operation } = standing
        if ([...held].some((each) => each.operation === operation)) continue
        const record = { ...standing }
        try {
          const response = await send(record, false, { secrets: [], init: {}, signal: unaborted() })
          await use(response, shown(record))
          await response.settled()
          settled.push(operation)
        } catch (error) {
          held.delete(record)
          failed.push({ operation, error })
        }
      }
      return { settled, failed }
    },
    async forget(operation) {
      const record = await keys.get(operation)
      if (record) await keys.remove(operation, record.key)
    },
  }
}

/**
 * A client that numbers its requests, for a busy client of a server with sessions: at most `window` of them are in flight or not settled, and
 * the server remembers no more. A session that has ended is begun anew by `register` only.
 *
 * @example
 * ```ts
 * import { createSessionClient } from 'onceonly/client'
 * import { fileKeys } from 'onceonly/client/node'
 *
 * const till = createSessionClient({ url: 'https://shop.example', client: 'till-7', keys: fileKeys('./till-7') })
 * if (!(await till.session())) await till.register()
 * const response = await till.fetch('/sales', { method: 'POST', body: '{"cents":500}' }, { operation: 'sale:1742' })
 * console.log(response.status)
 * await response.settled()
 * ```
 */
export function createSessionClient(options: SessionClientOptions): SessionClient {
  return sessionClientOn(createClient, options)
}

function shownBy({ retry, clock }: ClientSettings): (record: PendingRecord) => PendingOperation {
  return (record) => {
    const { operation, key, createdAtMs } = record
    const { method, url } = record.request
    return { operation, key, method, url, createdAtMs, state: stateOf(record, retry.horizonMs, clock.now()) }
  }
}

/** The moment of the first attempt is written before it is made: the window is counted from there. */
async function begun({ keys, clock }: ClientSettings, record: PendingRecord): Promise<PendingRecord> {
  if (record.sentAtMs !== undefined) return record
  const sent = { ...record, sentAtMs: clock.now() }
  await keys.save(sent)
  return sent
}

interface Opening {
  readonly input: string | URL | Request
  readonly init: RequestInit
  readonly operation: string | undefined
  readonly sentAtMs?: number | undefined
}

interface Opened {
  readonly request: SerialisedRequest
  readonly record: PendingRecord
  /** This call has opened it, so no attempt came before. */
  readonly isFresh: boolean
}

/** The record of the operation: its own, or the one that a call before has left. */
async function open(
  settings: ClientSettings,
  keys: Pick<KeyStore, 'open'>,
  { input, init, operation, sentAtMs }: Opening,
): Promise<Opened> {
  const { clock, newKey, server } = settings
  const request = await serialise(input, init, settings)
  if (operation !== undefined && !isName.test(operation))
    throw refusal('an operation of 1 to 255 characters', operation)
  const key = (request.givenKey || (await newKey(operation ?? ''))).replace(/^"(.*)"$/, '$1')
  if (!isKey.test(key)) throw refusal('a key of 1 to 255 ASCII characters, none of them blank or " , ; \\', key)
  const { windowMs } = server
  const fresh: PendingRecord = {
    operation: operation ?? key,
    key,
    request: server.place(request.kept, key),
    createdAtMs: clock.now(),
    sentAtMs,
    // As JSON has it.
    windowMs: windowMs < Infinity ? windowMs : undefined,
  }
  const standing = await keys.open(fresh, request.signal)
  if (!isSameRequest(standing.request, server.place(request.kept, standing.key))) {
    throw new OnceError('MISMATCH', {
      message: `${fresh.operation} is pending with another request (key ${standing.key}). Nothing was sent. client.resume() finishes that one.`,
    })
  }
  return { request, record: standing, isFresh: standing === fresh }
}

/** No control character, and no half of a surrogate pair: it must be the same in every key store. */
const isName = /^[^\p{Cc}\p{Cs}]{1,255}$/u

/** What every server takes, bare or in quotes. */
const isKey = /^[!#-+\--:<-[\]-~]{1,255}$/

function refusal(expected: string, got: unknown): OnceError {
  return invalidArgument(`client.fetch: expected ${expected}, got ${String(got)}. Nothing was sent.`)
}

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
import { keptResponse } from './client/answer.ts'
import { serialise } from './client/request.ts'
import type { SerialisedRequest } from './client/request.ts'
import { readSettings } from './client/settings.ts'
import type { ClientOptions, ClientSettings } from './client/settings.ts'
import { fromBase64, toBase64 } from './client/bytes.ts'
import { createWindows } from './client/window.ts'
import type { Windows } from './client/window.ts'
import { isSameRequest, stateOf } from './pending.ts'
import type { KeptRequest, PendingRecord, PendingState } from './pending.ts'

export { OnceError } from '../core/errors.ts'
export { retryBudget } from './client/budget.ts'
export type { RetryBudget, RetryBudgetOptions } from './client/budget.ts'
export { memoryKeys } from './client/memory-keys.ts'
export type {
  AddedHeaders,
  AttemptReport,
  ClientOptions,
  RetryOptions,
  ServerRules,
  ShortWindow,
} from './client/settings.ts'
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

export interface Resumed {
  readonly settled: readonly string[]
  /** They stay pending. */
  readonly failed: readonly { readonly operation: string; readonly error: unknown }[]
}

export interface FetchOptions {
  /** The caller's name for what it intends, such as 'pay:order-42'. A new name with every call unless given. */
  readonly operation?: string
}

export interface Client<Tx = never> {
  /** Sends a request under the key of its operation, and again until there is an answer. */
  fetch(input: string | URL | Request, init?: RequestInit, options?: FetchOptions): Promise<ClientResponse>
  /** What was begun and not settled, here or in a process that is gone. */
  pending(): Promise<readonly PendingOperation[]>
  /** Finishes what is pending and not in the hands of this client. `use` is called with each answer, which is settled when it resolves. */
  resume(use: (response: ClientResponse, pending: PendingOperation) => unknown): Promise<Resumed>
  /** Drops an operation whose outcome a person has looked up. The next call has a new key. */
  forget(operation: string): Promise<void>
  /** Keeps key and request in the caller's transaction. After the commit, `fetch` or `resume` sends it. */
  within(tx: Tx): {
    prepare(
      input: string | URL | Request,
      init: RequestInit,
      options: Required<FetchOptions>,
    ): Promise<PendingOperation>
  }
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
export function createClient<Tx = never>(options: ClientOptions<Tx>): Client<Tx> {
  const settings = readSettings(options)
  const { keys, clock, retry } = settings
  const windows = createWindows(settings)
  /** What this client has in its hands: an attempt, or an answer that is being used. */
  const held = new Map<string, number>()
  const hold = (operation: string, more: 1 | -1): void => {
    const count = (held.get(operation) ?? 0) + more
    if (count > 0) held.set(operation, count)
    else held.delete(operation)
  }
  const shown = (record: PendingRecord): PendingOperation => {
    const { operation, key, request, createdAtMs } = record
    const { method, url } = request
    return { operation, key, method, url, createdAtMs, state: stateOf(record, retry.horizonMs, clock.now()) }
  }

  async function send(record: PendingRecord, how: Sending): Promise<ClientResponse> {
    const { operation, key, answer } = record
    hold(operation, 1)
    try {
      const response = answer
        ? keptResponse(answer)
        : await ask({ settings, windows, record: await begun(settings, record), ...how })
      let isHeld = true
      const settled = async (): Promise<void> => {
        await keys.remove(operation, key)
        if (isHeld) hold(operation, -1)
        isHeld = false
      }
      const replayed = answer !== undefined || response.headers.get(settings.server.replayHeader) === 'true'
      return Object.assign(response, { operation, key, replayed, settled, [Symbol.asyncDispose]: settled })
    } catch (error) {
      hold(operation, -1)
      throw error
    }
  }

  return {
    async fetch(input, init = {}, { operation } = {}) {
      const request = await serialised(settings, input, init)
      const { record, isFresh } = await open(settings, windows, { request, operation, sentAtMs: clock.now(), keys })
      const { secrets, signal } = request
      return await send(record, { isFresh, secrets, signal, init: request.init })
    },
    pending: async () => (await keys.list()).map(shown),
    async resume(use) {
      const settled: string[] = []
      const failed: { operation: string; error: unknown }[] = []
      for (const record of await keys.list()) {
        const { operation } = record
        if (held.has(operation)) continue
        try {
          const response = await send(record, { isFresh: false, secrets: [], signal: undefined, init: {} })
          try {
            await use(response, shown(record))
            await response.settled()
          } catch (error) {
            hold(operation, -1)
            throw error
          }
          settled.push(operation)
        } catch (error) {
          failed.push({ operation, error })
        }
      }
      return { settled, failed }
    },
    async forget(operation) {
      const record = await keys.get(operation)
      if (record) await keys.remove(operation, record.key)
    },
    within(tx) {
      if (!keys.within) {
        throw new OnceError('UNSUPPORTED', {
          message:
            'client.within: these keys cannot be kept in a transaction. Use sqlKeys({ store }) of onceonly/client/node. Nothing was sent.',
        })
      }
      const inTransaction = keys.within(tx)
      return {
        async prepare(input, init, { operation }) {
          const request = await serialised(settings, input, init)
          const { record } = await open(settings, windows, {
            request,
            operation,
            sentAtMs: undefined,
            keys: inTransaction,
          })
          return shown(record)
        },
      }
    },
  }
}

interface Sending {
  readonly isFresh: boolean
  readonly secrets: SerialisedRequest['secrets']
  readonly init: RequestInit
  readonly signal: AbortSignal | undefined
}

/** The moment of the first attempt is written before it is made: the window is counted from there. */
async function begun({ keys, clock }: ClientSettings, record: PendingRecord): Promise<PendingRecord> {
  if (record.sentAtMs !== undefined) return record
  const sent = { ...record, sentAtMs: clock.now() }
  await keys.save(sent)
  return sent
}

async function serialised(
  { server, bodyBytesMax }: ClientSettings,
  input: string | URL | Request,
  init: RequestInit,
): Promise<SerialisedRequest> {
  const request = await serialise(input, init, { bodyBytesMax, keyHeader: server.header })
  const { method } = request.kept
  if (method === 'GET' || method === 'HEAD' || method === 'OPTIONS') {
    throw invalidArgument(
      `client.fetch: expected a method that changes something, got ${method}. It needs no key: use fetch. Nothing was sent.`,
    )
  }
  return request
}

interface Opening {
  readonly request: SerialisedRequest
  readonly operation: string | undefined
  readonly sentAtMs: number | undefined
  readonly keys: Pick<ClientSettings['keys'], 'open'>
}

/** The record of the operation: its own, or the one that a call before has left. */
async function open(
  settings: ClientSettings,
  windows: Windows,
  { request, operation, sentAtMs, keys }: Opening,
): Promise<{ readonly record: PendingRecord; readonly isFresh: boolean }> {
  const { clock, newKey, server } = settings
  if (operation !== undefined) checkOperation(operation)
  const key = checkedKey(request.givenKey ?? (await newKey(operation ?? '')))
  const windowMs = await windows.published(request.kept.url)
  const own: PendingRecord = {
    operation: operation ?? key,
    key,
    request: keyed(server.inBody, request.kept, key),
    createdAtMs: clock.now(),
    ...(sentAtMs !== undefined && { sentAtMs }),
    ...(windowMs !== undefined && { windowMs }),
  }
  const record = await keys.open(own)
  if (!isSameRequest(record.request, keyed(server.inBody, request.kept, record.key))) {
    throw new OnceError('MISMATCH', {
      message: `${own.operation} is pending with another request (${record.request.method} ${record.request.url}, key ${record.key}), and was asked for with ${own.request.method} ${own.request.url}. Nothing was sent. Give each intention its own name, or finish the pending one with client.resume.`,
    })
  }
  return { record, isFresh: record.key === key }
}

function keyed(
  inBody: ((body: string, key: string) => string) | undefined,
  request: KeptRequest,
  key: string,
): KeptRequest {
  if (!inBody) return request
  const text = new TextDecoder().decode(request.body === null ? new Uint8Array() : fromBase64(request.body))
  return { ...request, body: toBase64(new TextEncoder().encode(inBody(text, key))) }
}

// oxlint-disable-next-line no-control-regex
const controlCharacter = /[\u0000-\u001f\u007f-\u009f]/

function checkOperation(operation: unknown): void {
  const isName = typeof operation === 'string' && operation !== '' && operation.length <= 255
  if (isName && operation.isWellFormed() && !controlCharacter.test(operation)) return
  throw invalidArgument(
    `client.fetch: expected operation to be 1 to 255 characters without control characters, got ${JSON.stringify(operation)}`,
  )
}

/** What every server takes, bare or in quotes. */
function checkedKey(key: unknown): string {
  const bare = typeof key === 'string' ? key.replace(/^"([^"\\]*)"$/, '$1') : ''
  if (/^[!#-+\--:<-[\]-~]{1,255}$/.test(bare)) return bare
  throw invalidArgument(
    `client.fetch: expected a key of 1 to 255 visible ASCII characters without " , ; and \\, got ${JSON.stringify(key)}`,
  )
}

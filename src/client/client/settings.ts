// What a client was told, checked at the start and complete. The defaults are the table of the options, too: a name that is not
// there is refused, and so is a value of another type. That is all a browser loads for it.

import { idAt, plainClock, plainRandom } from '../../core/clock.ts'
import type { Clock, Random } from '../../core/clock.ts'
import { invalidArgument } from '../../core/errors.ts'
import type { ErrorCode } from '../../core/errors.ts'
import type { KeptRequest, KeyStore } from '../pending.ts'
import { processBudget } from './budget.ts'
import type { RetryBudget } from './budget.ts'

/** How a server wants its keys, and for how long it remembers them. The table `providers` has those of well-known servers. */
export interface ServerRules {
  /** 'Idempotency-Key' unless given. '' sends no header. */
  readonly header?: string
  /** `"key"` in double quotes, as the IETF draft has it. Bare unless given: most servers take quotes for a part of the key. */
  readonly quoted?: boolean
  /** Puts the key elsewhere into the request, before it is kept. `keyInBody` makes one. */
  readonly place?: (request: KeptRequest, key: string) => KeptRequest
  /** For how long the server remembers a key. A server that sends `Idempotency-Window` says so itself. */
  readonly windowMs?: number
  /** 'Idempotent-Replayed' unless given. */
  readonly replayHeader?: string
  /** What codes of its problem documents mean, besides those that every client knows. */
  readonly problems?: ReadonlyMap<unknown, ErrorCode>
  /** Where these rules are documented. */
  readonly source?: string
}

export interface RetryOptions {
  /** How long one attempt may take. 30 s unless given. */
  readonly attemptMs?: number
  /** How long one call tries. 2 minutes unless given. */
  readonly totalMs?: number
  /** How long after its first attempt an operation may still be retried, also after restarts. 24 h unless given. The server's window is a limit, too. */
  readonly horizonMs?: number
}

/** What a client adds to every attempt. */
export type AddedHeaders = Headers | Readonly<Record<string, string>>

/** What a client is doing, for a person who watches. */
export interface AttemptReport {
  readonly operation: string
  readonly key: string
  /** 1 for the first attempt of this call. */
  readonly attempt: number
  readonly state: 'sending' | 'waiting' | 'answered' | 'failed'
  /** Of `waiting`: when it will try again. */
  readonly retryInMs?: number
  /** Of `waiting` and `failed`: the last failure in words. */
  readonly why?: string
  /** Of `answered`. */
  readonly status?: number
}

/** The server forgets keys before the client stops retrying. */
export interface ShortWindow {
  readonly origin: string
  readonly windowMs: number
  readonly horizonMs: number
  readonly message: string
}

export interface ClientOptions {
  /** Where keys are kept from before the first attempt until the answer was used. */
  readonly keys: KeyStore
  /** The global `fetch` unless given. It must honour `signal`. */
  readonly fetch?: (input: string, init: RequestInit) => Promise<Response>
  readonly retry?: RetryOptions
  /** One for the whole process unless given. */
  readonly budget?: RetryBudget
  /** Headers of every attempt, such as credentials. They are asked for each time, and never written down. */
  readonly headers?: () => AddedHeaders | Promise<AddedHeaders>
  readonly server?: ServerRules
  /** Makes the key of a new operation: a UUIDv7 unless given. `keyOf` makes the same key for the same parts. */
  readonly newKey?: (operation: string) => string | Promise<string>
  readonly onAttempt?: (report: AttemptReport) => void
  /** Called once per server. Unless given, Node prints a process warning. */
  readonly onShortWindow?: (found: ShortWindow) => void
  /** A larger request is refused, as a retry must send the same bytes. 10 MiB unless given. */
  readonly bodyBytesMax?: number
  /** A response that turns out to be larger is passed on as it arrives, and is not kept. 1 MiB unless given. */
  readonly answerBytesMax?: number
  readonly clock?: Clock
  readonly random?: Omit<Random, 'uuid'>
}

export interface ClientSettings extends Required<ClientOptions> {
  readonly retry: Required<RetryOptions>
  readonly server: Required<ServerRules>
}

const retryDefaults: Required<RetryOptions> = { attemptMs: 30_000, totalMs: 120_000, horizonMs: 86_400_000 }

/** No window that is known is an endless one here: then only the horizon ends retries. */
const serverDefaults: Required<ServerRules> = {
  header: 'Idempotency-Key',
  quoted: false,
  place: (request) => request,
  windowMs: Infinity,
  replayHeader: 'Idempotent-Replayed',
  problems: new Map(),
  source: '',
}

export function readSettings(options: ClientOptions): ClientSettings {
  const settings: ClientSettings = merged('', options, {
    keys: {} as KeyStore,
    fetch: (input, init) => fetch(input, init),
    retry: retryDefaults,
    budget: processBudget,
    headers: () => ({}),
    server: serverDefaults,
    newKey: () => idAt(settings.clock, settings.random),
    onAttempt: () => {},
    onShortWindow: warn,
    bodyBytesMax: 10 * 2 ** 20,
    answerBytesMax: 2 ** 20,
    clock: plainClock,
    random: plainRandom,
  })
  if (!(settings.keys as KeyStore | null)?.open) throw invalidArgument('createClient: expected keys to be a key store')
  return {
    ...settings,
    retry: merged('retry.', settings.retry, retryDefaults),
    server: merged('server.', settings.server, serverDefaults),
    onAttempt: undisturbed(settings.onAttempt),
    onShortWindow: undisturbed(settings.onShortWindow),
  }
}

function merged<T extends object>(where: string, given: object, defaults: T): T {
  const result = { ...defaults } as Record<string, unknown>
  for (const [name, value] of Object.entries(given) as [string, number][]) {
    if ((value as unknown) === undefined) continue
    const type = typeof result[name]
    const isNumber = type === 'number'
    if (typeof value !== type || (isNumber && !(value > 0))) {
      const expected =
        name in result ? `a ${type}${isNumber ? ' above 0' : ''}` : `one of ${Object.keys(result).join(', ')}`
      throw invalidArgument(`createClient: expected ${where}${name} to be ${expected}, got ${JSON.stringify(value)}`)
    }
    result[name] = value
  }
  return result as T
}

/** A listener that throws must not end a payment: its error is the process's, and the call goes on. */
function undisturbed<Told>(listener: (told: Told) => void): (told: Told) => void {
  return (told) => {
    try {
      listener(told)
    } catch (error) {
      queueMicrotask(() => {
        throw error
      })
    }
  }
}

function warn({ message }: ShortWindow): void {
  const node = globalThis as { process?: { emitWarning?(message: string, type: string): void } }
  node.process?.emitWarning?.(message, 'OnceonlyWarning')
}

// What a client was told, checked at the start and complete.

import { newId, plainClock, systemRandom } from '../../core/clock.ts'
import type { Clock, Random } from '../../core/clock.ts'
import { aFunction, aString, optional, positiveInteger, positiveMs, withMethods } from '../../core/options.ts'
import { invalidArgument } from '../../core/errors.ts'
import type { Rule } from '../../core/options.ts'
import type { KeyStore, TransactionalKeys } from '../pending.ts'
import { processBudget } from './budget.ts'
import type { RetryBudget } from './budget.ts'

/** How a server wants its keys, and for how long it remembers them. The table `providers` has those of well-known servers. */
export interface ServerRules {
  /** 'Idempotency-Key' unless given. */
  readonly header?: string
  /** `"key"` in double quotes, as the IETF draft has it. Bare unless given: most servers take quotes for a part of the key. */
  readonly quoted?: boolean
  /** For servers that take the key in the body: returns the body with the key in it. No header is sent then. */
  readonly inBody?: (body: string, key: string) => string
  /** For how long the server remembers a key. A server that sends `Idempotency-Window` says so itself. */
  readonly windowMs?: number
  /** Where the server publishes its rules, such as '/.well-known/idempotency'. They are read once, before the first attempt. */
  readonly rules?: string
  /** 'Idempotent-Replayed' unless given. */
  readonly replayHeader?: string
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

export interface ClientOptions<Tx = never> {
  /** Where keys are kept from before the first attempt until the answer was used. */
  readonly keys: KeyStore | TransactionalKeys<Tx>
  /** The global `fetch` unless given. */
  readonly fetch?: (input: string, init: RequestInit) => Promise<Response>
  readonly retry?: RetryOptions
  /** One for the whole process unless given. */
  readonly budget?: RetryBudget
  /** Headers of every attempt, such as credentials. They are asked for each time, and never written down. */
  readonly headers?: () => AddedHeaders | Promise<AddedHeaders>
  readonly server?: ServerRules
  /** Makes the key of a new operation: a UUIDv7 unless given. `keyFrom` makes the same key for the same operation. */
  readonly newKey?: (operation: string) => string | Promise<string>
  readonly onAttempt?: (report: AttemptReport) => void
  /** Called once per server. Unless given, Node prints a process warning. */
  readonly onShortWindow?: (found: ShortWindow) => void
  /** A larger request is refused, as a retry must send the same bytes. 10 MiB unless given. */
  readonly bodyBytesMax?: number
  /** A larger response is passed on as it arrives, and is not kept. 1 MiB unless given. */
  readonly answerBytesMax?: number
  readonly clock?: Clock
  readonly random?: Random
}

export interface ClientSettings {
  readonly keys: KeyStore & { within?(tx: unknown): Pick<KeyStore, 'open'> }
  readonly fetch: (input: string, init: RequestInit) => Promise<Response>
  readonly retry: Required<RetryOptions>
  readonly budget: RetryBudget
  readonly headers: () => AddedHeaders | Promise<AddedHeaders>
  readonly server: ServerRules & { readonly header: string; readonly replayHeader: string }
  readonly newKey: (operation: string) => string | Promise<string>
  readonly report: (report: AttemptReport) => void
  readonly onShortWindow: (found: ShortWindow) => void
  readonly bodyBytesMax: number
  readonly answerBytesMax: number
  readonly clock: Clock
  readonly random: Random
}

const anObject: Rule = (value) => (typeof value === 'object' && value !== null ? undefined : 'an object')

const clientRules: Readonly<Record<string, Rule>> = {
  keys: withMethods('open', 'get', 'save', 'remove', 'list'),
  fetch: optional(aFunction),
  retry: optional(anObject),
  budget: optional(withMethods('request', 'retry')),
  headers: optional(aFunction),
  server: optional(anObject),
  newKey: optional(aFunction),
  onAttempt: optional(aFunction),
  onShortWindow: optional(aFunction),
  bodyBytesMax: optional(positiveInteger),
  answerBytesMax: optional(positiveInteger),
  clock: optional(withMethods('now', 'elapsed', 'schedule')),
  random: optional(withMethods('fraction', 'bytes')),
}

const retryRules: Readonly<Record<string, Rule>> = {
  attemptMs: optional(positiveMs),
  totalMs: optional(positiveMs),
  horizonMs: optional(positiveMs),
}

const serverRules: Readonly<Record<string, Rule>> = {
  header: optional(aString),
  quoted: optional((value) => (typeof value === 'boolean' ? undefined : 'true or false')),
  inBody: optional(aFunction),
  windowMs: optional(positiveMs),
  rules: optional(aString),
  replayHeader: optional(aString),
  // A row of `providers` says where its figures are from.
  source: optional(aString),
}

/** As `checkOptions` of core, in a fraction of its size: an unknown name is answered with all that are known. */
function check(what: string, given: object, rules: Readonly<Record<string, Rule>>): void {
  for (const name of Object.keys({ ...rules, ...given })) {
    const value = (given as Record<string, unknown>)[name]
    const expected = rules[name] ? rules[name](value) : `one of ${Object.keys(rules).join(', ')}`
    if (expected) throw invalidArgument(`createClient: expected ${what}${name} to be ${expected}, got ${String(value)}`)
  }
}

export function readSettings<Tx>(options: ClientOptions<Tx>): ClientSettings {
  check('', options, clientRules)
  const { retry = {}, server = {}, clock = plainClock, random = systemRandom } = options
  check('retry.', retry, retryRules)
  check('server.', server, serverRules)
  return {
    keys: options.keys as ClientSettings['keys'],
    fetch: options.fetch ?? ((input, init) => fetch(input, init)),
    retry: {
      attemptMs: retry.attemptMs ?? 30_000,
      totalMs: retry.totalMs ?? 120_000,
      horizonMs: retry.horizonMs ?? 86_400_000,
    },
    budget: options.budget ?? processBudget,
    headers: options.headers ?? (() => ({})),
    server: {
      ...server,
      header: server.header ?? 'Idempotency-Key',
      replayHeader: server.replayHeader ?? 'Idempotent-Replayed',
    },
    newKey: options.newKey ?? (() => newId(clock, random)),
    report: reporting(options.onAttempt),
    onShortWindow: reporting(options.onShortWindow ?? warn),
    bodyBytesMax: options.bodyBytesMax ?? 10 * 2 ** 20,
    answerBytesMax: options.answerBytesMax ?? 2 ** 20,
    clock,
    random,
  }
}

/** A listener that throws must not end a payment: its error is the process's, and the call goes on. */
function reporting<Told>(listener: ((told: Told) => void) | undefined): (told: Told) => void {
  return (told) => {
    try {
      listener?.(told)
    } catch (error) {
      queueMicrotask(() => {
        throw error
      })
    }
  }
}

function warn({ message }: ShortWindow): void {
  const node = globalThis as { process?: { emitWarning?(message: string, options: { type: string }): void } }
  node.process?.emitWarning?.(message, { type: 'OnceonlyWarning' })
}

// A fetch on a bad network: requests that never arrive, replies that are lost after the server did its work, answers that break
// off, requests that arrive twice, and delays. What happens to the n-th call follows from the seed and n alone.

import { sleep, systemClock } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { invalidArgument } from '../core/errors.ts'
import { checkOptions, nonNegativeMs, optional, withMethods } from '../core/options.ts'
import type { Rule } from '../core/options.ts'
import { seededRandom } from './seeded-random.ts'
import type { SeededRandom } from './seeded-random.ts'

/** The part of fetch that is used. A handler that takes a Request fits, too. */
export type FetchLike = (request: Request) => Response | Promise<Response>

export interface FaultyFetchOptions {
  /** The same seed gives the same faults. */
  readonly seed: number
  /** How likely it is, from 0 to 1, that a call meets this fault. A call meets one fault at the most, so together they are 1 at most. */
  readonly drop?: number
  /** The server has done its work, and its reply never reaches the caller. */
  readonly loseReply?: number
  /** The answer breaks off in the middle of its body. */
  readonly reset?: number
  /** The request arrives twice: at once, or once more when the server has answered the first. */
  readonly duplicate?: number
  readonly delay?: number
  /** The longest delay, before the request or before its answer. Default 100. */
  readonly delayMs?: number
  readonly clock?: Clock
}

export type NetworkFault = 'drop' | 'loseReply' | 'reset' | 'duplicate' | 'delay'

export interface FaultyFetch {
  (input: string | URL | Request, init?: RequestInit): Promise<Response>
  /** What happened to which call, in the order of the calls. */
  readonly faults: readonly { readonly call: number; readonly fault: NetworkFault; readonly request: string }[]
  /** No more faults from now on. */
  heal(): void
  /** Resolves when the server has answered everything that was sent, duplicates included. */
  idle(): Promise<void>
}

const faultNames = ['drop', 'loseReply', 'reset', 'duplicate', 'delay'] as const

const probability: Rule = (value) =>
  typeof value === 'number' && value >= 0 && value <= 1 ? undefined : 'a number from 0 to 1'

const seedRule: Rule = (value) => (Number.isSafeInteger(value) && (value as number) >= 0 ? undefined : 'a whole number')

/**
 * Returns a fetch that loses, repeats and delays requests and replies. The seed decides which, so a failing run can be repeated.
 *
 * @example
 * import { faultyFetch } from 'onceonly/testing'
 *
 * const bad = faultyFetch(fetch, { seed: 7, loseReply: 0.2, duplicate: 0.1 })
 * const response = await bad('http://localhost:3000/orders', { method: 'POST' })
 * console.log(response.status, bad.faults)
 */
export function faultyFetch(fetch: FetchLike, options: FaultyFetchOptions): FaultyFetch {
  checkOptions('faultyFetch', options, {
    seed: seedRule,
    ...Object.fromEntries(faultNames.map((name) => [name, optional(probability)])),
    delayMs: optional(nonNegativeMs),
    clock: optional(withMethods('now', 'elapsed', 'schedule')),
  })
  if (typeof fetch !== 'function') throw invalidArgument(`faultyFetch: expected a fetch, got ${typeof fetch}`)
  const sum = faultNames.reduce((total, name) => total + (options[name] ?? 0), 0)
  if (sum > 1 + 1e-9) throw invalidArgument(`faultyFetch: expected the faults to be 1 together at most, got ${sum}`)
  const faults: { call: number; fault: NetworkFault; request: string }[] = []
  const underWay = new Set<Promise<unknown>>()
  let calls = 0
  let healed = false

  const send = (request: Request): Promise<Response> => {
    const answer = (async () => fetch(request))()
    const tracked = answer.catch(() => {}).finally(() => underWay.delete(tracked))
    underWay.add(tracked)
    return answer
  }

  const faulty = async (input: string | URL | Request, init?: RequestInit): Promise<Response> => {
    const call = ++calls
    const random = seededRandom(options.seed).fork(call)
    const request = requestOf(input, init)
    const fault = healed ? undefined : faultOf(options, random)
    if (fault === undefined) return send(request)
    faults.push({ call, fault, request: `${request.method} ${new URL(request.url).pathname}` })
    return meet(fault, request, { send, random, clock: options.clock ?? systemClock, delayMs: options.delayMs ?? 100 })
  }
  return Object.assign(faulty, {
    faults,
    heal: () => void (healed = true),
    async idle() {
      while (underWay.size > 0) await Promise.all(underWay)
    },
  })
}

/** Relative addresses are taken as well: handlers in tests have no host. */
export function requestOf(input: string | URL | Request, init?: RequestInit): Request {
  return new Request(typeof input === 'string' ? new URL(input, 'http://localhost') : input, init)
}

function faultOf(options: FaultyFetchOptions, random: SeededRandom): NetworkFault | undefined {
  let left = random.fraction()
  return faultNames.find((name) => (left -= options[name] ?? 0) < 0)
}

interface Network {
  readonly send: FetchLike
  readonly random: SeededRandom
  readonly clock: Clock
  readonly delayMs: number
}

async function meet(fault: NetworkFault, request: Request, network: Network): Promise<Response> {
  const { send, random } = network
  switch (fault) {
    case 'drop':
      throw networkError('the request was lost before it arrived')
    case 'loseReply':
      await (await send(request)).arrayBuffer()
      throw networkError('the reply was lost')
    case 'reset':
      return brokenOff(await send(request))
    case 'duplicate':
      return twice(request, network)
    case 'delay': {
      const pause = (): Promise<void> => sleep(network.clock, random.fraction() * network.delayMs, request)
      if (random.chance(0.5)) await pause()
      request.signal.throwIfAborted()
      const answer = await send(request)
      await pause()
      return answer
    }
  }
}

/** The caller gets the answer to the request that was sent first. */
async function twice(request: Request, { send, random }: Network): Promise<Response> {
  const again = request.clone()
  const first = send(request) as Promise<Response>
  const duplicate = async (): Promise<void> => {
    const answer = await send(again)
    await answer.arrayBuffer()
  }
  const isLate = random.chance(0.5)
  if (!isLate) void duplicate().catch(() => {})
  const answer = await first
  if (isLate) void duplicate().catch(() => {})
  return answer
}

async function brokenOff(answer: Response): Promise<Response> {
  const bytes = new Uint8Array(await answer.arrayBuffer())
  if (bytes.length === 0) throw networkError('the connection was reset')
  let sent = false
  const body = new ReadableStream<Uint8Array>({
    pull(controller) {
      if (sent) return controller.error(networkError('the connection was reset'))
      sent = true
      controller.enqueue(bytes.subarray(0, Math.floor(bytes.length / 2)))
    },
  })
  return new Response(body, { status: answer.status, headers: answer.headers })
}

/** As Node's own fetch reports it. */
function networkError(why: string): TypeError {
  return new TypeError('fetch failed', { cause: Object.assign(new Error(why), { code: 'ECONNRESET' }) })
}

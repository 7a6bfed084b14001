// A payment server behind a script of faults, all on one manual clock: the real exchange on the memory store, and a ledger that
// dedupes nothing. What happens to the n-th request is the n-th word of the script; after its end the network is well.

import { createOnce } from '../../src/core/once.ts'
import { createClient, memoryKeys, retryBudget } from '../../src/client/client.ts'
import type { AttemptReport, Client, ClientOptions, ShortWindow } from '../../src/client/client.ts'
import { idempotency } from '../../src/http/fetch.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { manualClock } from '../../src/testing/manual-clock.ts'
import type { ManualClock } from '../../src/testing/manual-clock.ts'
import { seededRandom } from '../../src/testing/seeded-random.ts'

export type Fault =
  /** The request never arrives. */
  | 'drop'
  /** The server has done its work, and the reply is lost. */
  | 'lose-reply'
  /** No answer until the client gives up; the server has done its work. */
  | 'hang'
  /** The reply breaks off in its body. */
  | 'break-off'
  | 'well'
  /** Something in front of the server answers. */
  | Response

export interface Seen {
  readonly key: string | null
  readonly body: string
  readonly headers: Headers
}

export interface Shop {
  readonly clock: ManualClock
  /** What the server really did, in order. */
  readonly ledger: string[]
  /** Every request that left the client. */
  readonly seen: Seen[]
  readonly reports: AttemptReport[]
  readonly shortWindows: ShortWindow[]
  readonly script: Fault[]
  fetch(input: string, init: RequestInit): Promise<Response>
  client(options?: Partial<ClientOptions>): Client
  /** Moves the clock until the work has ended. */
  finish<T>(work: Promise<T>): Promise<T>
}

export const payments = 'https://shop.example/payments'

export function post(body: string): RequestInit {
  return { method: 'POST', headers: { 'content-type': 'application/json' }, body }
}

export function openShop(options: { readonly keepMs?: number; readonly handler?: () => Response } = {}): Shop {
  const clock = manualClock()
  const { keepMs = 86_400_000 } = options
  const once = createOnce({ store: memoryStore({ clock }), scope: 'shop', clock, keepMs, sweepEveryMs: false })
  const ledger: string[] = []
  const seen: Seen[] = []
  const reports: AttemptReport[] = []
  const shortWindows: ShortWindow[] = []
  const script: Fault[] = []
  const serve = idempotency(once, { tenant: 'shared' })(async (request) => {
    ledger.push(await request.text())
    return options.handler?.() ?? Response.json({ receipt: `r${ledger.length}` }, { status: 201 })
  })

  async function fetch(input: string, init: RequestInit): Promise<Response> {
    const request = new Request(input, init)
    const url = new URL(request.url)
    if (request.method === 'GET') return serve(request)
    const body = await request.clone().text()
    seen.push({ key: request.headers.get('idempotency-key'), body, headers: request.headers })
    const fault = script.shift() ?? 'well'
    if (fault instanceof Response) return fault
    if (fault === 'drop') throw new TypeError('fetch failed', { cause: new Error(`no route to ${url.host}`) })
    const response = await serve(request)
    if (fault === 'lose-reply') throw new TypeError('fetch failed', { cause: new Error('socket hang up') })
    if (fault === 'hang') {
      const { promise, reject } = Promise.withResolvers<never>()
      init.signal!.addEventListener('abort', () => reject(init.signal!.reason as Error))
      return promise
    }
    return fault === 'break-off' ? brokenOff(response) : response
  }

  return {
    clock,
    ledger,
    seen,
    reports,
    shortWindows,
    script,
    fetch,
    client: (given = {}) =>
      createClient({
        keys: memoryKeys(),
        fetch,
        clock,
        random: seededRandom(1),
        budget: retryBudget({ burst: 1_000, clock }),
        onAttempt: (report) => reports.push(report),
        onShortWindow: (found) => shortWindows.push(found),
        ...given,
      }),
    async finish(work) {
      let ended = false
      const ending = work.finally(() => (ended = true))
      ending.catch(() => {})
      while (!ended) await clock.advance(250)
      return ending
    },
  }
}

function brokenOff(response: Response): Response {
  const body = new ReadableStream({
    start(controller) {
      controller.enqueue(new TextEncoder().encode('{"rec'))
      controller.error(new TypeError('terminated'))
    },
  })
  return new Response(body, response)
}

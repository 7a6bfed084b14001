// A server with sessions behind a script of faults: the real exchange on a store. It writes down what reached it and what took effect, and
// trusts nothing of the client.

import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { buffer } from 'node:stream/consumers'
import type { Clock } from '../../src/core/clock.ts'
import { createOnce } from '../../src/core/once.ts'
import type { Store } from '../../src/core/store.ts'
import { idempotency } from '../../src/http/fetch.ts'
import { createSessions } from '../../src/sessions/sessions.ts'
import type { Sessions, SessionsOptions } from '../../src/sessions/sessions.ts'

export type TillFault =
  /** The request never arrives. */
  | 'drop'
  /** The server has done its work, and the reply is lost. */
  | 'lose-reply'
  /** The request waits at the door until `release` is called. */
  | 'hold'
  | 'well'

/** A request with a number, as it came in. */
export interface Came {
  readonly epoch: number
  readonly sequence: number
  readonly acknowledged: number
  readonly body: string
}

export interface TillServer {
  readonly sessions: Sessions
  /** Every request with a number that left the client. */
  readonly sent: Came[]
  /** Every effect, in order. */
  readonly effects: Came[]
  /** What happens to the next requests with a number. After its end the network is well. */
  readonly script: TillFault[]
  /** The same for requests to the path of sessions. */
  readonly sessionScript: TillFault[]
  /** How many requests were in the server at once, at most. */
  inFlightMax(): number
  /** Lets what is held go on. */
  release(): void
  /** A request as it came before, once more. */
  again(came: Came): Promise<Response>
  serve(request: Request): Promise<Response>
  fetch(input: string, init: RequestInit): Promise<Response>
}

type TillOptions = Omit<SessionsOptions, 'scope' | 'store'> & {
  readonly store: Store
  readonly clock?: Clock
}

/** The exchange has the tenant in the name of a session: here it is shared. */
export const inStore = (session: string): string => `/${session}`

export function openTillServer(options: TillOptions): TillServer {
  const sessions = createSessions({ ...options, scope: 'tills' }) as Sessions
  const sent: Came[] = []
  const effects: Came[] = []
  const script: TillFault[] = []
  const sessionScript: TillFault[] = []
  let [inFlight, inFlightMax] = [0, 0]
  let held = Promise.withResolvers<void>()

  const { store, clock } = options
  const once = createOnce({ store, scope: 'tills', sweepEveryMs: false, ...(clock && { clock }) })
  const serve = idempotency(once, { tenant: 'shared', sessions })(async (request) => {
    const came = await cameOf(request)
    effects.push(came)
    return new Response(`receipt of ${came.body}`, { status: 201 })
  })

  async function fetch(input: string, init: RequestInit): Promise<Response> {
    const request = new Request(input, init)
    const isNumbered = request.headers.has('idempotency-sequence')
    if (isNumbered) sent.push(await cameOf(request.clone()))
    const fault = (isNumbered ? script : sessionScript).shift() ?? 'well'
    if (fault === 'drop') throw new TypeError('fetch failed', { cause: new Error('no route to host') })
    inFlightMax = Math.max(inFlightMax, ++inFlight)
    try {
      if (fault === 'hold') await held.promise
      const response = await serve(request)
      if (fault === 'lose-reply') throw new TypeError('fetch failed', { cause: new Error('socket hang up') })
      return response
    } finally {
      inFlight--
    }
  }

  return {
    sessions,
    sent,
    effects,
    script,
    sessionScript,
    inFlightMax: () => inFlightMax,
    release() {
      held.resolve()
      held = Promise.withResolvers()
    },
    again: (came) => serve(requestOf(came)),
    serve,
    fetch,
  }
}

function requestOf({ epoch, sequence, acknowledged, body }: Came): Request {
  const headers = {
    'idempotency-session': '"till-7"',
    'idempotency-epoch': `${epoch}`,
    'idempotency-sequence': `${sequence}`,
    'idempotency-acknowledged': `${acknowledged}`,
  }
  return new Request('https://shop.example/sales', { method: 'POST', headers, body })
}

async function cameOf(request: Request): Promise<Came> {
  const number = (name: string): number => Number(request.headers.get(`idempotency-${name}`))
  return {
    epoch: number('epoch'),
    sequence: number('sequence'),
    acknowledged: number('acknowledged'),
    body: await request.text(),
  }
}

/** Every number that left the client stood for one content, and had one effect at most. */
export function collisionsIn({ sent, effects }: Pick<TillServer, 'sent' | 'effects'>): string[] {
  const nameOf = ({ epoch, sequence }: Came): string => `${epoch}/${sequence}`
  const contents = Map.groupBy(sent, nameOf)
  const twice = [...contents].filter(([, all]) => new Set(all.map(({ body }) => body)).size > 1).map(([name]) => name)
  const effectsOf = [...Map.groupBy(effects, nameOf)].filter(([, all]) => all.length > 1).map(([name]) => name)
  return [...twice.map((name) => `${name} has two contents`), ...effectsOf.map((name) => `${name} has two effects`)]
}

/** The server behind a port. A fault is a connection that breaks. */
export async function listen(server: TillServer): Promise<AsyncDisposable & { readonly url: string }> {
  const http = createServer((asked, response) => {
    void (async () => {
      const body = await buffer(asked)
      const init = { method: asked.method!, headers: asked.headers as Record<string, string> }
      const answer = await server.fetch(`http://till.example${asked.url}`, body.length > 0 ? { ...init, body } : init)
      response.writeHead(answer.status, Object.fromEntries(answer.headers))
      response.end(Buffer.from(await answer.arrayBuffer()))
    })().catch(() => response.destroy())
  })
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(http.address() as AddressInfo).port}`,
    async [Symbol.asyncDispose]() {
      http.closeAllConnections()
      await new Promise((resolve) => http.close(resolve))
    },
  }
}

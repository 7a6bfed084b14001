// Every reply of DynamoDB says what time it is there. That is too coarse to judge leases by (whole seconds, and as old as the
// way back was long), but it shows a machine whose clock is wrong, before that machine takes over a lease that is alive.

import type { Clock } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import type { DynamodbClient } from '../../clients/dynamodb.ts'

/** By how much our clock is ahead of DynamoDB's, as far as the last reply tells. */
interface Ahead {
  atLeastMs: number
  atMostMs: number
}

interface Reply {
  readonly response?: { readonly headers?: Readonly<Record<string, string>> }
}

type Next = (request: unknown) => Promise<Reply>

/** The SDK's own way to be told of replies. */
interface MiddlewareStack {
  add(middleware: (next: Next) => Next, options: { step: 'deserialize'; priority: 'low' }): void
}

// One watch for each client, however many stores use it.
const watched = new WeakMap<DynamodbClient, Ahead>()

/** Answers a check that throws STORE_UNSAFE when the clock of this machine is known to be wrong. */
export function clockCheck(client: DynamodbClient, clock: Clock, clockSkewMs: number): () => void {
  const ahead = watched.get(client) ?? watch(client, clock)
  // Within half of it on either side of DynamoDB's, no two machines are further apart than all of it.
  const allowedMs = clockSkewMs / 2
  return () => {
    if (ahead.atLeastMs <= allowedMs && ahead.atMostMs >= -allowedMs) return
    const off = ahead.atLeastMs > 0 ? `${ahead.atLeastMs} ms ahead of` : `${-ahead.atMostMs} ms behind`
    throw new OnceError('STORE_UNSAFE', {
      message:
        `The clock of this machine is at least ${off} DynamoDB's, and leases are judged by it (clockSkewMs is ${clockSkewMs}). ` +
        'The effect was not run. Set the clock (NTP), or allow more with clockSkewMs on every machine.',
    })
  }
}

function watch(client: DynamodbClient, clock: Clock): Ahead {
  const ahead: Ahead = { atLeastMs: 0, atMostMs: 0 }
  watched.set(client, ahead)
  const stack = client.middlewareStack as MiddlewareStack | undefined
  stack?.add(
    (next) => async (request) => {
      const sentAtMs = clock.now()
      const reply = await next(request)
      const serverMs = Date.parse(reply.response?.headers?.['date'] ?? '')
      if (!Number.isNaN(serverMs)) {
        // The server wrote its time between our two moments, and cut it down to the second.
        ahead.atLeastMs = sentAtMs - serverMs - 1_000
        ahead.atMostMs = clock.now() - serverMs
      }
      return reply
    },
    { step: 'deserialize', priority: 'low' },
  )
  return ahead
}

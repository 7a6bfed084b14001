// What the gateway answers by itself, besides what the exchange does: problem documents (RFC 9457) of the same shape. They are
// never stored and never cached.

import { rulesPath } from '../../http/exchange/options.ts'
import type { HttpOptions } from '../../http/exchange/options.ts'
import type { Answer, HeaderLine } from '../../http/exchange/stored-response.ts'

export interface GatewayProblem {
  readonly status: number
  readonly code: string
  readonly title: string
  readonly detail: string
  readonly executed: 'no' | 'unknown'
  readonly retryable: boolean
}

function kind(
  status: number,
  code: string,
  executed: GatewayProblem['executed'],
  retry: 'retryable' | 'final',
  title: string,
  detail: string,
): GatewayProblem {
  return { status, code: `gateway-${code}`, title, detail, executed, retryable: retry === 'retryable' }
}

export type GatewayProblemName =
  | 'badRequest'
  | 'notCarried'
  | 'unreachable'
  | 'broken'
  | 'timedOut'
  | 'overloaded'
  | 'loop'

/** docs/gateway.md lists them; a test compares the two. */
export const gatewayProblems: Readonly<Record<GatewayProblemName, GatewayProblem>> = {
  badRequest: kind(
    400,
    'bad-request',
    'no',
    'final',
    'The request cannot be passed on',
    'Its target, its Host or its Connection header is not one that a request to this service can have.',
  ),
  notCarried: kind(
    501,
    'not-carried',
    'no',
    'final',
    'This gateway does not carry such requests',
    'It carries plain HTTP requests: no CONNECT or TRACE, no upgrade, no transfer coding but chunked.',
  ),
  unreachable: kind(
    502,
    'upstream-unreachable',
    'no',
    'retryable',
    'The service cannot be reached',
    'Nothing was sent to it. Ask again with the same key.',
  ),
  broken: kind(
    502,
    'upstream-broken',
    'unknown',
    'retryable',
    'The service broke off before its answer was complete',
    'It is not known what became of the request. Ask again with the same key.',
  ),
  timedOut: kind(
    504,
    'upstream-timeout',
    'unknown',
    'retryable',
    'The service did not answer in time',
    'It is not known what became of the request. Ask again with the same key.',
  ),
  overloaded: kind(
    503,
    'overloaded',
    'no',
    'retryable',
    'Too many requests are under way',
    'Nothing was done. Ask again with the same key.',
  ),
  loop: kind(
    508,
    'loop',
    'no',
    'final',
    'The request came back to the gateway that sent it',
    'The upstream of this gateway leads to the gateway itself.',
  ),
}

export interface ProblemOptions {
  readonly profile?: HttpOptions['profile'] | undefined
  readonly retryAfterMs?: number
}

export function gatewayProblem(
  problem: GatewayProblem,
  { profile = 'draft', retryAfterMs = 1_000 }: ProblemOptions = {},
): Answer {
  const { status, code, title, detail, executed, retryable } = problem
  const headers: HeaderLine[] = [
    ['Content-Type', 'application/problem+json'],
    ['Cache-Control', 'no-store'],
  ]
  if (retryable) headers.push(['Retry-After', String(Math.max(1, Math.ceil(retryAfterMs / 1_000)))])
  const document = { type: `${rulesPath}/problems/${code}`, title, status, detail, code, retryable, executed }
  if (profile !== 'stripe') return { status, headers, body: Buffer.from(JSON.stringify(document)) }
  headers.push(['Stripe-Should-Retry', String(retryable)])
  // stripe-node takes an error body without an `error` member for a success.
  const error = { type: 'api_error', message: `${title}. ${detail}` }
  return { status, headers, body: Buffer.from(JSON.stringify({ ...document, error })) }
}

// The gateway's own answers, besides those of the exchange: problem documents (RFC 9457) of the same shape. They are never
// stored and never cached.

import { problemAnswer, rulesPath } from '../../http/exchange.ts'
import type { Answer, HttpOptions, ProblemKind } from '../../http/exchange.ts'

export type GatewayProblem = ProblemKind & { readonly executed: 'no' | 'unknown' }

export type GatewayProblemName =
  | 'badRequest'
  | 'notCarried'
  | 'unreachable'
  | 'broken'
  | 'timedOut'
  | 'overloaded'
  | 'loop'

/** docs/gateway.md lists them, and a test compares the two. */
export const gatewayProblems: Readonly<Record<GatewayProblemName, GatewayProblem>> = {
  badRequest: {
    code: 'gateway-bad-request',
    status: 400,
    executed: 'no',
    retryable: false,
    title: 'The request cannot be passed on',
    detail: 'Its target, its Host or its Connection header is not one that a request to this service can have.',
  },
  notCarried: {
    code: 'gateway-not-carried',
    status: 501,
    executed: 'no',
    retryable: false,
    title: 'This gateway does not carry such requests',
    detail: 'It carries plain HTTP requests: no CONNECT or TRACE, no upgrade, no transfer coding but chunked.',
  },
  unreachable: {
    code: 'gateway-upstream-unreachable',
    status: 502,
    executed: 'no',
    retryable: true,
    title: 'The service cannot be reached',
    detail: 'Nothing was sent to it. Ask again with the same key.',
  },
  broken: {
    code: 'gateway-upstream-broken',
    status: 502,
    executed: 'unknown',
    retryable: true,
    title: 'The service broke off before its answer was complete',
    detail: 'It is not known what became of the request. Ask again with the same key.',
  },
  timedOut: {
    code: 'gateway-upstream-timeout',
    status: 504,
    executed: 'unknown',
    retryable: true,
    title: 'The service did not answer in time',
    detail: 'It is not known what became of the request. Ask again with the same key.',
  },
  overloaded: {
    code: 'gateway-overloaded',
    status: 503,
    executed: 'no',
    retryable: true,
    title: 'Too many requests are under way',
    detail: 'Nothing was done. Ask again with the same key.',
  },
  loop: {
    code: 'gateway-loop',
    status: 508,
    executed: 'no',
    retryable: false,
    title: 'The request came back to the gateway that sent it',
    detail: 'The upstream of this gateway leads to the gateway itself.',
  },
}

export interface ProblemOptions {
  readonly profile?: HttpOptions['profile'] | undefined
  readonly retryAfterMs?: number
}

export function gatewayProblem(
  problem: GatewayProblem,
  { profile = 'draft', retryAfterMs = 1_000 }: ProblemOptions = {},
): Answer {
  const { title, detail } = problem
  return problemAnswer({
    kind: problem,
    base: `${rulesPath}/problems`,
    retryAfterSeconds: Math.max(1, Math.ceil(retryAfterMs / 1_000)),
    // stripe-node takes an error body without an `error` member for a success.
    stripe: profile === 'stripe' ? { type: 'api_error', message: `${title}. ${detail}` } : undefined,
  })
}

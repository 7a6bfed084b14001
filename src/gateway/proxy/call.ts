// One request on its way through the gateway, and what the gateway learns of it.

import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Key } from '../../core/key.ts'
import type { IdempotencyContext } from '../../http/exchange.ts'
import type { GatewayProblem } from './problem.ts'
import type { RequestResult } from '../request-log.ts'

export interface ProxiedCall {
  readonly req: IncomingMessage
  readonly res: ServerResponse
  /** Path and query. The authority of an absolute form is gone: nothing in a request chooses the upstream. */
  readonly target: string
  readonly remoteAddress: string | undefined
  readonly startedMs: number
  /** The whole body, where the exchange has read it. Otherwise the body streams. */
  body: Uint8Array | undefined
  /** The key in the store, as soon as the exchange has read it. */
  key: Key | undefined
  /** There while the request runs under a key. */
  context: IdempotencyContext | undefined
  /** Of a request with a number in a session, whose headers are for the gateway: the key that the upstream is given instead. */
  derivedKey: string | undefined
  result: RequestResult
  /** The upstream was asked and sent no full answer: the problem to send instead. */
  doubt: GatewayProblem | undefined
  /** The answer ended with its connection, so whether it is complete is unknown. */
  unframed: boolean
  cause: string | undefined
  /** Gives up what the upstream still sends. Undefined when nothing is under way there. */
  abort: (() => void) | undefined
  /** Nothing that is done for this request matters to a key any more. */
  decided: boolean
  closed: boolean
}

export function createCall(req: IncomingMessage, res: ServerResponse, target: string, startedMs: number): ProxiedCall {
  return {
    req,
    res,
    target,
    remoteAddress: req.socket.remoteAddress,
    startedMs,
    body: undefined,
    key: undefined,
    context: undefined,
    derivedKey: undefined,
    result: 'passed',
    doubt: undefined,
    unframed: false,
    cause: undefined,
    abort: undefined,
    decided: false,
    closed: false,
  }
}

// What is known of a request when it has ended, with the hash that the events of core have for its key.

import { hashKey } from '../../core/key.ts'
import { splitTarget } from '../../http/exchange.ts'
import type { ProxiedCall } from './call.ts'
import type { RequestRecord } from '../request-log.ts'

/** No response was begun: the client had left, or its request broke off. nginx and the readers of its logs use the same number. */
const noAnswer = 499

/** What the log and the metrics get when a request has ended. */
export function recordOf(call: ProxiedCall, nowMs: number): RequestRecord {
  const { req, res, target, result, cause, context, key, startedMs } = call
  return {
    method: req.method ?? '',
    path: splitTarget(target).path,
    status: res.headersSent ? res.statusCode : noAnswer,
    result,
    durationMs: nowMs - startedMs,
    ...(key && { keyHash: hashKey(key) }),
    ...(context && { attempt: context.attempt }),
    ...(cause !== undefined && { cause }),
    ...(!res.writableFinished && { clientGone: true }),
  }
}

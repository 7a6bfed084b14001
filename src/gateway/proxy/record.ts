// What is known of a request when it is over, with the hash that the events of core have for its key.

import { hashKey } from '../../core/key.ts'
import type { Once } from '../../core/once.ts'
import { readKey } from '../../http/exchange/key-header.ts'
import { splitTarget } from '../../http/exchange/request-fingerprint.ts'
import { scopedKey } from '../../http/exchange/scoped-key.ts'
import type { Call } from './call.ts'
import type { GatewaySettings } from './options.ts'
import { tenantName, tenantOf } from './tenants.ts'
import type { RequestRecord } from '../request-log.ts'

/** No answer was begun: the client had left, or its request broke off. As nginx and those who read its logs have it. */
const noAnswer = 499

/** What the log and the metrics are told when a request is over. */
export function recordOf(once: Once, settings: GatewaySettings, call: Call, nowMs: number): RequestRecord {
  const { req, res, target, result, cause, context, startedMs } = call
  const keyHash = result === 'passed' ? undefined : keyHashOf(once, settings, call)
  return {
    method: req.method ?? '',
    path: splitTarget(target).path,
    status: res.headersSent ? res.statusCode : noAnswer,
    result,
    durationMs: nowMs - startedMs,
    ...(keyHash !== undefined && { keyHash }),
    ...(context && { attempt: context.attempt }),
    ...(cause !== undefined && { cause }),
    ...(!res.writableFinished && { clientGone: true }),
  }
}

/** The same as in the events of core, also for a request whose key was never asked for. */
function keyHashOf(once: Once, settings: GatewaySettings, { req, context }: Call): string | undefined {
  if (context) return hashKey(context.key)
  const line = req.headers['idempotency-key']
  const reading =
    typeof line === 'string' ? readKey([line], { parse: 'lenient', keyFormat: 'any', keyLengthMax: 255 }) : undefined
  const name = tenantName(settings)
  const tenant = name === '' ? undefined : tenantOf(req, name)
  if (!reading || 'refused' in reading || (name !== '' && tenant === undefined)) return undefined
  return hashKey(scopedKey({ service: once.scope, tenant, route: undefined }, reading.key, 'plain'))
}

// How a request is named: by a key, or by a number in a session, each of its tenant. Read before the body, and checked before the store
// is asked.

import { invalidArgument } from '../../core/errors.ts'
import type { OnceError } from '../../core/errors.ts'
import type { Once } from '../../core/once.ts'
import type { AskedRequest } from '../exchange.ts'
import { readKey } from './key-header.ts'
import type { HttpSettings } from './options.ts'
import { splitTarget } from './request-fingerprint.ts'
import { scopedKey, scopedSession } from './scoped-key.ts'
import { numberKey } from './sessions.ts'
import type { Numbered, SessionProblem } from './sessions.ts'
import type { RequestAttempt } from './verdict.ts'

export function readKeyOf(
  settings: HttpSettings<never>,
  { keyLines }: Pick<AskedRequest<never>, 'keyLines'>,
): { key: string } | SessionProblem {
  if (keyLines.length === 0) return { problem: 'keyMissing', details: {} }
  const reading = readKey(keyLines, settings)
  if ('key' in reading) return reading
  return { problem: 'keyInvalid', details: { detail: `The header was refused because ${reading.refused}.` } }
}

export function lacksTenant({ tenant: of }: HttpSettings<never>, tenant: unknown): boolean {
  if (of === 'shared') return false
  if (tenant && typeof tenant !== 'string') throw tenantIsNoText(tenant)
  return !tenant
}

/** What the store is given: a key, or a number in a session whose name has its tenant in it. */
export function inStore<Asked>(
  { once, settings }: { readonly once: Once; readonly settings: HttpSettings<Asked> },
  asked: AskedRequest<Asked>,
  named: { readonly key: string } | Numbered,
  tenant: string | undefined,
): Pick<RequestAttempt, 'key' | 'numbered'> {
  const how = settings.hashKeys ? 'hashed' : 'plain'
  if ('key' in named) {
    const route = settings.keysPer === 'route' ? `${asked.method} ${splitTarget(asked.target).path}` : undefined
    return { key: scopedKey({ service: once.scope, tenant, route }, named.key, how), numbered: undefined }
  }
  const numbered = { ...named, session: scopedSession(tenant, named.session, how) }
  return { key: numberKey(settings.sessions!, numbered), numbered }
}

// Not the problem of a missing tenant: it would ask every client for credentials and hide the cause from the operator.
function tenantIsNoText(tenant: unknown): OnceError {
  return invalidArgument(
    `idempotency: expected tenant to return a string, got a ${typeof tenant}. Nothing was run. Return String(id) for a number.`,
  )
}

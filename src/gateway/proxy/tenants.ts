// The tenant of a key, as a header names it. Two tenants never share a key, and no credential gets into the store.

import { hash } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import type { HttpOptions } from '../../http/exchange.ts'
import type { ProxiedCall } from './call.ts'
import type { GatewaySettings } from './options.ts'
import { linesOf } from './requests.ts'

// The value of such a header is a credential, which any reader of the store or the dashboard could use.
const credentialName = /auth|cookie|token|secret|key|session|signature|password|credential|jwt/i

export function tenantName({ tenantHeader = '' }: GatewaySettings): string {
  return tenantHeader.toLowerCase()
}

/** The tenant of a key, for the exchange. */
export function tenantOption(settings: GatewaySettings): Pick<HttpOptions<ProxiedCall>, 'tenant'> {
  const name = tenantName(settings)
  if (name === '') return { tenant: 'shared' }
  return { tenant: ({ req }) => tenantOf(req, name) }
}

export function tenantOf(req: IncomingMessage, name: string): string | undefined {
  const value = req.headers[name]
  // Two lines: the gateway might use one and the service the other.
  if (typeof value !== 'string' || value === '' || linesOf(req, name) > 1) return undefined
  return credentialName.test(name) ? hash('sha256', value, 'base64url') : value
}

// Whose a key is: the tenant that a header names. Two tenants never share a key, and no credential gets into the store.

import { hash } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import type { HttpOptions } from '../../http/exchange.ts'
import type { ProxiedCall } from './call.ts'
import type { GatewaySettings } from './options.ts'
import { linesOf } from './requests.ts'

// What such a header holds can be used by whoever reads it in the store or on the dashboard.
const credentialName = /auth|cookie|token|secret|key|session|signature|password|credential|jwt/i

export function tenantName({ tenantHeader = '' }: GatewaySettings): string {
  return tenantHeader.toLowerCase()
}

/** Whose a key is, for the exchange. */
export function tenantOption(settings: GatewaySettings): Pick<HttpOptions<ProxiedCall>, 'tenant'> {
  const name = tenantName(settings)
  if (name === '') return { tenant: 'shared' }
  return { tenant: ({ req }) => tenantOf(req, name) }
}

export function tenantOf(req: IncomingMessage, name: string): string | undefined {
  const value = req.headers[name]
  // Two lines: the gateway might believe one and the service the other.
  if (typeof value !== 'string' || value === '' || linesOf(req, name) > 1) return undefined
  return credentialName.test(name) ? hash('sha256', value, 'base64url') : value
}

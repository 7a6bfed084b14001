// Where the keys of a gateway lie: `gateway:SERVICE`, with a scope per tenant below it. The prefix keeps them apart from the keys of
// a service behind the gateway that uses onceonly on the same store.

import { tenantOf } from '../core/doubt.ts'

export function gatewayScope(service: string): string {
  return `gateway:${service}`
}

/** Every key of a gateway is an HTTP key. */
export function isGatewayScope(scope: string): boolean {
  return scope.startsWith('gateway:')
}

/** '' where all callers share one space of keys. Undefined for a key that is no gateway's. */
export function gatewayTenant(scope: string): string | undefined {
  const [service] = /^gateway:[^/]+/.exec(scope) ?? []
  return service === undefined ? undefined : tenantOf(service, scope)
}

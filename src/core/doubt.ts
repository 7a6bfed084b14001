// What is in doubt, and whose it is. HTTP keys lie in separate scopes, one per tenant, below the scope of `createOnce`:
// `payments/acme`, and `payments/acme/POST%20%2Forders` where keys are per route. This file is the one home of that form.

import type { Key } from './key.ts'

/** An attempt or a step that began and never reported. */
export interface Doubt {
  readonly key: Key
  /**
   * Of an HTTP key: the tenant. '' where all callers share one space of keys, and a # with a digest where the tenant is kept as a
   * digest only. Absent for a key of `once.run`.
   */
  readonly tenant?: string
  /** Absent for a key of `once.run`. */
  readonly operation?: string
  readonly step?: string
  readonly attempt: number
  /** Since when, by the store's clock. */
  readonly sinceAtMs: number
  /** Whether the operation waits for a person. */
  readonly parked: boolean
}

/** The scope of the keys of one tenant. The parts are escaped, so a slash is always ours. */
export function tenantScope(service: string, tenant: string, route?: string): string {
  return `${service}/${escapePart(tenant)}${route === undefined ? '' : `/${escapePart(route)}`}`
}

/** Never contains a slash or a #. */
export function escapePart(part: string): string {
  return /^[A-Za-z0-9_.~-]*$/.test(part) ? part : encodeURIComponent(part)
}

/** The tenant of a scope below this service. Undefined when it is not below it. */
export function tenantOf(service: string, scope: string): string | undefined {
  if (!scope.startsWith(`${service}/`)) return undefined
  const [tenant = ''] = scope.slice(service.length + 1).split('/')
  try {
    return decodeURIComponent(tenant)
  } catch {
    return tenant // a scope that no version of onceonly wrote
  }
}

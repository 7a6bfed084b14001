import { expect, test } from 'vitest'
import { escapePart, tenantOf, tenantScope } from './doubt.ts'

test.each<[tenant: string, route: string | undefined, scope: string]>([
  ['acme', undefined, 'shop/acme'],
  ['acme', 'POST /orders', 'shop/acme/POST%20%2Forders'],
  ['', undefined, 'shop/'],
  ['', '', 'shop//'],
  ['a/b c', undefined, 'shop/a%2Fb%20c'],
  ['Az09_.~-', undefined, 'shop/Az09_.~-'],
  ['#digest', undefined, 'shop/%23digest'],
  ['acme/', undefined, 'shop/acme%2F'],
  ['/acme', undefined, 'shop/%2Facme'],
])('the tenant %j with the route %j has the scope %s, and is read from it', (tenant, route, scope) => {
  expect(tenantScope('shop', tenant, route)).toBe(scope)
  expect(tenantOf('shop', scope)).toBe(tenant)
})

test('what is not below a service has no tenant of it', () => {
  expect(['shop', 'shopping/acme', 'other/shop/acme', ''].map((scope) => tenantOf('shop', scope))).toEqual(
    Array(4).fill(undefined),
  )
})

test('a part that is plain stays as it is, also an empty one, and a tenant that was never escaped is shown as it is', () => {
  expect(escapePart('')).toBe('')
  expect(escapePart('a b')).toBe('a%20b')
  expect(tenantOf('shop', 'shop/100%/x')).toBe('100%')
})

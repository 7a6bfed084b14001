import { describe, expect, test } from 'vitest'
import { pathPattern } from './routes.ts'

describe('a path pattern', () => {
  test.each<[pattern: string, path: string, fits: boolean]>([
    ['/orders', '/orders', true],
    ['/orders', '/orders/', true],
    ['/orders', '/orders/1', false],
    ['/orders/*', '/orders/1', true],
    ['/orders/*', '/orders', false],
    ['/orders/*', '/orders/1/2', false],
    ['/orders/*/lines', '/orders/1/lines', true],
    ['/v1/**', '/v1', true],
    ['/v1/**', '/v1/a/b/c', true],
    ['/v1/**', '/v2/a', false],
    ['/**', '/', true],
    ['/', '/', true],
    ['/', '/a', false],
    // Other ways to write the same path do not lead around a rule.
    ['/orders/*', '//orders///1', true],
    ['/orders/*', '/./orders/1', true],
    ['/orders/*', '/x/../orders/1', true],
    ['/orders/*', '/../../orders/1', true],
    ['/orders/*', '/%6frders/1', true],
    ['/orders/*', '/%6Frders/1', true],
    ['/orders/*', '/x/%2e%2e/orders/1', true],
    // Many services do not tell letter cases apart, and servlet containers cut path parameters off.
    ['/orders', '/ORDERS', true],
    ['/Orders', '/oRDERS', true],
    ['/%C3%BCber', '/%C3%9CBER', true],
    ['/orders', '/orders;x=1', true],
    ['/orders/*', '/orders;a;b=2/1;v=3', true],
    ['/orders', '/;x/orders', true],
    ['/orders', '/orders%3Bx=1', false],
    ['/a', '/%FF', false],
    // An escaped slash is no slash.
    ['/orders/*', '/orders%2F1', false],
    ['/orders/*', '/orders/1%2F2', true],
    ['/a.b', '/axb', false],
  ])('%s and %s: %s', (pattern, path, fits) => {
    expect(pathPattern(pattern)(path)).toBe(fits)
  })

  test('tells letter cases apart for a service that does', () => {
    expect(pathPattern('/orders', 'significant')('/ORDERS')).toBe(false)
    expect(pathPattern('/orders', 'significant')('/orders;x=1')).toBe(true)
  })

  test('takes time in proportion to the path', () => {
    expect(pathPattern('/a/*/b/**')(`/${'%2e/'.repeat(4_000)}${'a/'.repeat(4_000)}`)).toBe(false)
  })
})

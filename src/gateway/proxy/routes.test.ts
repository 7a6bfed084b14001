import { describe, expect, test } from 'vitest'
import { pathPattern, routePath } from './routes.ts'

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
    // A format is part of the path unless the rule says that it is not.
    ['/orders', '/orders.json', false],
    ['/orders.*', '/orders.json', true],
    ['/orders.*', '/orders', true],
    ['/orders.*', '/ORDERS.Json/', true],
    ['/orders.*', '/orders%2Ejson', true],
    ['/orders.*', '/orders.tar.gz;v=1', true],
    ['/orders.*', '/orders.', true],
    ['/orders.*', '/ordersjson', false],
    ['/orders.*', '/orders/1.json', false],
    ['/orders.*/lines.*', '/orders/lines.xml', true],
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

  test.each([
    '/orders*',
    '/or*ders',
    '/*orders',
    '/orders/**/lines',
    '/orders**',
    '/**.json',
    '/orders.*x',
    'orders',
    '',
    '/a?b',
  ])('%s is refused: as a rule it would cover nothing', (path) => expect(routePath.pattern.test(path)).toBe(false))

  test.each(['/', '/**', '/*', '/orders', '/orders/', '/orders/*', '/v1/**', '/a.b/*/c.*', '/orders.*'])(
    '%s may be the path of a rule',
    (path) => expect(routePath.pattern.test(path)).toBe(true),
  )

  test('takes time in proportion to the path', () => {
    expect(pathPattern('/a/*/b/**')(`/${'%2e/'.repeat(4_000)}${'a/'.repeat(4_000)}`)).toBe(false)
  })
})

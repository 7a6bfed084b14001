// What a gateway publishes: the rules of every route, and a page behind the type of every problem that a client can be answered.
import { afterEach, expect, test } from 'vitest'
import { gatewayProblems } from '../../src/gateway/proxy.ts'
import { problemKinds } from '../../src/http/exchange.ts'
import { closeAll, startGround } from './ground.ts'

afterEach(closeAll)

const nowhere = 'http://127.0.0.1:1'
const codes = [...Object.values(problemKinds), ...Object.values(gatewayProblems)]

test('the type of every problem leads to a page that describes it, and to the same as JSON', async () => {
  const { gateway } = await startGround(nowhere)
  expect(codes.length).toBeGreaterThan(20)
  for (const { code, title, detail } of codes) {
    const url = `${gateway.url}/.well-known/idempotency/problems/${code}`
    const page = await fetch(url, { headers: { accept: 'text/html' } })
    const text = await page.text()
    expect([page.status, page.headers.get('content-type')], code).toEqual([200, 'text/html; charset=utf-8'])
    expect(text, code).toContain(`id="${code}"`)
    for (const words of [title, detail]) expect(text, code).toContain(words.replaceAll('"', '&#34;'))
    const json = (await (await fetch(url, { headers: { accept: 'application/json' } })).json()) as { errors: unknown[] }
    expect(json.errors, code).toContainEqual(expect.objectContaining({ code, title, detail }))
  }
})

test('a problem that a client is answered has a type that leads to its page', async () => {
  const { gateway, post } = await startGround(nowhere)
  const refused = [
    await post('k'),
    await post('bad "key'),
    await fetch(gateway.url, { headers: { 'max-forwards': '0' } }),
  ]
  for (const response of refused.slice(0, 2)) {
    const { type, title } = (await response.json()) as { type: string; title: string }
    expect(await (await fetch(gateway.url + type)).text()).toContain(title)
  }
})

test('the rules name every status after which a request is processed again', async () => {
  for (const errorPolicy of ['release-5xx', 'began'] as const) {
    const { gateway } = await startGround(nowhere, { errorPolicy })
    const page = await (await fetch(`${gateway.url}/.well-known/idempotency`)).text()
    expect(page, errorPolicy).toContain('not looked at (401, 407, 408, 421, 425, 429)')
  }
})

test('the rules name the window, the headers and the omitted members of every route', async () => {
  const { gateway } = await startGround(nowhere, {
    keepMs: 86_400_000,
    routes: [
      { path: '/transfers/*', methods: ['PUT'], required: true, keepMs: 7 * 86_400_000, headers: ['X-Currency'] },
      { path: '/events/**', protect: false },
      { path: '/orders', fingerprint: { body: 'jcs', omit: ['/sentAt'] }, header: 'PayPal-Request-Id' },
    ],
  })
  const rules = `${gateway.url}/.well-known/idempotency`
  const json = (await (await fetch(rules, { headers: { accept: 'application/json' } })).json()) as object
  expect(json).toMatchObject({
    windowSeconds: 86_400,
    required: false,
    routes: [
      {
        path: '/transfers/*',
        methods: ['PUT'],
        required: true,
        windowSeconds: 7 * 86_400,
        fingerprint: expect.stringContaining('header x-currency') as string,
      },
      { path: '/events/**', protected: false },
      {
        path: '/orders',
        windowSeconds: 86_400,
        fingerprint: expect.stringContaining('/sentAt may differ') as string,
        header: 'PayPal-Request-Id',
      },
    ],
  })
  const page = await (await fetch(rules, { headers: { accept: 'text/html' } })).text()
  expect(page).toMatch(/<h2>Routes<\/h2>[^]*<code>\/transfers\/\*<\/code><td>PUT<td>yes<td>604800 s<td>[^<]*x-currency/)
  expect(page).toMatch(/<code>\/events\/\*\*<\/code><td><td>not protected/)
  expect(page).toMatch(/<code>\/orders<\/code>[^\n]*\/sentAt may differ<td>PayPal-Request-Id/)
})

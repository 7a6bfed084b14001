// What a server publishes of its options, whole: a client reads the JSON, and a person the page.

import { expect, test } from 'vitest'
import { createOnce } from '../../core/once.ts'
import { createSessions } from '../../sessions/sessions.ts'
import { memoryStore } from '../../stores/memory.ts'
import { readHttpOptions, rulesPath } from './options.ts'
import type { HttpOptions, HttpSettings } from './options.ts'
import { problemKinds } from './problem.ts'
import { createRules } from './rules.ts'
import type { AlsoPublished } from './rules.ts'

const store = memoryStore()
const once = createOnce({ store, scope: 's', sweepEveryMs: false })
const settingsOf = (options: Partial<HttpOptions> = {}): HttpSettings<never> =>
  readHttpOptions<never>(once, { tenant: 'shared', ...options } as HttpOptions<never>)

const json = 'application/json'
const html = 'text/html'

function published(options: Partial<HttpOptions> = {}, also: AlsoPublished = {}) {
  const rules = createRules(settingsOf(options), also)
  return (accept: string, target = rulesPath): string => rules('GET', target, accept)!.body.toString()
}

const plain = {
  header: 'Idempotency-Key',
  methods: ['POST', 'PATCH'],
  required: false,
  windowSeconds: 86_400,
  keyFormat: {
    syntax: 'a string in double quotes (RFC 9651), or visible ASCII without " , ; and \\',
    lengthMax: 255,
    format: 'any',
  },
  scope: 'all callers share one space of keys',
  fingerprint: 'method, path, query, media type, content coding and body must be the same in every retry',
  waitMs: 5_000,
  bodyBytesMax: 1_048_576,
  storedBytesMax: 1_048_576,
  errorPolicy:
    'Answers below 500 are stored and replayed; after a 5xx, or an answer that says it was not looked at ' +
    '(401, 407, 408, 421, 425, 429), the same request can be sent again and is processed.',
  replayHeader: 'Idempotent-Replayed',
}

const problems = '/.well-known/idempotency/problems'
const errorsOf = (base: string, header: string): object[] =>
  Object.values(problemKinds).map(({ code, status, title, detail, retryable }) => ({
    type: `${base}/${code}`,
    code,
    status,
    title: title.replace('Idempotency-Key', header),
    detail,
    retryable,
  }))

test('the rules of a server without options are its defaults', () => {
  const text = published()(json)
  expect(JSON.parse(text)).toEqual({ ...plain, errors: errorsOf(problems, 'Idempotency-Key') })
  expect(text).toBe(`${JSON.stringify(JSON.parse(text), undefined, 2)}\n`)
})

const everyOption: Partial<HttpOptions> = {
  tenant: () => 'acme',
  header: 'X-Key',
  methods: ['PUT'],
  required: true,
  keepMs: 7_999,
  parse: 'strict',
  keyFormat: 'uuid',
  keyLengthMax: 36,
  keysPer: 'route',
  waitMs: 10,
  bodyBytesMax: 11,
  storedBytesMax: 12,
  errorPolicy: 'success-only',
  replayHeader: 'X-Replayed',
  problemBase: 'https://shop.example/problems/',
}

test('every option of a server is in its rules', () => {
  expect(JSON.parse(published(everyOption)(json))).toEqual({
    header: 'X-Key',
    methods: ['PUT'],
    required: true,
    windowSeconds: 7,
    keyFormat: { syntax: 'a string in double quotes (RFC 9651)', lengthMax: 36, format: 'uuid' },
    scope: 'a key belongs to the account that sends it, for each method and path',
    fingerprint: plain.fingerprint,
    waitMs: 10,
    bodyBytesMax: 11,
    storedBytesMax: 12,
    errorPolicy:
      'Answers below 400 are stored and replayed; after an error the same request can be sent again and is processed.',
    replayHeader: 'X-Replayed',
    errors: errorsOf('https://shop.example/problems', 'X-Key'),
  })
  expect(JSON.parse(published({ keyFormat: () => true })(json))).toMatchObject({
    keyFormat: { format: 'a format of this server' },
  })
})

test('the profile of Stripe has no 422', () => {
  const { errors } = JSON.parse(published({ profile: 'stripe' })(json)) as { errors: { status: number }[] }
  expect(errors.map(({ status }) => status)).toEqual(
    Object.values(problemKinds).map(({ status }) => (status === 422 ? 400 : status)),
  )
})

const own = { code: 'own-problem', status: 418, title: 'Idempotency-Key & "<tea>"', detail: 'Own.', retryable: true }
const also: AlsoPublished = {
  problems: [{ ...own, executed: 'no' }],
  routes: [
    { path: '/a<b>', methods: ['POST'], settings: settingsOf({ required: true, headers: ['X-B', 'X-A'] }) },
    { path: '/c', methods: undefined, settings: settingsOf({ fingerprint: { body: 'jcs', omit: ['/x', '/y'] } }) },
    { path: '/d', methods: ['PUT', 'DELETE'], settings: undefined },
    { path: '/e', methods: undefined, settings: undefined },
  ],
}
const sessions = createSessions({ store, scope: 'tills', window: 3, leaseMs: 60_000 })

const headersOfA =
  'method, path, query, media type, content coding, body, header x-a and header x-b must be the same in every retry'

test('sessions, routes and the problems around the exchange are published where a server has them', () => {
  expect(JSON.parse(published({ sessions }, also)(json))).toEqual({
    ...plain,
    sessions: { path: '/.well-known/idempotency/sessions', window: 3, leaseMs: 60_000 },
    routes: [
      { path: '/a<b>', ...plain, required: true, fingerprint: headersOfA },
      { path: '/c', ...plain, fingerprint: `${plain.fingerprint}; of a JSON body, /x, /y may differ` },
      { path: '/d', methods: ['PUT', 'DELETE'], protected: false },
      { path: '/e', protected: false },
    ],
    errors: [...errorsOf(problems, 'Idempotency-Key'), { type: `${problems}/own-problem`, ...own }],
  })
})

const escaped = (text: string): string => text.replaceAll('"', '&#34;')
const row = (code: string, retry: string): string => {
  const { status, title, detail } = Object.values(problemKinds).find((each) => each.code === code)!
  return `<tr id="${code}"><td>${status}<td><code>${code}</code><td>${escaped(`${title}. ${detail}`)}<td>${retry}\n`
}

test('the page says the same to a person, and what is not ours is escaped', () => {
  const page = published({ sessions }, also)(html)
  const facts = `<dl><dt>Methods<dd>POST, PATCH
<dt>Required<dd>no; a request without a key is not protected
<dt>Key format<dd>${escaped(plain.keyFormat.syntax)}; 1 to 255 characters; format: ${plain.keyFormat.format}
<dt>Scope<dd>all callers share one space of keys
<dt>Retention window<dd>86400 seconds from completion; later retries are refused, so stop retrying before
<dt>Same request<dd>${plain.fingerprint}
<dt>In progress<dd>a duplicate waits up to 5000 ms, then 409 with Retry-After
<dt>Errors<dd>${plain.errorPolicy}
<dt>Replays<dd>carry Idempotent-Replayed: true
<dt>Limits<dd>request bodies up to 1048576 bytes (larger ones with a Content-Digest of sha-256), stored answers up to 1048576 bytes
<dt>Sessions<dd>register with POST /.well-known/idempotency/sessions; up to 3 requests without an acknowledged answer; a session ends after 60000 ms of silence</dl>
`
  const routes = `<h2>Routes</h2>
<p>The first route that fits a request decides. Every other request is under the rules above.</p>
<table><tr><th>Path<th>Methods<th>Required<th>Retention window<th>Same request<th>Header
<tr><td><code>/a&#60;b&#62;</code><td>POST, PATCH<td>yes<td>86400 s<td>${headersOfA}<td>Idempotency-Key
<tr><td><code>/c</code><td>POST, PATCH<td>no<td>86400 s<td>${plain.fingerprint}; of a JSON body, /x, /y may differ<td>Idempotency-Key
<tr><td><code>/d</code><td><td>not protected: a key is ignored<td><td><td>
<tr><td><code>/e</code><td><td>not protected: a key is ignored<td><td><td>
</table>
`
  expect(
    page.startsWith(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Idempotency-Key</title>
<h1>Idempotency-Key</h1>
<p>Send a new random key with every new request and the same key with its retries: it is processed once.</p>
${facts}${routes}<h2>Errors</h2>
<table><tr><th>Status<th>Code<th>Meaning<th>Retry
${row('idempotency-key-missing', 'no')}`),
  ).toBe(true)
  expect(page).toContain(row('idempotency-in-progress', 'yes'))
  expect(
    page.endsWith(`<tr id="own-problem"><td>418<td><code>own-problem</code><td>Idempotency-Key &#38; &#34;&#60;tea&#62;&#34;. Own.<td>yes
</table>
</html>
`),
  ).toBe(true)
  const without = published({ required: true })(html)
  expect(without).toContain('<dt>Required<dd>yes\n')
  expect(without).toContain('stored answers up to 1048576 bytes</dl>\n<h2>Errors</h2>')
})

test('the type of a problem leads to a page about it, with every status that it can have', () => {
  const ask = published({ header: 'X-Key' }, also)
  const { inDoubt, outcomeUnknown } = problemKinds
  const part = ({ status, title, detail }: typeof inDoubt, leads: string): string =>
    `<h1 id="idempotency-outcome-unknown">${status} ${title.replace('Idempotency-Key', 'X-Key')}</h1>
<p>${detail}</p>
<p>Code <code>idempotency-outcome-unknown</code>. A retry with the same key ${leads}.</p>
`
  expect(ask(html, `${problems}/idempotency-outcome-unknown`)).toBe(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>${inDoubt.title.replace('Idempotency-Key', 'X-Key')}</title>
${part(inDoubt, 'leads to the same answer')}${part(outcomeUnknown, 'can lead to an answer')}<p><a href="/.well-known/idempotency">The rules of X-Key</a></p>
</html>
`)
  const about = JSON.parse(ask(json, `${problems}/own-problem`)) as object
  const title = own.title.replace('Idempotency-Key', 'X-Key')
  expect(about).toEqual({ errors: [{ type: `${problems}/own-problem`, ...own, title }] })
  expect(ask(html, `${problems}/unknown`)).toBe(ask(html))
})

test('only a GET or HEAD of these paths is for the rules', () => {
  const rules = createRules(settingsOf())
  const path = rulesPath
  for (const [method, target] of [
    ['POST', path],
    ['GET', '/'],
    ['GET', `/a${path}`],
    ['GET', `${path}/problem`],
    ['GET', `${path}/problems`],
    ['GET', `/?${path}`],
  ] as const)
    expect(rules(method, target, json), `${method} ${target}`).toBeUndefined()
  for (const target of [path, `${path}?a`, `${path}/problems/`, `https://shop.example${path}`])
    for (const method of ['GET', 'HEAD']) expect(rules(method, target, json), target).toBeDefined()
})

test.each([
  ['', html],
  ['*/*', html],
  [json, json],
  ['application/problem+json', json],
  ['application/jsonx', html],
  ['Application/JSON', json],
  [`${html}, ${json}`, html],
  [`${html};q=0.8, ${json}`, json],
  [`${html};q=0.8, ${json};q=0.7`, html],
  [`${json}; charset=utf-8 ; q=0.9, ${html};q=0.8`, json],
  [`${json};q=none`, html],
  [`${json};q=0, ${json};q=0.1`, json],
  [`x-${html};q=1, ${json};q=0.1`, json],
  [`${html}x;q=1, ${json};q=0.1`, json],
])('Accept %s is answered with %s, and may be kept for an hour', (accept, type) => {
  const rules = createRules(settingsOf())
  const { status, headers, body } = rules('GET', rulesPath, accept)!
  expect([status, headers]).toEqual([
    200,
    [
      ['Content-Type', type === html ? 'text/html; charset=utf-8' : json],
      ['Cache-Control', 'public, max-age=3600'],
      ['Vary', 'Accept'],
    ],
  ])
  expect(body.toString().startsWith(type === html ? '<!doctype html>' : '{')).toBe(true)
  // Made once, for each of its forms.
  expect(rules('GET', rulesPath, accept)!.body).toBe(body)
  expect(rules('GET', `${problems}/idempotency-key-missing`, accept)!.body).not.toBe(body)
})

test('without an Accept header it is the page', () => {
  expect(createRules(settingsOf())('GET', rulesPath)!.body.toString()).toMatch(/^<!doctype html>/)
})

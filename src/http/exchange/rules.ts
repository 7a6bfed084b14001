// The published rules: what a client must know to use keys here, as HTML for people and JSON for programs. Problems link to
// them, and our own client reads the window so that it stops retrying before the server forgets.

import { unheard } from './context.ts'
import { problemKinds, statusOf } from './problem.ts'
import type { ProblemKind, ProblemName } from './problem.ts'
import { rulesPath } from './options.ts'
import type { HttpSettings } from './options.ts'
import type { Answer } from './stored-response.ts'
import { splitTarget } from './request-fingerprint.ts'
import { sessionsPath } from './sessions.ts'

/** What a server publishes besides the rules of one exchange. */
export interface AlsoPublished {
  /** Problems that the server answers around the exchange. */
  readonly problems?: readonly ProblemKind[]
  /** Routes with their own rules. The first that fits decides. Without settings a route is not protected. */
  readonly routes?: readonly PublishedRoute[]
}

export interface PublishedRoute {
  readonly path: string
  /** Undefined: every method. */
  readonly methods: readonly string[] | undefined
  readonly settings: HttpSettings<never> | undefined
}

/** The rules, if the request asks for them. The type of a problem leads to a page about that problem. */
export function createRules(
  settings: HttpSettings<never>,
  also: AlsoPublished = {},
): (method: string, target: string, accept?: string) => Answer | undefined {
  const problems = `${rulesPath}/problems/`
  const pages = new Map<string, Answer>()
  let rules: Rules | undefined
  return (method, target, accept = '') => {
    if ((method !== 'GET' && method !== 'HEAD') || !target.includes(rulesPath)) return undefined
    const { path } = splitTarget(target)
    if (path !== rulesPath && !path.startsWith(problems)) return undefined
    const isJson = weightOf(accept, /\bjson$/) > weightOf(accept, /^text\/html$/)
    rules ??= rulesOf(settings, also)
    const about = rules.errors.filter(({ code }) => path === `${problems}${code}`)
    const known = `${isJson} ${about[0]?.code ?? ''}`
    const made = pages.get(known) ?? answerOf(isJson, rules, about)
    pages.set(known, made)
    return made
  }
}

function answerOf(isJson: boolean, rules: Rules, about: Rules['errors']): Answer {
  if (!isJson) return answer('text/html; charset=utf-8', about.length > 0 ? problemPage(rules, about) : page(rules))
  const published = about.length > 0 ? { errors: about } : rules
  return answer('application/json', `${JSON.stringify(published, undefined, 2)}\n`)
}

/** The highest weight that the Accept header gives a media type (RFC 9110, 12.5.1). A type that is not named has none. */
function weightOf(accept: string, type: RegExp): number {
  const weights = accept
    .split(',')
    .map((range) => range.split(';').map((part) => part.trim().toLowerCase()))
    .filter(([name]) => type.test(name!))
    .map(([, ...parameters]) => Number(parameters.find((each) => each.startsWith('q='))?.slice(2) ?? 1))
  return Math.max(0, ...weights.filter(Number.isFinite))
}

function answer(type: string, text: string): Answer {
  // An hour: long enough to spare a client the request, short enough for a window that is changed.
  const headers = [
    ['Content-Type', type],
    ['Cache-Control', 'public, max-age=3600'],
    ['Vary', 'Accept'],
  ] as const
  return { status: 200, headers, body: Buffer.from(text) }
}

/** What holds for the requests of one route, or for all of them. */
interface RouteRules {
  readonly header: string
  readonly methods: readonly string[]
  readonly required: boolean
  readonly windowSeconds: number
  readonly keyFormat: { readonly syntax: string; readonly lengthMax: number; readonly format: string }
  readonly scope: string
  readonly fingerprint: string
  readonly waitMs: number
  readonly bodyBytesMax: number
  readonly storedBytesMax: number
  readonly errorPolicy: string
  readonly replayHeader: string
}

interface Rules extends RouteRules {
  /** Only where sessions are offered. */
  readonly sessions?: { readonly path: string; readonly window: number; readonly leaseMs: number }
  /** Only where routes have their own rules. The first that fits decides. */
  readonly routes?: readonly ({ readonly path: string } & (RouteRules | { readonly protected: false }))[]
  readonly errors: readonly {
    readonly type: string
    readonly code: string
    readonly status: number
    readonly title: string
    readonly detail: string
    readonly retryable: boolean
  }[]
}

const notLookedAt = `an answer that says it was not looked at (${[...unheard].join(', ')})`

const policies = {
  'release-5xx': `Answers below 500 are stored and replayed; after a 5xx, or ${notLookedAt}, the same request can be sent again and is processed.`,
  began: `Every answer is stored and replayed once processing has begun, errors included; only after ${notLookedAt} the request is processed again.`,
  'success-only':
    'Answers below 400 are stored and replayed; after an error the same request can be sent again and is processed.',
} as const

function rulesOf(settings: HttpSettings<never>, { problems = [], routes = [] }: AlsoPublished): Rules {
  const own = Object.entries(problemKinds).map(([name, kind]) => ({
    ...kind,
    status: statusOf(settings, name as ProblemName),
    base: settings.problemBase,
  }))
  const { sessions } = settings
  const others = problems.map((kind) => ({ ...kind, base: `${rulesPath}/problems` }))
  return {
    ...routeRules(settings),
    ...(sessions && { sessions: { path: sessionsPath, window: sessions.window, leaseMs: sessions.leaseMs } }),
    ...(routes.length > 0 && { routes: routes.map(publishedRoute) }),
    errors: [...own, ...others].map(({ base, code, status, title, detail, retryable }) => ({
      type: `${base}/${code}`,
      code,
      status,
      title: title.replace('Idempotency-Key', settings.header),
      detail,
      retryable,
    })),
  }
}

function publishedRoute({ path, methods, settings }: PublishedRoute): NonNullable<Rules['routes']>[number] {
  if (!settings) return { path, ...(methods && { methods }), protected: false }
  return { path, ...routeRules(settings) }
}

function routeRules(settings: HttpSettings<never>): RouteRules {
  const format = typeof settings.keyFormat === 'function' ? 'a format of this server' : settings.keyFormat
  return {
    header: settings.header,
    methods: [...settings.methods],
    required: settings.required,
    windowSeconds: settings.windowSeconds,
    keyFormat: {
      syntax:
        settings.parse === 'strict'
          ? 'a string in double quotes (RFC 9651)'
          : 'a string in double quotes (RFC 9651), or visible ASCII without " , ; and \\',
      lengthMax: settings.keyLengthMax,
      format,
    },
    scope:
      (settings.tenant === 'shared'
        ? 'all callers share one space of keys'
        : 'a key belongs to the account that sends it') +
      (settings.keysPer === 'route' ? ', for each method and path' : ''),
    fingerprint: sameRequest(settings),
    waitMs: settings.waitMs,
    bodyBytesMax: settings.bodyBytesMax,
    storedBytesMax: settings.storedBytesMax,
    errorPolicy: policies[settings.errorPolicy],
    replayHeader: settings.replayHeader,
  }
}

/** What must be the same in every retry, as this server compares it. */
function sameRequest({ headers, fingerprint: { omit } }: HttpSettings<never>): string {
  const parts = [
    'method',
    'path',
    'query',
    'media type',
    'content coding',
    'body',
    ...headers.map((name) => `header ${name}`),
  ]
  const most = `${parts.slice(0, -1).join(', ')} and ${parts.at(-1)} must be the same in every retry`
  return omit.length === 0 ? most : `${most}; of a JSON body, ${omit.join(', ')} may differ`
}

/** What the type of a problem leads to. Two statuses may share one code. */
function problemPage({ header }: Rules, about: Rules['errors']): string {
  const parts = about.map(
    ({ code, status, title, detail, retryable }) =>
      `<h1 id="${escape(code)}">${status} ${escape(title)}</h1>
<p>${escape(detail)}</p>
<p>Code <code>${escape(code)}</code>. A retry with the same key ${retryable ? 'can lead to an answer' : 'leads to the same answer'}.</p>`,
  )
  return `<!doctype html>
<html lang="en"><meta charset="utf-8"><title>${escape(about[0]!.title)}</title>
${parts.join('\n')}
<p><a href="${rulesPath}">The rules of ${escape(header)}</a></p>
</html>
`
}

function routeRow(route: NonNullable<Rules['routes']>[number]): string {
  const cells =
    'protected' in route
      ? ['', 'not protected: a key is ignored', '', '', '']
      : [
          route.methods.join(', '),
          route.required ? 'yes' : 'no',
          `${route.windowSeconds} s`,
          route.fingerprint,
          route.header,
        ]
  return `<tr><td><code>${escape(route.path)}</code>${cells.map((each) => `<td>${escape(each)}`).join('')}`
}

function routesTable(routes: NonNullable<Rules['routes']>): string {
  return `<h2>Routes</h2>
<p>The first route that fits a request decides. Every other request is under the rules above.</p>
<table><tr><th>Path<th>Methods<th>Required<th>Retention window<th>Same request<th>Header
${routes.map(routeRow).join('\n')}
</table>
`
}

function page(rules: Rules): string {
  const rows = rules.errors.map(
    ({ code, status, title, detail, retryable }) =>
      `<tr id="${escape(code)}"><td>${status}<td><code>${escape(code)}</code><td>${escape(title)}. ${escape(detail)}<td>${retryable ? 'yes' : 'no'}`,
  )
  const facts: readonly (readonly [string, string])[] = [
    ['Methods', rules.methods.join(', ')],
    ['Required', rules.required ? 'yes' : 'no; a request without a key is not protected'],
    [
      'Key format',
      `${rules.keyFormat.syntax}; 1 to ${rules.keyFormat.lengthMax} characters; format: ${rules.keyFormat.format}`,
    ],
    ['Scope', rules.scope],
    [
      'Retention window',
      `${rules.windowSeconds} seconds from completion; later retries are refused, so stop retrying before`,
    ],
    ['Same request', rules.fingerprint],
    ['In progress', `a duplicate waits up to ${rules.waitMs} ms, then 409 with Retry-After`],
    ['Errors', rules.errorPolicy],
    ['Replays', `carry ${rules.replayHeader}: true`],
    [
      'Limits',
      `request bodies up to ${rules.bodyBytesMax} bytes (larger ones with a Content-Digest of sha-256), stored answers up to ${rules.storedBytesMax} bytes`,
    ],
    ...(rules.sessions ? [['Sessions', sessionsFact(rules.sessions)] as const] : []),
  ]
  return `<!doctype html>
<html lang="en"><meta charset="utf-8"><title>${escape(rules.header)}</title>
<h1>${escape(rules.header)}</h1>
<p>Send a new random key with every new request and the same key with its retries: it is processed once.</p>
<dl>${facts.map(([name, fact]) => `<dt>${escape(name)}<dd>${escape(fact)}`).join('\n')}</dl>
${rules.routes ? routesTable(rules.routes) : ''}<h2>Errors</h2>
<table><tr><th>Status<th>Code<th>Meaning<th>Retry
${rows.join('\n')}
</table>
</html>
`
}

function sessionsFact({ path, window, leaseMs }: NonNullable<Rules['sessions']>): string {
  return `register with POST ${path}; up to ${window} requests without an acknowledged answer; a session ends after ${leaseMs} ms of silence`
}

function escape(text: string): string {
  return text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`)
}

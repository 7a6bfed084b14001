// What was asked, so that a key that comes again with another request is caught. The parts are framed, so no two requests
// collide by moving a character from one part to the next. Headers that clients, proxies and retries change are left out.

import { hash } from 'node:crypto'
import { canonicalJson } from '../../core/canonical-json.ts'
import { fingerprint } from '../../core/fingerprint.ts'
import type { FingerprintedRequest, HttpSettings } from './options.ts'
import { boundaryOf, multipartDigest } from './multipart.ts'
import { parseStrictJson } from './strict-json.ts'

/** The whole body, or the claimed digest of a body that is too large to be read before the claim. */
export type FingerprintedBody = { readonly bytes: Uint8Array } | { readonly sha256: string }

/** A text that `once` takes as the fingerprint. */
export function requestFingerprint(
  settings: HttpSettings<never>,
  request: FingerprintedRequest,
  body: FingerprintedBody,
): string {
  const contentType = request.header('content-type')
  const contentEncoding = request.header('content-encoding')
  const bodyText = bodyPart(settings, request, body, contentEncoding ? undefined : contentType)
  const isBare = typeof settings.fingerprint.body === 'function' || bodyText.startsWith('multipart:')
  const frame = frameOf(settings, request, contentType, contentEncoding, isBare ? 'bare' : 'full')
  // The body is a digest in letters that JSON does not escape.
  let text = `${frame},"${bodyText}"`
  for (const name of settings.headers) {
    text += `,${JSON.stringify(name)},${JSON.stringify(request.header(name) ?? '\n')}`
  }
  return `${text}]`
}

interface Frame {
  readonly settings: HttpSettings<never>
  readonly method: string
  readonly target: string
  readonly contentType: string | undefined
  readonly contentEncoding: string | undefined
  readonly how: 'bare' | 'full'
  readonly text: string
}

// A service is asked the same with other bodies, again and again, and to compare costs a tenth of putting it together.
let last: Frame | undefined

/** What comes before the body. JSON frames and escapes, so no part can end early. */
function frameOf(
  settings: HttpSettings<never>,
  request: FingerprintedRequest,
  contentType: string | undefined,
  contentEncoding: string | undefined,
  how: 'bare' | 'full',
): string {
  const { method, target } = request
  const isLast =
    last?.target === target &&
    last.method === method &&
    last.contentType === contentType &&
    last.contentEncoding === contentEncoding &&
    last.how === how &&
    last.settings === settings
  if (isLast) return last!.text
  const { path, query } = splitTarget(target)
  const parts = [
    request.method,
    path,
    settings.fingerprint.query === 'bytes' ? query : canonicalQuery(query),
    mediaType(contentType, how),
    contentEncoding ? contentEncoding.trim().toLowerCase() : '',
  ]
  const text = JSON.stringify(parts).slice(0, -1)
  last = { settings, method, target, contentType, contentEncoding, how, text }
  return text
}

/** `type` is what the bytes are, unless they are encoded: then they say what was asked. */
function bodyPart(
  settings: HttpSettings<never>,
  request: FingerprintedRequest,
  body: FingerprintedBody,
  type: string | undefined,
): string {
  // A claimed digest and a computed digest are the same thing: a limit that is raised later changes no key.
  if ('sha256' in body) return `bytes:${body.sha256}`
  const { bytes } = body
  const how = settings.fingerprint.body
  if (typeof how === 'function') return `custom:${fingerprint(how(bytes, shown(request)))}`
  const known = (how === 'jcs' ? jsonBody(settings, type, bytes) : undefined) ?? formBody(type, bytes)
  return known ?? `bytes:${hash('sha256', bytes, 'base64')}`
}

/** For the user's function, which may take `header` by itself. */
function shown(request: FingerprintedRequest): FingerprintedRequest {
  const { method, target } = request
  return { method, target, header: (name) => request.header(name) }
}

/** The parts of a form, whatever boundary the client drew for this attempt. */
function formBody(type: string | undefined, bytes: Uint8Array): string | undefined {
  const boundary = boundaryOf(type)
  const digest = boundary === undefined ? undefined : multipartDigest(bytes, boundary)
  return digest === undefined ? undefined : `multipart:${digest}`
}

function jsonBody(settings: HttpSettings<never>, type: string | undefined, bytes: Uint8Array): string | undefined {
  if (!/^application\/(?:[^;\s]+\+)?json$/.test(mediaType(type, 'bare'))) return undefined
  const parsed = parseStrictJson(bytes)
  if (!parsed) return undefined
  try {
    for (const pointer of settings.fingerprint.omit) omit(parsed.value, pointer)
    return `jcs:${hash('sha256', canonicalJson(parsed.value), 'base64')}`
  } catch {
    return undefined // nested too deep, or a lone surrogate: the bytes say what was asked
  }
}

function omit(value: unknown, pointer: string): void {
  const names = pointer
    .slice(1)
    .split('/')
    .map((name) => name.replaceAll('~1', '/').replaceAll('~0', '~'))
  const last = names.pop()!
  let at = value
  for (const name of names)
    at = isObject(at) && Object.hasOwn(at, name) ? (at as Record<string, unknown>)[name] : undefined
  if (isObject(at) && !Array.isArray(at)) delete (at as Record<string, unknown>)[last]
}

function isObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null
}

export function splitTarget(target: string): { readonly path: string; readonly query: string } {
  const fragment = target.indexOf('#')
  const sent = fragment < 0 ? target : target.slice(0, fragment)
  const start = sent.startsWith('/') ? 0 : pathStart(sent)
  const mark = sent.indexOf('?', start)
  const end = mark < 0 ? sent.length : mark
  // http://host?x=1 is /?x=1.
  return { path: sent.slice(start, end) || '/', query: sent.slice(end) }
}

/** Where the path begins in an absolute URI: a proxy may send the same request in that form. */
function pathStart(uri: string): number {
  const authority = uri.indexOf('://')
  if (authority < 0) return 0
  const after = uri.slice(authority + 3).search(/[/?]/)
  return after < 0 ? uri.length : authority + 3 + after
}

/** The parameters in the order of their names. Those of one name stay in their order: `?tag=a&tag=b` is not `?tag=b&tag=a`. */
function canonicalQuery(query: string): string {
  const normal = query.includes('%') ? query.replace(/%[0-9a-fA-F]{2}/g, normalEscape) : query
  if (!normal.includes('&')) return normal
  const parameters = normal
    .slice(1)
    .split('&')
    .map((parameter) => {
      const equals = parameter.indexOf('=')
      return { name: equals < 0 ? parameter : parameter.slice(0, equals), parameter }
    })
  parameters.sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0))
  return `?${parameters.map(({ parameter }) => parameter).join('&')}`
}

/** RFC 3986, 6.2.2: %7e, %7E and ~ are the same. An escaped & or = is not the bare one. */
export function normalEscape(escape: string): string {
  const character = String.fromCharCode(Number.parseInt(escape.slice(1), 16))
  return /[A-Za-z0-9._~-]/.test(character) ? character : escape.toUpperCase()
}

/** Letter case and blanks do not matter, and neither does an explicit charset of UTF-8. */
function mediaType(field: string | undefined, how: 'bare' | 'full'): string {
  // As nearly every client sends it.
  if (!field || field === 'application/json') return field ?? ''
  const [type, ...parameters] = field.split(';')
  const bare = type!.trim().toLowerCase()
  if (how === 'bare' || parameters.length === 0) return bare
  const kept = parameters.map(mediaTypeParameter).filter((each) => each !== '' && each !== 'charset=utf-8')
  return [bare, ...kept.sort()].join(';')
}

function mediaTypeParameter(parameter: string): string {
  const [name, ...value] = parameter.trim().split('=')
  const lower = name!.trim().toLowerCase()
  const text = value.join('=').trim()
  if (lower !== 'charset') return value.length === 0 ? lower : `${lower}=${text}`
  return `charset=${text.replace(/^"(.*)"$/, '$1').toLowerCase()}`
}

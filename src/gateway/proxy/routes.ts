// Which route a request is on. Paths are compared in a normal form, so that `/orders//1`, `/%6frders/1`, `/x/../orders/1`,
// `/ORDERS/1` and `/orders;x=1/1`, which many services take for the same, cannot leave the rules of `/orders/*`.

import { normalEscape } from '../../http/exchange.ts'

export type PathPattern = (path: string) => boolean

/** Does the service behind the gateway distinguish `/orders` from `/ORDERS`? Express, IIS and others do not. */
export type PathCase = 'ignored' | 'significant'

/** What a rule may have for its path. A star inside of a name would be taken literally, and the rule would cover nothing. */
export const routePath: { readonly pattern: RegExp; readonly expected: string } = {
  pattern: /^(?=\/)(?:\/(?:\*|[^?#\s*/]*(?:\.\*)?))*(?:\/\*\*)?$/,
  expected:
    'a path such as /orders/*, where * is a whole segment, a final ** is any rest, and /orders.* is with or without a format',
}

/**
 * `*` is one segment, a final `**` is any rest. `/orders.*` is `/orders` with or without a format (`/orders.json`): Rails and older
 * Spring lead both to one handler, and other services do not, so a rule says it.
 */
export function pathPattern(pattern: string, pathCase: PathCase = 'ignored'): PathPattern {
  const segments = normalSegments(pattern, pathCase)
  const open = segments.at(-1) === '**'
  if (open) segments.pop()
  return (path) => {
    const asked = normalSegments(path, pathCase)
    if (open ? asked.length < segments.length : asked.length !== segments.length) return false
    return segments.every((segment, at) => fits(segment, asked[at]!))
  }
}

function fits(segment: string, asked: string): boolean {
  if (segment === '*' || segment === asked) return true
  if (!segment.endsWith('.*')) return false
  const name = segment.slice(0, -2)
  return asked === name || asked.startsWith(`${name}.`)
}

function normalSegments(path: string, pathCase: PathCase): string[] {
  const segments: string[] = []
  for (const raw of path.split('/')) {
    const segment = normalSegment(raw, pathCase)
    if (segment === '..') segments.pop()
    else if (segment !== '' && segment !== '.') segments.push(segment)
  }
  return segments
}

function normalSegment(raw: string, pathCase: PathCase): string {
  // Servlet containers route `/orders;x=1` as `/orders`.
  const [name = ''] = raw.split(';', 1)
  const segment = name.includes('%') ? name.replace(/%[0-9a-fA-F]{2}/g, normalEscape) : name
  return pathCase === 'ignored' ? decoded(segment).toLowerCase() : segment
}

/** Letters beyond ASCII have a case only when they are not escaped. What is no UTF-8 stays escaped. */
function decoded(segment: string): string {
  if (!segment.includes('%')) return segment
  try {
    return decodeURIComponent(segment)
  } catch {
    return segment
  }
}

/**
 * The path as a service reads it that takes %2F for a slash (WSGI, PHP) and %5C for one, too. Other services read them as
 * ordinary characters, so such a path is a path. Where the two readings are on different routes, neither rule can be kept.
 */
export function withEscapedSlashes(path: string): string {
  return path.includes('%') ? path.replace(/%2f|%5c/gi, '/') : path
}

// What a request must be to be passed on at all. A request that two readers could read in two ways is refused: the gateway and
// the service behind it must see one and the same request.

import type { IncomingMessage } from 'node:http'
import { splitTarget } from '../../http/exchange.ts'
import { gatewayProblems } from './problem.ts'
import type { GatewayProblem } from './problem.ts'
import { nameAsRead, nominatedBy } from './forwarded-headers.ts'

export interface RequestRules {
  readonly pseudonym: string
  readonly essential: ReadonlySet<string>
}

export type ReadRequest = { readonly target: string; readonly path: string } | { readonly refused: GatewayProblem }

export function readRequest(req: IncomingMessage, { pseudonym, essential }: RequestRules): ReadRequest {
  const { headers, method = '', url = '' } = req
  const coding = headers['transfer-encoding']
  if (method === 'TRACE' || headers.upgrade !== undefined) return { refused: gatewayProblems.notCarried }
  if (coding !== undefined && coding.toLowerCase() !== 'chunked') return { refused: gatewayProblems.notCarried }
  // Chunks came with HTTP/1.1: a 1.0 proxy in front of us does not see where such a body ends (RFC 9112, 6.1).
  if (coding !== undefined && req.httpVersion === '1.0') return { refused: gatewayProblems.badRequest }
  if (headers.via?.includes(pseudonym)) return { refused: gatewayProblems.loop }
  if (!isTarget(url) || linesOf(req, 'host') > 1) return { refused: gatewayProblems.badRequest }
  // If a Connection header removed the key or the tenant, the service would see no key, or another tenant.
  for (const name of nominatedBy(headers.connection)) {
    if (essential.has(name)) return { refused: gatewayProblems.badRequest }
  }
  if (hasAlias(req, essential)) return { refused: gatewayProblems.badRequest }
  const { path, query } = splitTarget(originForm(url))
  if (isAmbiguous(path)) return { refused: gatewayProblems.badRequest }
  return { target: path + query, path }
}

/** The authority that a client names is ignored. */
function originForm(url: string): string {
  if (url.startsWith('/')) return url
  const rest = url.replace(/^https?:\/\/[^/?#]*/i, '')
  return rest.startsWith('/') ? rest : `/${rest}`
}

/** Origin form, or the absolute form that a client sends to what it takes for a proxy. Octets that undici would not write are none. */
function isTarget(url: string): boolean {
  return /^(?:\/|https?:\/\/)[\x21-\x7e\x80-\xff]*$/i.test(url)
}

/** A second tenant or key, for services that read it as one. */
function hasAlias({ rawHeaders }: IncomingMessage, essential: ReadonlySet<string>): boolean {
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at]!
    if (name.includes('_') && !essential.has(name.toLowerCase()) && essential.has(nameAsRead(name))) return true
  }
  return false
}

/**
 * Some servers take a backslash for a slash, and others go up at `..;`: such a path would be on another route here than there.
 */
function isAmbiguous(path: string): boolean {
  return path.includes('\\') || (path.includes(';') && /\/(?:\.|%2e){1,2};/i.test(path))
}

/** Node keeps the first of several lines. The next reader may keep another one. */
export function linesOf({ rawHeaders }: IncomingMessage, name: string): number {
  let lines = 0
  for (let at = 0; at < rawHeaders.length; at += 2) {
    if (rawHeaders[at]!.length === name.length && rawHeaders[at]!.toLowerCase() === name) lines++
  }
  return lines
}

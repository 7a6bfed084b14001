// What a request must be to be passed on at all. Whatever two readers could read in two ways is refused: the gateway and the
// service behind it must see one and the same request.

import type { IncomingMessage } from 'node:http'
import { splitTarget } from '../http/request-fingerprint.ts'
import { gatewayProblems } from './gateway-problem.ts'
import type { GatewayProblem } from './gateway-problem.ts'
import { nominatedBy } from './upstream-headers.ts'

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
  if (headers.via?.includes(pseudonym)) return { refused: gatewayProblems.loop }
  if (!isTarget(url) || linesOf(req, 'host') > 1) return { refused: gatewayProblems.badRequest }
  // A key that is taken out on the way would leave the service behind us without it; the tenant, as somebody else.
  for (const name of nominatedBy(headers.connection)) {
    if (essential.has(name)) return { refused: gatewayProblems.badRequest }
  }
  const { path, query } = splitTarget(originForm(url))
  return { target: path + query, path }
}

/** The authority that a client names is not looked at. */
function originForm(url: string): string {
  if (url.startsWith('/')) return url
  const rest = url.replace(/^https?:\/\/[^/?#]*/i, '')
  return rest.startsWith('/') ? rest : `/${rest}`
}

/** Origin form, or the absolute form that a client sends to what it takes for a proxy. Octets that undici would not write are none. */
function isTarget(url: string): boolean {
  return /^(?:\/|https?:\/\/)[\x21-\x7e\x80-\xff]*$/i.test(url)
}

/** Node keeps the first of several lines. Which one the next reader keeps is anybody's guess. */
export function linesOf({ rawHeaders }: IncomingMessage, name: string): number {
  let lines = 0
  for (let at = 0; at < rawHeaders.length; at += 2) {
    if (rawHeaders[at]!.length === name.length && rawHeaders[at]!.toLowerCase() === name) lines++
  }
  return lines
}

// Which client may ask the admin server for what. A page of another site that a person has open must learn nothing and change
// nothing. The Host is checked (a name that was rebound to loopback), the Origin is checked, and a change needs the token.

import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import { isIP } from 'node:net'
import { sleep, systemClock } from '../../core/clock.ts'
import type { Clock } from '../../core/clock.ts'
import { invalidArgument } from '../../core/errors.ts'
import { createPatience } from './patience.ts'

export interface Listen {
  readonly host: string
  readonly port: number
}

export interface Refusal {
  readonly status: number
  readonly message: string
}

export interface Guard {
  /** For everything: does the request come from a page of ours, or from a program? */
  refuse(request: IncomingMessage): Refusal | undefined
  /** For what shows keys: the token is needed where other machines can ask. */
  refuseReading(request: IncomingMessage): Promise<Refusal | undefined>
  /** For what changes an entry or shows a full answer: always with the token. */
  refuseChange(request: IncomingMessage): Promise<Refusal | undefined>
}

/** On every answer. Nothing inline is run, nothing is loaded from elsewhere, no page can frame it, nothing is cached. */
export const securityHeaders: Readonly<Record<string, string>> = {
  'Content-Security-Policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; worker-src 'self'; " +
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  'X-Content-Type-Options': 'nosniff',
  'Referrer-Policy': 'no-referrer',
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cross-Origin-Resource-Policy': 'same-origin',
  'Cache-Control': 'no-store',
}

// 16 characters of a random alphabet are at least 64 bits: beyond guessing over a network.
const tokenLengthMin = 16

export function checkListen(listen: Listen, token: string | undefined): void {
  if (token !== undefined && token.length < tokenLengthMin) {
    throw invalidArgument(
      `admin: expected token to have at least ${tokenLengthMin} characters, got ${token.length}. ` +
        'openssl rand -hex 16 makes one.',
    )
  }
  if (!isLoopback(listen.host) && token === undefined) {
    throw invalidArgument(
      `admin: ${listen.host} can be reached from other machines, and no token is given: anybody could read the keys. ` +
        'Give a token (--admin-token-file or ONCEONLY_ADMIN_TOKEN), or listen on 127.0.0.1.',
    )
  }
}

export function createGuard(listenHost: string, token: string | undefined, clock: Clock = systemClock): Guard {
  const local = isLoopback(listenHost)
  // Not the port: a tunnel changes it. What must not pass is a name that another party owns.
  const names = new Set(['127.0.0.1', 'localhost', '[::1]', listenHost.toLowerCase()])
  const refuseToken = tokenRefusal(token, clock)
  return {
    refuse(request) {
      // Node keeps the first of two lines. A proxy in front may have checked the other.
      if ((request.headersDistinct['host']?.length ?? 0) > 1)
        return { status: 400, message: 'There are two Host lines.' }
      const host = request.headers.host?.toLowerCase() ?? ''
      // Elsewhere the name that people use is not known here, and the token does what this check does on loopback.
      if (local && !names.has(host.replace(/:\d+$/, '')))
        return { status: 421, message: 'This Host is not served here.' }
      const { origin } = request.headers
      const site = request.headers['sec-fetch-site']
      const foreign = (origin !== undefined && hostOf(origin) !== host) || site === 'cross-site' || site === 'same-site'
      // A link on another site may lead a person to the page. Only the page itself may ask for more.
      const visit = origin === undefined && request.headers['sec-fetch-mode'] === 'navigate' && request.method === 'GET'
      return foreign && !visit ? { status: 403, message: 'A page of another origin asked.' } : undefined
    },
    refuseReading: async (request) => (local ? undefined : refuseToken(request)),
    refuseChange: refuseToken,
  }
}

function tokenRefusal(token: string | undefined, clock: Clock): Guard['refuseChange'] {
  const matches = tokenTest(token)
  const patience = createPatience(clock)
  const wrong = { status: 401, message: 'The token is missing or wrong.' }
  return async (request) => {
    if (token === undefined) {
      return { status: 403, message: 'This dashboard only shows. Start it with a token to allow changes.' }
    }
    const given = /^Bearer (.+)$/i.exec(request.headers.authorization ?? '')?.[1]
    if (given === undefined) return wrong
    const address = request.socket.remoteAddress ?? ''
    const waitMs = patience.waitMs(address)
    if (waitMs === undefined)
      return { status: 429, message: 'Too many wrong tokens came from there. Try again in a while.' }
    if (waitMs > 0) await sleep(clock, waitMs, { background: 'background' })
    if (matches(given)) patience.right(address)
    else patience.wrong(address)
    return matches(given) ? undefined : wrong
  }
}

function hostOf(origin: string): string {
  return URL.canParse(origin) ? new URL(origin).host.toLowerCase() : 'null'
}

// Digests have one length and are compared in constant time, so the time for a wrong token says nothing about the right one.
function tokenTest(token: string | undefined): (given: string) => boolean {
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest()
  const expected = digest(token ?? '')
  return (given) => timingSafeEqual(digest(given), expected)
}

function isLoopback(host: string): boolean {
  const bare = host.replace(/^\[|\]$/g, '')
  return bare === 'localhost' || bare === '::1' || (isIP(bare) === 4 && bare.startsWith('127.'))
}

// Connections of the sender. An address is checked when a connection is opened, and the address that was checked is the one that is
// connected to: a name that answers differently a moment later (DNS rebinding) gains nothing. Redirects are not followed by undici.

import { lookup as systemLookup } from 'node:dns'
import type { LookupAddress } from 'node:dns'
import { isIP } from 'node:net'
import type { LookupFunction } from 'node:net'
import { Agent, buildConnector } from 'undici'
import { invalidArgument } from '../../core/errors.ts'
import type { AddressGuard } from './addresses.ts'

/** Resolves a name to all of its addresses. */
export type LookupAll = (
  hostname: string,
  options: { readonly all: true },
  callback: (error: Error | null, addresses: readonly LookupAddress[]) => void,
) => void

export interface GuardedAgentOptions {
  readonly guard: AddressGuard
  /** How long it may take to connect. */
  readonly connectMs: number
  readonly lookup?: LookupAll
}

/** The address of an endpoint is none that a webhook may be sent to. */
export class AddressRefusedError extends Error {
  override readonly name = 'AddressRefusedError'
  readonly code = 'ADDRESS_REFUSED'

  constructor(host: string, address: string) {
    const which = host === address ? host : `${host} is ${address}, which`
    super(`${which} is not a public address. Allow it with the option allow, if webhooks may be sent there.`)
  }
}

export function guardedAgent({ guard, connectMs, lookup = systemLookup as LookupAll }: GuardedAgentOptions): Agent {
  // Of several addresses each may be tried. So one that is refused refuses the name.
  const checkedLookup: LookupFunction = (hostname, { all }, callback) => {
    lookup(hostname, { all: true }, (error, addresses) => {
      const refused = addresses?.find(({ address }) => guard.refuses(hostname, address))
      const failed = error ?? (refused && new AddressRefusedError(hostname, refused.address))
      if (failed || addresses.length === 0) return callback(failed ?? new Error(`${hostname} has no address`), [])
      if (all) return callback(null, [...addresses])
      callback(null, addresses[0]!.address, addresses[0]!.family)
    })
  }
  const connect = buildConnector({ timeout: connectMs, lookup: checkedLookup })
  return new Agent({
    // One request at a time on a connection: with more, one that breaks would break the others.
    pipelining: 1,
    connect(options, callback) {
      // Node looks up names only.
      const host = literalIn(options.hostname)
      if (isIP(host) && guard.refuses(host, host)) return callback(new AddressRefusedError(host, host), null)
      connect(options, callback)
    },
  })
}

/** A URL has brackets around an IPv6 address. */
function literalIn(hostname: string): string {
  return hostname.replace(/^\[(.*)\]$/, '$1')
}

/**
 * The URL of an endpoint as it is kept, or an error that says what is wrong with it. `URL` reads every spelling of an address (octal,
 * hexadecimal, short) as the address that it is.
 */
export function checkedUrl(given: unknown, { guard, httpsOnly }: { guard: AddressGuard; httpsOnly: boolean }): string {
  const wrong = (expected: string): never => {
    throw invalidArgument(`webhook endpoint: expected url to be ${expected}, got ${JSON.stringify(given)}`)
  }
  if (typeof given !== 'string' || given.length > urlCharactersMax || !URL.canParse(given)) {
    return wrong(`an absolute URL of at most ${urlCharactersMax} characters`)
  }
  const url = new URL(given)
  if (url.protocol !== 'https:' && (httpsOnly || url.protocol !== 'http:')) {
    return wrong(httpsOnly ? 'an https URL' : 'an http or https URL')
  }
  // A password in a URL ends up in logs. A receiver knows the sender by its signature.
  if (url.username !== '' || url.password !== '') {
    throw invalidArgument('webhook endpoint: expected url to be without a user name and a password, got one with them')
  }
  const host = literalIn(url.hostname)
  if (isIP(host) && guard.refuses(host, host)) return wrong('a URL whose address is public or allowed')
  url.hash = ''
  return url.href
}

const urlCharactersMax = 2_000

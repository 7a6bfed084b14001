// What a person found out about an effect in doubt, read from text: a JSON value, a failure, or an HTTP response as `curl -i` prints
// it. The command line and the dashboard take the same forms. Every retry gets what is read here, so nothing is guessed.

import { STATUS_CODES } from 'node:http'
import { FinalError, invalidArgument } from '../core/errors.ts'
import type { Key } from '../core/key.ts'
import { asResolved, encodeOutcome } from '../core/outcome.ts'
import type { Outcome } from '../core/outcome.ts'
import type { Entry, Mending } from '../core/store.ts'
import { isGatewayScope } from './gateway-key.ts'
import { encodeAnswer, foundOptions, headersToKeep } from '../http/exchange.ts'
import type { Answer, HeaderLine } from '../http/exchange.ts'

/** One of: a value as JSON, the message of a failure, a failure with data as JSON, a response, or that there is no value. */
export type FoundText =
  | { readonly value: string }
  | { readonly failure: string }
  | { readonly failureJson: string }
  | { readonly response: Uint8Array }
  | { readonly done: true }

export interface Found {
  readonly mending: Mending
  /** In a few words, for the question before the change. */
  readonly what: string
}

/** The result that the key gets. It is kept for as long as the entry says, as if its own attempt had settled it. */
export function foundIn(entry: Entry, text: FoundText): Found {
  refuseOtherThanResponse(entry.key, text)
  const { outcome, what } = outcomeIn(text)
  const encoded = encodeOutcome(outcome, undefined)
  if (encoded.outcome.kind === 'not-stored') {
    throw invalidArgument(`resolve: the value cannot be stored: ${encoded.outcome.reason}`)
  }
  const retention = {
    keepMs: entry.expiresAtMs - entry.leaseUntilMs,
    tombstoneMs: entry.forgottenAtMs - entry.expiresAtMs,
  }
  return { mending: { resolve: asResolved(encoded.bytes, 'any'), retention }, what }
}

/** A replay of anything but a response would be a 500. */
function refuseOtherThanResponse(key: Key, text: FoundText): void {
  if (!isGatewayScope(key.scope) || 'response' in text) return
  throw invalidArgument(
    `resolve: ${key.scope} holds keys of a gateway, whose retries expect an HTTP response. Give the response in full: ` +
      'status line, headers, an empty line and the body, as curl -i prints it.',
  )
}

function outcomeIn(text: FoundText): { outcome: Outcome; what: string } {
  if ('done' in text) return { outcome: { kind: 'value', value: undefined }, what: 'done, without a value' }
  if ('failure' in text) return failed(new FinalError(text.failure))
  if ('failureJson' in text) return failed(failureIn(text.failureJson))
  if ('value' in text) {
    return {
      outcome: { kind: 'value', value: jsonIn(text.value, 'the value') },
      what: `the value ${shown(text.value)}`,
    }
  }
  const answer = readResponse(text.response)
  const left = answer.headers
    .filter((line) => !headersToKeep(answer, foundOptions).includes(line))
    .map(([name]) => name)
  const leftOut = left.length === 0 ? '' : `, without ${left.join(', ')}, which are never replayed`
  const value = encodeAnswer(answer, foundOptions)
  return {
    outcome: { kind: 'value', value },
    what: `the HTTP response ${answer.status} with a body of ${answer.body.length} bytes${leftOut}`,
  }
}

function failed(error: FinalError): { outcome: Outcome; what: string } {
  return { outcome: { kind: 'failure', error }, what: `the failure ${shown(error.message)}` }
}

function failureIn(json: string): FinalError {
  const { message, data } = (jsonIn(json, 'the failure') ?? {}) as { message?: unknown; data?: unknown }
  if (typeof message !== 'string' || message === '') {
    throw invalidArgument('resolve: expected the failure to be { "message": TEXT, "data": anything or absent }')
  }
  return new FinalError(message, data === undefined ? {} : { data })
}

function jsonIn(text: string, what: string): unknown {
  try {
    return JSON.parse(text) as unknown
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error)
    throw invalidArgument(`resolve: expected ${what} to be JSON, such as '{"receipt":"r1"}' or '"text"': ${why}`)
  }
}

const shownMax = 60

function shown(text: string): string {
  return text.length > shownMax ? `${text.slice(0, shownMax)}…` : text
}

/**
 * Status line, header lines, an empty line, and the body to the last byte. Lines end with LF or CRLF. The length is counted. A
 * Content-Length that differs from the body is refused, as the body is then cut, or an editor has added a line end.
 */
export function readResponse(bytes: Uint8Array): Answer {
  const text = Buffer.from(bytes).toString('latin1')
  const end = /\r?\n\r?\n/.exec(text)
  if (!end) throw wrong('an empty line between the headers and the body (also where there is no body)')
  const [first = '', ...lines] = text.slice(0, end.index).split(/\r?\n/)
  const [, digits, message = ''] = /^HTTP(?:\/\d(?:\.\d)?)? (\d{3})(?: ([\t\x20-\x7e\x80-\xff]*))?$/.exec(first) ?? []
  const status = Number(digits)
  if (digits === undefined || status < 200 || status > 599) {
    throw wrong(
      `its first line to be such as "HTTP/1.1 201 Created", with a status from 200 to 599, got ${quoted(first)}`,
    )
  }
  const headers = lines.map(headerIn)
  const body = bytes.subarray(end.index + end[0].length)
  checkBody(status, headers, body)
  const own = message.trim()
  return { status, ...(own !== '' && own !== STATUS_CODES[status] && { message: own }), headers, body }
}

function headerIn(line: string): HeaderLine {
  const [, name, value] = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t\x20-\x7e\x80-\xff]*)$/.exec(line) ?? []
  if (name === undefined || value === undefined) throw wrong(`"Name: value" in every header line, got ${quoted(line)}`)
  return [name, withoutBlanks(value)]
}

/** Blanks of HTTP only: `trim` would also take the last byte of a UTF-8 "à". A pattern for both ends needs quadratic time. */
function withoutBlanks(text: string): string {
  const isBlank = (at: number): boolean => text[at] === ' ' || text[at] === '\t'
  let from = 0
  let to = text.length
  while (from < to && isBlank(from)) from++
  while (to > from && isBlank(to - 1)) to--
  return text.slice(from, to)
}

function checkBody(status: number, headers: readonly HeaderLine[], body: Uint8Array): void {
  if ((status === 204 || status === 304) && body.length > 0) {
    throw wrong(`a ${status} to have no body, got ${body.length} bytes`)
  }
  const length = headers.find(([name]) => name.toLowerCase() === 'content-length')?.[1]
  if (length === undefined || length === String(body.length)) return
  throw wrong(
    `a body of Content-Length ${length}, got ${body.length} bytes. Remove the line end that an editor added, or the header`,
  )
}

function wrong(expected: string): Error {
  return invalidArgument(
    `resolve: the response cannot be read: expected ${expected}. It is written as curl -i prints it.`,
  )
}

function quoted(line: string): string {
  return JSON.stringify(shown(line))
}

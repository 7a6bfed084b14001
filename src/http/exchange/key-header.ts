// Reads the Idempotency-Key field: a structured-field string (RFC 9651), or bare visible ASCII as every real SDK sends it. The
// two forms of one value are one key. One pass, no backtracking. What cannot be read is refused, never ignored: a request whose
// key was dropped would run unprotected.

import type { HttpSettings } from './options.ts'

export type KeyReading = { readonly key: string } | { readonly refused: string }

type KeyRules = Pick<HttpSettings<never>, 'parse' | 'keyFormat' | 'keyLengthMax'>

const uuid = /^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$/
// Visible ASCII without what would make it a list, a parameter or half a string.
const bare = /^[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]+$/

/** Two lines are refused even when they are the same: a proxy or a client is confused, and either line may be meant. */
export function readKey(lines: readonly string[], rules: KeyRules): KeyReading {
  if (lines.length !== 1) return { refused: 'the header was sent more than once' }
  const field = trim(lines[0]!)
  if (field === '') return { refused: 'it is empty' }
  const key = field.startsWith('"')
    ? readString(field)
    : rules.parse === 'lenient' && bare.test(field)
      ? field
      : undefined
  if (key === undefined) return { refused: expected(rules) }
  if (key === '') return { refused: 'it is empty' }
  if (key.length > rules.keyLengthMax) return { refused: `it is longer than ${rules.keyLengthMax} characters` }
  if (rules.keyFormat === 'uuid' && !uuid.test(key)) return { refused: 'it is not a UUID' }
  if (typeof rules.keyFormat === 'function' && !rules.keyFormat(key)) {
    return { refused: 'it does not have the format that this server asks for' }
  }
  return { key }
}

function expected(rules: KeyRules): string {
  return rules.parse === 'strict'
    ? 'it is not a string in double quotes'
    : 'it is neither a string in double quotes nor visible ASCII without " , ; and \\'
}

/** Optional white space around a field value is no part of it (RFC 9110, 5.5). */
export function trim(field: string): string {
  let start = 0
  let end = field.length
  while (start < end && isBlank(field.charCodeAt(start))) start++
  while (end > start && isBlank(field.charCodeAt(end - 1))) end--
  return field.slice(start, end)
}

function isBlank(code: number): boolean {
  return code === 0x20 || code === 0x09
}

/** RFC 9651, 4.2.5, with the parameters an Item may have. None is defined for this field, so parameters are read and ignored. */
function readString(field: string): string | undefined {
  let value = ''
  for (let at = 1; at < field.length; at++) {
    const code = field.charCodeAt(at)
    if (code === 0x22) return endsWithParameters(field.slice(at + 1)) ? value : undefined
    if (code === 0x5c) {
      const escaped = field[++at]
      if (escaped !== '"' && escaped !== '\\') return undefined
      value += escaped
    } else if (code < 0x20 || code > 0x7e) {
      return undefined
    } else {
      value += field[at]
    }
  }
  return undefined
}

// ;key or ;key=bare-item, where an item is a number, a string, a token, bytes, a boolean, a date or a display string. Each
// alternative begins with another character and none nests a repetition, so the time is linear.
const parameter =
  /; *[a-z*][a-z0-9_.*-]*(?:=(?:"(?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"|[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*|@?-?[0-9]{1,15}(?:\.[0-9]{1,3})?|\?[01]|:[A-Za-z0-9+/=]*:|%"(?:[\x20-\x21\x23-\x24\x26-\x7e]|%[0-9a-f]{2})*"))?/y

export function endsWithParameters(rest: string): boolean {
  let at = 0
  while (at < rest.length) {
    parameter.lastIndex = at
    if (!parameter.test(rest)) return false
    at = parameter.lastIndex
  }
  return true
}

// The outcome of an effect, as bytes: one letter for the kind, then the content. A store keeps these bytes and never looks
// inside. What cannot be read back is an error, never "nothing there": the effect behind it did run.

import { isInvalidDate } from './canonical-json.ts'
import { FinalError, OnceError } from './errors.ts'
import { describeKey } from './key.ts'
import type { Key } from './key.ts'

/**
 * Turns values into bytes and back, for what JSON cannot hold (BigInt, Date, Map) or must not show (encryption). It gets everything
 * that is stored of a call: what an effect or a step returned, an operation's input, of a failure its message and data, and HTTP
 * responses. What onceonly itself hands to it is plain JSON, and bytes are handed to it as a base64 string. What your effects return is handed
 * to it as it is. Every caller gets `decode(encode(value))`, the first one too. docs/codecs.md has an example.
 */
export interface Codec {
  encode(value: unknown): Uint8Array
  decode(bytes: Uint8Array): unknown
}

export type Outcome<T = unknown> =
  | { readonly kind: 'value'; readonly value: T }
  | { readonly kind: 'failure'; readonly error: FinalError }
  /** The effect ran, but its value could not be stored. The reason is kept. */
  | { readonly kind: 'not-stored'; readonly reason: string }

/** The letter that each kind of stored outcome begins with. */
const letters = {
  json: 'j',
  bytes: 'b',
  undefined: 'u',
  codec: 'c',
  codecBytes: 'd',
  failure: 'f',
  codecFailure: 'e',
  notStored: 'n',
  resolved: 'r',
} as const

/**
 * Encodes the outcome, and returns with it what every replay will decode, so that the first caller is given the same. A value
 * that cannot be stored becomes `not-stored`. This never throws, as the effect has already taken place.
 */
export function encodeOutcome(outcome: Outcome, codec: Codec | undefined): { bytes: Uint8Array; outcome: Outcome } {
  try {
    return encode(outcome, codec)
  } catch (error) {
    const reason = (error instanceof Error ? error.message : String(error)).slice(0, 500)
    return { bytes: taggedText('notStored', reason), outcome: { kind: 'not-stored', reason } }
  }
}

/**
 * The outcome that a person gave to a key, with the version of the code it is for: the entry has the version of the attempt that
 * failed. `any`: every version replays it as it is.
 */
export function asResolved(encoded: Uint8Array, version: number | 'any'): Uint8Array {
  return Buffer.concat([taggedText('resolved', `${version};`), encoded])
}

/** The version that a stored outcome is for. `claimed` is the version of the entry. */
export function versionOf(stored: Uint8Array, claimed: number): number | 'any' {
  if (!isMarked(stored)) return claimed
  const version = Buffer.from(stored.subarray(1, stored.indexOf(markEnd))).toString('latin1')
  return version === 'any' ? version : Number(version)
}

/** The outcome as its attempt would have stored it: without the mark that a person gave it. */
export function withoutMark(stored: Uint8Array): Uint8Array {
  return isMarked(stored) ? stored.subarray(stored.indexOf(markEnd) + 1) : stored
}

const markEnd = ';'.charCodeAt(0)

function isMarked(stored: Uint8Array): boolean {
  return stored[0] === letters.resolved.charCodeAt(0)
}

export function decodeOutcome(bytes: Uint8Array, codec: Codec | undefined, key: Key): Outcome {
  try {
    return decode(bytes, codec)
  } catch (cause) {
    throw new OnceError('OUTCOME_UNREADABLE', {
      message:
        `The outcome stored for ${describeKey(key)} cannot be read: ${cause instanceof Error ? cause.message : String(cause)}. ` +
        'The effect has run and was not run again. Restore the entry, give the codec that wrote it, or forget the key (onceonly keys forget).',
      cause,
    })
  }
}

function encode(outcome: Outcome, codec: Codec | undefined): { bytes: Uint8Array; outcome: Outcome } {
  if (outcome.kind === 'failure') {
    const { message, data } = outcome.error
    const failure = data === undefined ? { message } : { message, data }
    if (codec) {
      const bytes = tagged('codecFailure', encodedBy(codec, failure))
      return { bytes, outcome: decode(bytes, codec) }
    }
    const text = storableJson(failure)
    return { bytes: taggedText('failure', text), outcome: { kind: 'failure', error: failureFrom(JSON.parse(text)) } }
  }
  if (outcome.kind === 'not-stored') return { bytes: taggedText('notStored', outcome.reason), outcome }
  const { value } = outcome
  if (value === undefined) return { bytes: taggedText('undefined', ''), outcome }
  if (codec || value instanceof Uint8Array) {
    const bytes = codec ? byCodec(codec, value) : tagged('bytes', value as Uint8Array)
    return { bytes, outcome: decode(bytes, codec) }
  }
  // Mostly it is plain: then a copy is what JSON.parse would make of its text, and costs a third of that.
  const copy = plainCopy(value, 0)
  if (copy !== notPlain)
    return { bytes: taggedText('json', JSON.stringify(copy)), outcome: { kind: 'value', value: copy } }
  const text = storableJson(value)
  return { bytes: taggedText('json', text), outcome: { kind: 'value', value: JSON.parse(text) as unknown } }
}

// JSON makes an object of indexes of bytes. A codec built on it would store them and never give bytes back.
function byCodec(codec: Codec, value: unknown): Uint8Array {
  if (!(value instanceof Uint8Array)) return tagged('codec', encodedBy(codec, value))
  return tagged('codecBytes', encodedBy(codec, Buffer.from(value).toString('base64')))
}

// A codec is the user's. One that is asynchronous, or returns text, would be stored as nothing or as zeros, and found out by a retry.
function encodedBy(codec: Codec, value: unknown): Uint8Array {
  const bytes: unknown = codec.encode(value)
  if (Object.prototype.toString.call(bytes) === '[object Uint8Array]') return bytes as Uint8Array
  if (bytes instanceof Promise) bytes.catch(() => {})
  throw new Error(`encode of the codec returned ${nameOf(bytes)}, not a Uint8Array`)
}

function decodedBy(codec: Codec, bytes: Uint8Array): unknown {
  const value = codec.decode(bytes)
  if (!(value instanceof Promise)) return value
  value.catch(() => {})
  throw new Error('decode of the codec returned a Promise, not the value: a codec is synchronous')
}

function nameOf(value: unknown): string {
  if (typeof value !== 'object' || value === null) return value === null ? 'null' : `a ${typeof value}`
  return `a ${value.constructor?.name || 'object'}`
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

function decode(marked: Uint8Array, codec: Codec | undefined): Outcome {
  const stored = withoutMark(marked)
  const content = stored.subarray(1)
  switch (String.fromCharCode(stored[0] ?? 0)) {
    case letters.json:
      return { kind: 'value', value: JSON.parse(utf8.decode(content)) as unknown }
    case letters.bytes:
      return { kind: 'value', value: new Uint8Array(content) }
    case letters.undefined:
      return { kind: 'value', value: undefined }
    case letters.codec:
      if (!codec) throw new Error('it was written with a codec, and none is given')
      return { kind: 'value', value: decodedBy(codec, content) }
    case letters.codecBytes:
      if (!codec) throw new Error('it was written with a codec, and none is given')
      return { kind: 'value', value: bytesFrom(decodedBy(codec, content)) }
    case letters.failure:
      return { kind: 'failure', error: failureFrom(JSON.parse(utf8.decode(content))) }
    case letters.codecFailure:
      if (!codec) throw new Error('it was written with a codec, and none is given')
      return { kind: 'failure', error: failureFrom(decodedBy(codec, content)) }
    case letters.notStored:
      return { kind: 'not-stored', reason: utf8.decode(content) }
    default:
      throw new Error(`it begins with byte ${stored[0] ?? 'none'}, which no version of onceonly writes`)
  }
}

function bytesFrom(decoded: unknown): unknown {
  return typeof decoded === 'string' ? new Uint8Array(Buffer.from(decoded, 'base64')) : decoded
}

/** What `onThrow: 'store'` keeps of an error that is no FinalError. */
export function failureOf(thrown: unknown): FinalError {
  return thrown instanceof FinalError
    ? thrown
    : new FinalError(thrown instanceof Error ? thrown.message : String(thrown), { cause: thrown })
}

/** What tools that do not have the codec of a service show in the place of what it wrote. */
export const sealedWords = 'sealed by the codec of the service'

/** The codec of such a tool: what a codec wrote is bytes, and stays what it is. Nothing new is encoded. */
export const opaqueCodec: Codec = {
  encode() {
    throw new Error('Bug! A value was to be stored without the codec of its service.')
  },
  decode: (bytes) => bytes,
}

function failureFrom(decoded: unknown): FinalError {
  if (decoded instanceof Uint8Array) return new FinalError(sealedWords)
  const failure = decoded as { readonly message?: unknown; readonly data?: unknown } | null
  if (typeof failure?.message !== 'string') throw new Error('it holds a failure without a message')
  return new FinalError(failure.message, { data: failure.data })
}

function taggedText(kind: keyof typeof letters, text: string): Uint8Array {
  return Buffer.from(letters[kind] + text)
}

function tagged(kind: keyof typeof letters, content: Uint8Array): Uint8Array {
  const bytes = Buffer.allocUnsafe(1 + content.length)
  bytes[0] = letters[kind].charCodeAt(0)
  bytes.set(content, 1)
  return bytes
}

/**
 * The JSON text of a value, or a throw that names what JSON.stringify would drop or change: it leaves out functions and symbols, and
 * writes NaN and an invalid Date as null. What has its own JSON form (Date) becomes that form.
 */
export function storableJson(value: unknown): string {
  // Mostly there is nothing to refuse, and without a replacer JSON.stringify is several times faster.
  const copy = plainCopy(value, 0)
  if (copy !== notPlain) return JSON.stringify(copy)
  const text = JSON.stringify(value, function (this: Readonly<Record<string, unknown>>, name, member: unknown) {
    if (typeof member === 'function' || typeof member === 'symbol')
      throw new Error(`a ${typeof member}${at(name)} cannot be stored`)
    if (typeof member === 'bigint') throw new Error(`a BigInt${at(name)} cannot be stored as JSON; give a codec`)
    if ((typeof member === 'number' || member instanceof Number) && !Number.isFinite(Number(member)))
      throw new Error(`${member}${at(name)} cannot be stored as JSON: return null, or a string`)
    // Its toJSON has made it null by now. The object that holds it still has the Date.
    if (member === null && isInvalidDate(this[name]))
      throw new Error(`an invalid Date${at(name)} cannot be stored as JSON: return null, or a valid Date`)
    if (typeof member === 'object' && member !== null) refuseEmptied(member, at(name))
    return member
  })
  if (text === undefined) throw new Error(`a ${typeof value} cannot be stored`)
  return text
}

const notPlain = Symbol('not plain')

/**
 * What JSON.parse makes of the JSON text of a value in which JSON drops and changes nothing. `notPlain` when that takes a closer look.
 * It is made by itself, and not beside the text, so that text and copy are of the same moment: a getter may return another value each time.
 */
function plainCopy(value: unknown, depth: number): unknown {
  // -0 has no JSON.
  if (typeof value === 'number') return Number.isFinite(value) ? value + 0 : notPlain
  if (typeof value === 'string' || typeof value === 'boolean' || value === null) return value
  if (typeof value !== 'object' || depth > 50 || 'toJSON' in value) return notPlain
  if (Array.isArray(value)) return plainArray(value, depth)
  const prototype: unknown = Object.getPrototypeOf(value)
  if (prototype !== Object.prototype && prototype !== null) return notPlain
  const copy: Record<string, unknown> = {}
  for (const name of Object.keys(value)) {
    const member = plainCopy((value as Record<string, unknown>)[name], depth + 1)
    // To set `__proto__` would not make a member of it.
    if (member === notPlain || name === '__proto__') return notPlain
    copy[name] = member
  }
  return copy
}

function plainArray(value: readonly unknown[], depth: number): unknown {
  const copy: unknown[] = []
  // By index: a hole is no value, and is seen only so.
  for (let index = 0; index < value.length; index++) {
    const member = plainCopy(value[index], depth + 1)
    if (member === notPlain) return notPlain
    copy.push(member)
  }
  return copy
}

/** What JSON.stringify writes as `{}`, or as an object of indexes, and what to return instead. */
const emptied: readonly (readonly [is: (value: object) => boolean, name: string, instead: string])[] = [
  [(value) => value instanceof Map, 'Map', 'return [...map], or give a codec'],
  [(value) => value instanceof Set, 'Set', 'return [...set], or give a codec'],
  [(value) => value instanceof WeakMap || value instanceof WeakSet, 'WeakMap or WeakSet', 'return its data'],
  [(value) => value instanceof Promise, 'Promise', 'await it first'],
  [(value) => value instanceof RegExp, 'RegExp', 'return its source'],
  [(value) => value instanceof Error, 'Error', 'throw it, or return its message'],
  [(value) => value instanceof URLSearchParams, 'URLSearchParams', 'return its toString()'],
  [(value) => value instanceof Response, 'Response', 'return await response.json(), or text()'],
  [(value) => value instanceof Request, 'Request', 'return its data'],
  [(value) => value instanceof Headers, 'Headers', 'return [...headers]'],
  [(value) => value instanceof Blob, 'Blob', 'return its bytes by themselves, as a Uint8Array'],
  [(value) => value instanceof FormData, 'FormData', 'return [...formData]'],
  [
    (value) => value instanceof ArrayBuffer || value instanceof SharedArrayBuffer || ArrayBuffer.isView(value),
    'buffer',
    'return a Uint8Array by itself, or a base64 string',
  ],
]

/** What has a toJSON says itself what is stored: by the time a replacer sees it, that is done. */
function refuseEmptied(member: object, where: string): void {
  const found = emptied.find(([is]) => is(member))
  if (!found && !isEmptied(member)) return
  if (!found)
    throw new Error(`${nameOf(member)}${where} cannot be stored as JSON, which leaves nothing of it: return its data`)
  const [, name, instead] = found
  const own = name === 'buffer' ? member.constructor.name : name
  throw new Error(`a ${own}${where} cannot be stored as JSON: ${instead}`)
}

/**
 * An instance without a member that JSON sees: a Response of a library, a stream, a generator, a Map of another realm. A plain object,
 * also one of another realm, may be empty.
 */
function isEmptied(value: object): boolean {
  if (Array.isArray(value) || Object.keys(value).length > 0) return false
  if (value instanceof String || value instanceof Number || value instanceof Boolean) return false
  const prototype: unknown = Object.getPrototypeOf(value)
  return prototype !== null && Object.getPrototypeOf(prototype) !== null
}

function at(name: string): string {
  return name === '' ? '' : ` in "${name}"`
}

// The arguments of a command, by the platform's own parser. An unknown argument is refused at once, with the nearest known
// name: a misspelt option that is silently ignored would be a default in production. Wrong arguments are INVALID_ARGUMENT,
// which main.ts ends with exit code 2.

import { parseArgs } from 'node:util'
import { invalidArgument } from '../core/errors.ts'
import { key } from '../core/key.ts'
import type { Key } from '../core/key.ts'
import { aReason, checkGiven, oneOf } from '../core/options.ts'

/** How the text of one option becomes a value. */
export interface Option<Value> {
  /** 'boolean' takes no value: it is given or not. */
  readonly type: 'string' | 'boolean'
  /** What is expected, for the message: "a duration such as 30s". */
  readonly expected: string
  /** Undefined when the text is not what is expected. */
  readonly parse: (text: string) => Value | undefined
  /** What it is in a JSON file, as JSON Schema says it. */
  readonly json: Readonly<Record<string, unknown>>
}

export type Options = Readonly<Record<string, Option<unknown>>>

export type Values<Given extends Options> = {
  readonly [Name in keyof Given]?: Given[Name] extends Option<infer Value> ? Value : never
}

export interface CommandLine<Given extends Options> {
  /** As the operator types it: "keys list". */
  readonly command: string
  /** What --help prints. */
  readonly help: string
  readonly options: Given
  /** The names of the operands that must follow: ['SCOPE', 'ID']. None unless given. */
  readonly operands?: readonly string[]
  readonly args: readonly string[]
}

export interface ParsedCommand<Given extends Options> {
  readonly values: Values<Given>
  /** As many as there are names of operands. */
  readonly operands: readonly string[]
}

/** Undefined when --help was given, and the help has been printed. The command is then done, with 0. */
export function parseCommand<const Given extends Options>(line: CommandLine<Given>): ParsedCommand<Given> | undefined {
  const known: Options = { ...line.options, help: flag }
  const { tokens } = parseArgs({
    args: [...line.args],
    options: {
      ...Object.fromEntries(Object.entries(known).map(([name, { type }]) => [name, { type }])),
      help: { type: 'boolean', short: 'h' },
    },
    strict: false,
    allowPositionals: true,
    tokens: true,
  })
  const given = tokens.filter((token) => token.kind === 'option')
  // Before any check: an operator who asks for help has often just mistyped something.
  if (given.some(({ name }) => name === 'help')) {
    console.log(line.help.trimEnd())
    return undefined
  }
  const values: Record<string, unknown> = {}
  for (const token of given) {
    if (Object.hasOwn(values, token.name)) throw wrong(line.command, `${token.rawName} is given twice`)
    values[token.name] = valueOf(line.command, known, token)
  }
  const operands = tokens.filter((token) => token.kind === 'positional').map((token) => token.value)
  checkOperands(line.command, line.operands ?? [], operands)
  return { values: values as Values<Given>, operands }
}

interface OptionToken {
  readonly name: string
  readonly rawName: string
  readonly value: string | undefined
  readonly inlineValue: boolean | undefined
}

function valueOf(command: string, known: Options, { name, rawName, value, inlineValue }: OptionToken): unknown {
  if (!Object.hasOwn(known, name)) {
    const names = Object.fromEntries(Object.keys(known).map((each) => [`--${each}`, () => undefined]))
    checkGiven(`onceonly ${command}`, { [rawName]: value }, names)
  }
  const { type, expected, parse } = known[name]!
  if (type === 'boolean') {
    if (value === undefined) return true
    throw wrong(command, `${rawName} takes no value, got ${JSON.stringify(value)}`)
  }
  // "--store --json" is a forgotten value, not a strange store name. A value that begins with a dash is given as --name=-value.
  const text = value !== undefined && (inlineValue || !/^-./.test(value)) ? value : undefined
  const parsed = text === undefined ? undefined : parse(text)
  if (parsed !== undefined) return parsed
  throw wrong(command, `expected ${rawName} to be ${expected}, got ${text === undefined ? 'nothing' : shown(text)}`)
}

/** The typed text may be a URL with a password in it, and messages end up in logs. */
function shown(text: string): string {
  const cut = text.length > 80 ? `${text.slice(0, 80)}…` : text
  return JSON.stringify(cut.replace(/:\/\/[^?]*@/, '://…@'))
}

function checkOperands(command: string, expected: readonly string[], given: readonly string[]): void {
  if (given.length < expected.length) throw wrong(command, `${expected[given.length]} is missing`)
  if (given.length > expected.length) {
    throw wrong(command, `${JSON.stringify(given[expected.length])} is one argument more than expected`)
  }
}

/** The name of a command or of one of its parts, or a refusal with the nearest name. */
export function chosen<const Name extends string>(
  command: string,
  names: readonly Name[],
  given: string | undefined,
): Name {
  const expected = oneOf(...names)(given)
  if (expected === undefined) return given as Name
  const what = given === undefined ? 'nothing was asked for' : `unknown command ${shown(given)}`
  throw wrong(command, `${what}, expected ${expected}`)
}

export function wrong(command: string, message: string): Error {
  const name = command === '' ? 'onceonly' : `onceonly ${command}`
  const end = message.endsWith('?') ? '' : '.'
  return invalidArgument(`${name}: ${message}${end} See ${name} --help.`)
}

export const flag: Option<true> = {
  type: 'boolean',
  expected: 'given or not',
  parse: () => true,
  json: { type: 'boolean' },
}

export const text: Option<string> = {
  type: 'string',
  expected: 'a non-empty text',
  parse: (given) => (given === '' ? undefined : given),
  json: { type: 'string', minLength: 1 },
}

/** Why a person changes something. */
export const reason: Option<string> = {
  ...text,
  expected: 'a reason, for the audit trail',
  parse: (given) => (aReason(given) === undefined ? given : undefined),
}

export const countOrZero: Option<number> = {
  type: 'string',
  expected: 'an integer from 0 on',
  parse: (given) => (/^(?:0|[1-9]\d{0,14})$/.test(given) ? Number(given) : undefined),
  json: { type: 'integer', minimum: 0 },
}

export const count: Option<number> = {
  type: 'string',
  expected: 'a positive integer',
  parse: (given) => (/^[1-9]\d{0,14}$/.test(given) ? Number(given) : undefined),
  json: { type: 'integer', minimum: 1 },
}

const durationUnitsMs: Readonly<Record<string, number>> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 }
// The maximum of core/options.ts: 100 years.
const durationMsMax = 100 * 365.25 * 86_400_000

/** In milliseconds. A number without a unit is refused, because some people take it for seconds. */
export const duration: Option<number> = {
  type: 'string',
  expected: 'a duration such as 500ms, 30s, 5m, 24h, 7d or 0',
  parse(given) {
    // Zero is zero in every unit.
    if (given === '0') return 0
    const [, number, unit] = /^(\d{1,15}(?:\.\d{1,6})?)(ms|s|m|h|d)$/.exec(given) ?? []
    if (number === undefined || unit === undefined) return undefined
    const ms = Math.round(Number(number) * durationUnitsMs[unit]!)
    return ms <= durationMsMax ? ms : undefined
  },
  // In a file 0 is a number. Every other number lacks its unit.
  json: {
    type: ['string', 'integer'],
    pattern: '^(?:0|\\d{1,15}(?:\\.\\d{1,6})?(?:ms|s|m|h|d))$',
    minimum: 0,
    maximum: 0,
  },
}

const byteUnits: Readonly<Record<string, number>> = { '': 1, b: 1, kb: 1_024, mb: 1_024 ** 2, gb: 1_024 ** 3 }

/** Kilobytes of 1,024, as memory and stores count them. */
export const bytes: Option<number> = {
  type: 'string',
  expected: 'a size such as 65536, 64kb or 1mb',
  parse(given) {
    const [, number, unit] = /^(\d{1,15}(?:\.\d{1,3})?)(b|kb|mb|gb)?$/i.exec(given) ?? []
    if (number === undefined) return undefined
    const size = Math.floor(Number(number) * byteUnits[(unit ?? '').toLowerCase()]!)
    return Number.isSafeInteger(size) && size > 0 ? size : undefined
  },
  json: { type: ['string', 'integer'], pattern: '^(?=.*[1-9])\\d{1,15}(?:\\.\\d{1,3})?(?:b|kb|mb|gb)?$', minimum: 1 },
}

export interface Address {
  readonly host: string
  readonly port: number
}

/** Port 0 is any free one. A port without a host is on this machine only. Other machines can reach it only with a host. */
export const address: Option<Address> = {
  type: 'string',
  expected: 'an address such as 127.0.0.1:8080, [::1]:8080 or 8080',
  parse(given) {
    const [, bracketed, plain, digits] = /^(?:(?:\[([\da-f:.%]+)\]|([\w.-]+)):)?(\d{1,5})$/i.exec(given) ?? []
    const port = Number(digits)
    if (digits === undefined || port > 65_535) return undefined
    return { host: bracketed ?? plain ?? '127.0.0.1', port }
  },
  json: { type: 'string', pattern: '^(?:(?:\\[[0-9A-Fa-f:.%]+\\]|[A-Za-z0-9_.-]+):)?\\d{1,5}$' },
}

/** Separated by commas. */
export const list: Option<readonly string[]> = {
  type: 'string',
  expected: 'a list such as POST,PATCH',
  parse(given) {
    const parts = given.split(',').map((each) => each.trim())
    return parts.includes('') ? undefined : parts
  },
  json: { type: 'array', items: { type: 'string', minLength: 1 } },
}

export function choice<const Name extends string>(...names: readonly Name[]): Option<Name> {
  return {
    type: 'string',
    expected: names.map((each) => `"${each}"`).join(' or '),
    parse: (given) => names.find((each) => each === given),
    json: { enum: names },
  }
}

/** A text of one form, such as the name of a header. */
export function matching(pattern: RegExp, expected: string): Option<string> {
  return {
    type: 'string',
    expected,
    parse: (given) => (pattern.test(given) ? given : undefined),
    json: { type: 'string', pattern: pattern.source },
  }
}

/** Where the next page of a list begins. Both parts of a key may contain any separator that a person would use. */
export function cursorOf({ scope, id }: Key): string {
  return Buffer.from(JSON.stringify([scope, id])).toString('base64url')
}

export function keyOfCursor(command: string, cursor: string): Key {
  try {
    const [scope, id] = JSON.parse(Buffer.from(cursor, 'base64url').toString()) as [string, string]
    return key(scope, id)
  } catch {
    throw wrong(command, 'expected --after to be the cursor that the last page ended with')
  }
}

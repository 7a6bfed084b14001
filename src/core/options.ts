// Options are checked at the start, all of them, so that a misspelt lease does not become a default one in production.

import { invalidArgument } from './errors.ts'
import { checkNodeVersion } from './options/node-version.ts'

export { checkNodeVersion } from './options/node-version.ts'

/** Returns what was expected when the value is wrong, undefined when it is right. */
export type Rule = (value: unknown) => string | undefined

/**
 * Refuses unknown names (with the nearest known one) and wrong values. Undefined always means "not given". Every store, `createOnce`,
 * every adapter and the gateway begin here, so this is where a Node that is too old is refused.
 */
export function checkOptions(what: string, given: unknown, rules: Readonly<Record<string, Rule>>): void {
  checkNodeVersion()
  checkGiven(what, given, rules)
  for (const name of Object.keys(rules)) if (!Object.hasOwn(given, name)) checkOne(what, name, undefined, rules[name]!)
}

/** The same where nothing is required, for calls that must be quick: looks only at what is given. */
export function checkGiven(
  what: string,
  given: unknown,
  rules: Readonly<Record<string, Rule>>,
): asserts given is object {
  if (typeof given !== 'object' || given === null || Array.isArray(given)) {
    throw invalidArgument(`${what}: expected an object of options, got ${show(given)}`)
  }
  for (const name of Object.keys(given)) {
    if (!Object.hasOwn(rules, name)) {
      throw invalidArgument(`${what}: unknown option "${name}"${didYouMean(name, Object.keys(rules))}`)
    }
    checkOne(what, name, (given as Record<string, unknown>)[name], rules[name]!)
  }
}

function checkOne(what: string, name: string, value: unknown, rule: Rule): void {
  const expected = rule(value)
  if (expected !== undefined) throw invalidArgument(`${what}: expected ${name} to be ${expected}, got ${show(value)}`)
}

export function optional(rule: Rule): Rule {
  return (value) => (value === undefined ? undefined : rule(value))
}

/** Durations up to 100 years: beyond that, sums of times would leave the range of exact integers in some store. */
const durationMsMax = 100 * 365.25 * 86_400_000

export const positiveMs: Rule = (value) =>
  Number.isSafeInteger(value) && (value as number) > 0 && (value as number) <= durationMsMax
    ? undefined
    : 'a positive integer of milliseconds'

export const nonNegativeMs: Rule = (value) => (value === 0 ? undefined : positiveMs(value))

export const positiveInteger: Rule = (value) =>
  Number.isSafeInteger(value) && (value as number) > 0 ? undefined : 'a positive integer'

/** Versions are kept as a 32-bit integer by the SQL stores. */
export const versionNumber: Rule = (value) =>
  Number.isInteger(value) && (value as number) >= 0 && (value as number) < 2 ** 31
    ? undefined
    : 'an integer from 0 to 2147483647'

/** Why a person changed something. Some stores keep it as text, which cannot hold everything that a string can. */
export const aReason: Rule = (value) =>
  typeof value === 'string' && value.trim() !== '' && value.isWellFormed() && !value.includes('\0')
    ? undefined
    : 'a reason, for the audit trail'

export const aString: Rule = (value) => (typeof value === 'string' && value !== '' ? undefined : 'a non-empty string')

export const aFunction: Rule = (value) => (typeof value === 'function' ? undefined : 'a function')

export function oneOf(...allowed: readonly string[]): Rule {
  return (value) =>
    allowed.includes(value as string)
      ? undefined
      : allowed.map((each) => `"${each}"`).join(' or ') + didYouMean(value, allowed)
}

/** An object with these methods: a store, a clock, the slice of a client. */
export function withMethods(...names: readonly string[]): Rule {
  return (value) => {
    const has = (name: string): boolean =>
      value !== null &&
      (typeof value === 'object' || typeof value === 'function') &&
      typeof (value as Record<string, unknown>)[name] === 'function'
    return names.every(has) ? undefined : `an object with the methods ${names.join(', ')}`
  }
}

/** A table, schema or collection name that is safe to write into SQL unquoted or quoted alike. */
export const identifier: Rule = (value) =>
  typeof value === 'string' && /^[a-z_][a-z0-9_]{0,47}$/.test(value)
    ? undefined
    : 'a name of 1 to 48 lower-case letters, digits and underscores that does not begin with a digit'

function didYouMean(value: unknown, known: readonly string[]): string {
  if (typeof value !== 'string' || value.length > 64) return ''
  const nearest = known
    .map((name) => ({ name, distance: editDistance(value.toLowerCase(), name.toLowerCase()) }))
    .sort((a, b) => a.distance - b.distance)[0]
  // "lease" for "leaseMs" is 2 edits. A third of the letters wrong is no longer a slip.
  const near = nearest && (nearest.distance <= Math.max(2, nearest.name.length / 3) || nearest.name.startsWith(value))
  return near ? `, did you mean "${nearest.name}"?` : ''
}

function editDistance(a: string, b: string): number {
  let previous = Array.from({ length: b.length + 1 }, (_, index) => index)
  for (let row = 1; row <= a.length; row++) {
    const current = [row]
    for (let column = 1; column <= b.length; column++) {
      const replace = previous[column - 1]! + (a[row - 1] === b[column - 1] ? 0 : 1)
      current.push(Math.min(replace, previous[column]! + 1, current[column - 1]! + 1))
    }
    previous = current
  }
  return previous[b.length]!
}

function show(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value.length > 80 ? `${value.slice(0, 80)}…` : value)
  if (typeof value === 'number' || typeof value === 'boolean' || value === undefined || value === null)
    return String(value)
  if (typeof value === 'bigint') return `${value}n`
  return Array.isArray(value) ? 'an array' : typeof value === 'object' ? 'an object' : `a ${typeof value}`
}

// Checks a value against the part of JSON Schema (2020-12) that config.schema.json uses, and says where it is wrong and what was
// expected. A keyword that is not understood here is a broken program, not a passed check.

import assert from 'node:assert'
import { invalidArgument } from '../../core/errors.ts'
import { checkGiven } from '../../core/options.ts'

export interface Schema {
  readonly $ref?: string
  readonly type?: string | readonly string[]
  readonly title?: string
  readonly enum?: readonly unknown[]
  readonly pattern?: string
  readonly minimum?: number
  readonly minItems?: number
  readonly items?: Schema
  readonly required?: readonly string[]
  readonly properties?: Readonly<Record<string, Schema>>
  readonly additionalProperties?: false
  readonly $defs?: Readonly<Record<string, Schema>>
}

const understood = new Set([
  '$ref',
  'type',
  'title',
  'enum',
  'pattern',
  'minimum',
  'minItems',
  'items',
  'required',
  'properties',
  'additionalProperties',
  '$defs',
  '$schema',
  'description',
])

/** Throws at the first thing that is wrong. `what` is the name of the file. */
export function checkSchema(what: string, root: Schema, value: unknown): void {
  check({ what, root }, root, value, '')
}

interface Ground {
  readonly what: string
  readonly root: Schema
}

function check(ground: Ground, schema: Schema, value: unknown, path: string): void {
  for (const keyword of Object.keys(schema))
    assert(understood.has(keyword), `config.schema.json: ${keyword} is unknown`)
  if (schema.$ref !== undefined) return check(ground, resolve(ground.root, schema.$ref), value, path)
  const expected = unmet(schema, value)
  if (expected !== undefined) {
    throw invalidArgument(`${ground.what}: expected ${path === '' ? 'it' : path} to be ${expected}, got ${show(value)}`)
  }
  if (schema.items)
    for (const [at, item] of (value as unknown[]).entries()) check(ground, schema.items, item, `${path}/${at}`)
  if (schema.properties) checkMembers(ground, schema, value as Readonly<Record<string, unknown>>, path)
}

function checkMembers(
  ground: Ground,
  { properties = {}, required = [], additionalProperties }: Schema,
  value: Readonly<Record<string, unknown>>,
  path: string,
): void {
  const place = path === '' ? ground.what : `${ground.what}: ${path}`
  if (additionalProperties === false) {
    checkGiven(place, value, Object.fromEntries(Object.keys(properties).map((name) => [name, () => undefined])))
  }
  for (const name of required) if (!Object.hasOwn(value, name)) throw invalidArgument(`${place}: ${name} is missing`)
  for (const [name, member] of Object.entries(value)) check(ground, properties[name]!, member, `${path}/${name}`)
}

function resolve(root: Schema, ref: string): Schema {
  const found = root.$defs?.[ref.replace('#/$defs/', '')]
  assert(found, `config.schema.json: ${ref} leads nowhere`)
  return found
}

/** What was expected, when the value is not that. */
function unmet(schema: Schema, value: unknown): string | undefined {
  const { title, type, enum: allowed, pattern, minimum, minItems } = schema
  if (allowed && !allowed.includes(value)) return allowed.map((each) => JSON.stringify(each)).join(' or ')
  const types = type === undefined ? [] : [type].flat()
  if (types.length > 0 && !types.some((each) => isOf(each, value))) return title ?? types.map(article).join(' or ')
  if (typeof value === 'string' && pattern !== undefined && !new RegExp(pattern, 'u').test(value)) {
    return title ?? `a text that fits ${pattern}`
  }
  if (typeof value === 'number' && minimum !== undefined && value < minimum) return `${minimum} or more`
  if (Array.isArray(value) && value.length < (minItems ?? 0)) return `a list of ${minItems} or more`
  return undefined
}

function isOf(type: string, value: unknown): boolean {
  if (type === 'integer') return Number.isSafeInteger(value)
  if (type === 'array') return Array.isArray(value)
  if (type === 'object') return typeof value === 'object' && value !== null && !Array.isArray(value)
  return typeof value === type
}

function article(type: string): string {
  if (type === 'boolean') return 'true or false'
  return `${/^[aio]/.test(type) ? 'an' : 'a'} ${type}`
}

/** A URL may have a password in it, and messages end up in logs. */
function show(value: unknown): string {
  if (value === undefined) return 'nothing'
  const text = JSON.stringify(value)
  return (text.length > 80 ? `${text.slice(0, 80)}…` : text).replace(/:\/\/[^@/]*@/, '://…@')
}

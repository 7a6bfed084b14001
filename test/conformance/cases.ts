// The cases as they are written in cases.json, and the notation of their requests: nothing here knows what is right.
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { valueOf, valuesOf, type WireResponse } from './client.ts'

export interface Case {
  readonly id: string
  readonly group: string
  readonly title: string
  readonly config: Readonly<Record<string, unknown>>
  readonly precondition: string
  readonly requests: readonly CaseRequest[]
  readonly expect: Readonly<Record<string, unknown>>
  readonly effects: number | string
  readonly invocations?: number
  /** Where the design decides otherwise than the case. */
  readonly deviation?: string
}

export interface CaseRequest {
  readonly id: string
  readonly method: string
  readonly path: string
  readonly headers?: Readonly<Record<string, string>>
  readonly rawHeaderLines?: readonly string[]
  readonly body?: unknown
  readonly when?: string
  readonly note?: string
  readonly as: string
}

/** What one request must be answered. */
export interface Expected {
  readonly status?: number | string
  readonly headers?: Readonly<Record<string, string>>
  readonly absentHeaders?: readonly string[]
  readonly body?: string | { readonly jsonSubset: unknown }
  /** By the clock of the world, which stands still while nothing is due. */
  readonly minMs?: number
  readonly maxMs?: number
}

export function readCases(file: 'cases.json' | 'more-cases.json' | 'hostile-cases.json'): readonly Case[] {
  const text = readFileSync(join(import.meta.dirname, file), 'utf8')
  return (JSON.parse(text) as { cases: Case[] }).cases
}

/** R1..R50 is fifty requests. */
export function expandRanges(requests: readonly CaseRequest[]): CaseRequest[] {
  return requests.flatMap((request) => namesIn(request.id).map((id) => ({ ...request, id })))
}

export function namesIn(id: string): string[] {
  const range = /^R(\d+)\.\.R(\d+)$/.exec(id)
  if (!range) return [id]
  const [first, last] = [Number(range[1]), Number(range[2])]
  return Array.from({ length: last - first + 1 }, (_, index) => `R${first + index}`)
}

/** Everything on the wire but what the client adds; `answered` are the responses so far, for {R1.Location}. */
export function onTheWire(
  request: CaseRequest,
  answered: ReadonlyMap<string, WireResponse>,
  bodyOf: (id: string) => Buffer,
): { path: string; headerLines: string[]; body: Buffer | undefined } {
  const body = bodyBytes(request.body)
  const given = Object.entries(request.headers ?? {})
  const has = (name: string): boolean => given.some(([each]) => each.toLowerCase() === name)
  const digestOf = (id: string): string => createHash('sha256').update(bodyOf(id)).digest('base64')
  const lines = given.map(([name, value]) => {
    const text = expandExpression(value).replace(/\{sha256 of (\w+) body\}/, (_, id: string) => digestOf(id))
    return `${name}: ${text}`
  })
  if (!has('authorization')) lines.push(`Authorization: Bearer ${request.as}`)
  if (typeof request.body === 'object' && !has('content-type')) lines.push('Content-Type: application/json')
  lines.push(...(request.rawHeaderLines ?? []).map(expandEscapes))
  return { path: expandPath(request.path, answered), headerLines: lines, body }
}

export function bodyBytes(body: unknown): Buffer | undefined {
  if (body === undefined) return undefined
  if (typeof body === 'string' && body.startsWith('raw:'))
    return Buffer.from(expandEscapes(expandExpression(body.slice(4))), 'latin1')
  return Buffer.from(JSON.stringify(body))
}

/** {'"'+'b'*255+'"'} */
function expandExpression(text: string): string {
  const inner = /^\{('.*)\}$/s.exec(text)?.[1]
  if (inner === undefined) return text
  const terms = [...inner.matchAll(/'([^']*)'(?:\*(\d+))?(?:\+|$)/g)]
  return terms.map(([, part, times]) => part!.repeat(Number(times ?? 1))).join('')
}

/** \t and \xNN; the rest is literal. Octets above 7F come from \xNN only. */
function expandEscapes(text: string): string {
  return Buffer.from(text, 'utf8')
    .toString('latin1')
    .replace(/\\t|\\r|\\n|\\x([0-9a-f]{2})/gi, (escape, hex: string | undefined) =>
      hex ? String.fromCharCode(Number.parseInt(hex, 16)) : { '\\t': '\t', '\\r': '\r', '\\n': '\n' }[escape]!,
    )
}

function expandPath(path: string, answered: ReadonlyMap<string, WireResponse>): string {
  const reference = /^\{(\w+)\.([\w-]+)(?:\[rel=(\w+)\])?\}$/.exec(path)
  if (!reference) return path
  const [, id, header, relation] = reference
  const response = answered.get(id!)
  if (!response) throw new Error(`${path} refers to ${id}, which has no answer yet`)
  const found = relation ? linkTo(valuesOf(response, header!), relation) : valueOf(response, header!)
  if (!found) throw new Error(`${path}: the answer to ${id} has no such header`)
  const url = new URL(found, 'http://127.0.0.1')
  return url.pathname + url.search
}

function linkTo(values: readonly string[], relation: string): string | undefined {
  const pattern = new RegExp(`<([^>]*)>[^<]*;\\s*rel="?${relation}"?`)
  return pattern.exec(values.join(', '))?.[1]
}

// The calls that go the straight way (postgres/straight.sql.ts): claims and settles, bound to parameters. Nothing of them is text
// of a statement, so nothing is quoted. Invariant: a call that a server would refuse is refused when it is made, because the
// error of a statement is that of its whole batch.

import { hash } from 'node:crypto'
import { invalidArgument } from '../../core/errors.ts'
import type { BoundStatement } from '../../clients/postgres.ts'
import type { Claim, ClaimRequest, Retention } from '../../core/store.ts'
import type { Key } from '../../core/key.ts'
import { bigintArray, byteaArray, integerArray, textArray, uuidArray } from './arrays.ts'
import { functionName } from './names.ts'
import type { FunctionName, SchemaNames } from './names.ts'
import { claimCall, integer, token, writeCall } from './statements.ts'
import type { FunctionCall } from './statements.ts'

export interface StraightClaim {
  readonly to: 'straight claim'
  readonly key: Key
  readonly request: ClaimRequest
  readonly length: number
}

export interface StraightSettle {
  readonly to: 'straight settle'
  readonly claim: Claim
  readonly outcome: Uint8Array
  readonly retention: Retention
  readonly length: number
}

export type StraightCall = StraightClaim | StraightSettle

export function straightClaim(key: Key, request: ClaimRequest): StraightClaim {
  checkClaim(key, request)
  return { to: 'straight claim', key, request, length: 300 + (request.input?.byteLength ?? 0) }
}

export function straightSettle(claim: Claim, outcome: Uint8Array, retention: Retention): StraightSettle {
  stored(claim.key.scope)
  stored(claim.key.id)
  token(claim.token)
  integer('fence', claim.fence)
  checkRetention(retention)
  return { to: 'straight settle', claim, outcome, retention, length: 200 + outcome.byteLength }
}

export function checkClaim(key: Key, request: ClaimRequest): void {
  stored(key.scope)
  stored(key.id)
  stored(request.fingerprint)
  token(request.token)
  integer('leaseMs', request.leaseMs)
  integer('version', request.version)
  checkRetention(request.retention)
}

function checkRetention({ keepMs, tombstoneMs }: Retention): void {
  integer('keepMs', keepMs)
  integer('tombstoneMs', tombstoneMs)
}

export function stored(text: string): void {
  if (text.includes('\u0000')) throw invalidArgument('expected text without U+0000, which PostgreSQL cannot store')
}

/** The same call for a client that sends text. */
export function asText(call: FunctionCall | StraightCall): FunctionCall {
  if (call.to === 'straight claim') return claimCall(call.key, call.request)
  if (call.to !== 'straight settle') return call
  return writeCall('settle', call.claim, call.retention.keepMs, call.retention, call.outcome)
}

/** What several calls share, sent once. */
export interface Term extends Terms {
  readonly scope: string
  readonly retention: Retention
}

interface Terms {
  readonly leaseMs: number
  readonly version: number
  readonly onTakeover: string
  readonly onExpired: string
}

/** One statement for all of these calls. `answersOf` reads its only answer. */
export function togetherStatement(
  names: SchemaNames,
  settles: readonly StraightSettle[],
  claims: readonly StraightClaim[],
): BoundStatement {
  const terms: Term[] = []
  const settled = settles.map(({ claim, retention }) => termOf(terms, claim.key.scope, retention, undefined))
  const asked = claims.map(({ key, request }) => termOf(terms, key.scope, request.retention, request))
  markRepeated(claims, asked)
  return bound(names, 'together', [
    ...termArrays(terms),
    ...(settles.length === 0 ? [null, null, null, null, null] : settleArrays(settles, settled)),
    ...(claims.length === 0 ? [null, null, null, null, null] : claimArrays(claims, asked)),
  ])
}

export function termArrays(terms: readonly Term[]): readonly Buffer[] {
  return [
    textArray(terms.map((term) => term.scope)),
    bigintArray(terms.map((term) => term.leaseMs)),
    bigintArray(terms.map((term) => term.retention.keepMs)),
    bigintArray(terms.map((term) => term.retention.tombstoneMs)),
    integerArray(terms.map((term) => term.version)),
    textArray(terms.map((term) => term.onTakeover)),
    textArray(terms.map((term) => term.onExpired)),
  ]
}

function settleArrays(settles: readonly StraightSettle[], terms: readonly number[]): readonly Buffer[] {
  return [
    textArray(settles.map(({ claim }) => claim.key.id)),
    uuidArray(settles.map(({ claim }) => claim.token)),
    bigintArray(settles.map(({ claim }) => claim.fence)),
    integerArray(terms),
    byteaArray(settles.map(({ outcome }) => outcome)),
  ]
}

/** A claim, whether an operation is enlisted with it or not. */
interface Asked {
  readonly key: Key
  readonly request: ClaimRequest
}

export function claimArrays(claims: readonly Asked[], terms: readonly number[]): readonly (Buffer | null)[] {
  const inputs = claims.map(({ request }) => request.input)
  return [
    textArray(claims.map(({ key }) => key.id)),
    uuidArray(claims.map(({ request }) => request.token)),
    textArray(claims.map(({ request }) => request.fingerprint)),
    integerArray(terms),
    inputs.every((input) => input === undefined) ? null : byteaArray(inputs),
  ]
}

/** The number of the term, from 1. A settle needs only its scope and retention. */
export function termOf(terms: Term[], scope: string, retention: Retention, request: Terms | undefined): number {
  const { keepMs, tombstoneMs } = retention
  for (let index = 0; index < terms.length; index++) {
    const term = terms[index]!
    if (term.scope !== scope || term.retention.keepMs !== keepMs || term.retention.tombstoneMs !== tombstoneMs) continue
    if (
      !request ||
      (term.leaseMs === request.leaseMs &&
        term.version === request.version &&
        term.onTakeover === request.onTakeover &&
        term.onExpired === request.onExpired)
    ) {
      return index + 1
    }
  }
  const { leaseMs, version, onTakeover, onExpired } = request ?? {
    leaseMs: 0,
    version: 1,
    onTakeover: '',
    onExpired: '',
  }
  return terms.push({ scope, retention, leaseMs, version, onTakeover, onExpired })
}

/** By the id alone: of two keys that share it, the second only goes the longer way. */
export function markRepeated(claims: readonly Asked[], terms: number[]): void {
  const ids = new Set<string>()
  claims.forEach(({ key }, index) => {
    if (ids.has(key.id)) terms[index] = -terms[index]!
    else ids.add(key.id)
  })
}

/** The answers to settles, then those to claims. Those to settles are left out when all of them were done. */
export function answersOf(answer: string, settles: number, claims: number): readonly string[] {
  const answers = answer === '' ? [] : answer.split(';')
  return answers.length === settles + claims ? answers : [...Array<string>(settles).fill('done'), ...answers]
}

export function loneStatement(names: SchemaNames, call: StraightCall): BoundStatement {
  if (call.to === 'straight claim') {
    const { key, request } = call
    const { leaseMs, retention, version, onTakeover, onExpired, input } = request
    return bound(names, 'claim_one', [
      key.scope,
      key.id,
      request.token,
      request.fingerprint,
      String(leaseMs),
      String(retention.keepMs),
      String(retention.tombstoneMs),
      String(version),
      onTakeover,
      onExpired,
      input === undefined ? null : bytesOf(input),
    ])
  }
  const { claim, outcome, retention } = call
  return bound(names, 'settle_one', [
    claim.key.scope,
    claim.key.id,
    claim.token,
    String(claim.fence),
    String(retention.keepMs),
    String(retention.tombstoneMs),
    bytesOf(outcome),
  ])
}

/** BEGIN and the claim in it. */
export function beginAndClaim(names: SchemaNames, key: Key, request: ClaimRequest): readonly BoundStatement[] {
  const { leaseMs, retention, onTakeover, onExpired } = request
  return [unnamed('BEGIN'), inTransaction(names, { key, request, number: leaseMs, retention, onTakeover, onExpired })]
}

/** The settled entry of a claim for which nothing was written yet, and COMMIT. */
export function recordAndCommit(
  names: SchemaNames,
  { key, fence }: Claim,
  request: ClaimRequest,
  outcome: Uint8Array,
  retention: Retention,
): readonly BoundStatement[] {
  integer('fence', fence)
  checkRetention(retention)
  return [inTransaction(names, { key, request, number: fence, retention, outcome }), unnamed('COMMIT')]
}

interface InTransactionCall {
  readonly key: Key
  readonly request: ClaimRequest
  /** The lease of a claim, the fence of what is recorded. */
  readonly number: number
  readonly retention: Retention
  readonly onTakeover?: string
  readonly onExpired?: string
  readonly outcome?: Uint8Array
}

// The claim and the record of a transaction are one prepared statement: a session that does not keep it says so before the effect,
// and not at COMMIT. Another one, prepared along with the claim, had to be asked for every time.
function inTransaction(names: SchemaNames, call: InTransactionCall): BoundStatement {
  const { key, request, number, retention, onTakeover, onExpired, outcome } = call
  const values = [
    key.scope,
    key.id,
    request.token,
    request.fingerprint,
    String(number),
    String(retention.keepMs),
    String(retention.tombstoneMs),
    String(request.version),
    onTakeover ?? null,
    onExpired ?? null,
    request.input === undefined ? null : bytesOf(request.input),
    outcome === undefined ? null : bytesOf(outcome),
  ]
  return { ...prepared(names, 'in transaction', () => inTransactionText(names)), values }
}

function inTransactionText(names: SchemaNames): string {
  return `select case when $12::bytea is null
    then ${functionName(names, 'begin')}(${places(10)},encode($11::bytea, 'base64'))
    else ${functionName(names, 'record_one')}(${places(8)},$11::bytea,$12::bytea) end as answer`
}

// BEGIN and COMMIT are parsed faster than a name is looked up.
function unnamed(text: string): BoundStatement {
  return { name: undefined, text, values: [] }
}

export function bound(names: SchemaNames, to: FunctionName, values: BoundStatement['values']): BoundStatement {
  const text = (): string => `select ${functionName(names, to)}(${places(values.length)}) as answer`
  return { ...prepared(names, to, text), values }
}

type Prepared = Pick<BoundStatement, 'name' | 'text'>

/** Of each store. Made once, as the name is a hash. */
const preparedOf = new WeakMap<SchemaNames, Map<string, Prepared>>()

// The name says the text: several stores may share the connections of a pool.
function prepared(names: SchemaNames, to: FunctionName | 'in transaction', textOf: () => string): Prepared {
  const own = preparedOf.get(names) ?? new Map<string, Prepared>()
  preparedOf.set(names, own)
  const known = own.get(to)
  if (known) return known
  const text = textOf()
  const made = { name: `onceonly_${hash('sha256', text).slice(0, 32)}`, text }
  own.set(to, made)
  return made
}

function places(count: number): string {
  return Array.from({ length: count }, (_, index) => `$${index + 1}`).join(',')
}

function bytesOf(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}

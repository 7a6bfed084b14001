// Enlistings and advances that go the straight way (`operate` in postgres/operations.sql.ts), bound to parameters, as claims and settles do
// in postgres/straight.ts. Invariant: as there, a call that a server would refuse is refused when it is made.

import type { BoundStatement } from '../../clients/postgres.ts'
import type { Key } from '../../core/key.ts'
import type { Change, Claim, ClaimRequest, LedgerRecord, Retention } from '../../core/store.ts'
import { bigintArray, byteaArray, integerArray, textArray, uuidArray } from './arrays.ts'
import type { SchemaNames } from './names.ts'
import { advanceCall, claimCall, integer, token } from './statements.ts'
import type { FunctionCall } from './statements.ts'
import { bound, checkClaim, claimArrays, markRepeated, stored, termArrays, termOf } from './straight.ts'
import type { Term } from './straight.ts'

export interface StraightEnlist {
  readonly to: 'straight enlist'
  readonly key: Key
  readonly request: ClaimRequest
  readonly length: number
}

export interface StraightAdvance {
  readonly to: 'straight advance'
  readonly claim: Claim
  readonly change: Change
  readonly length: number
}

export type StraightOperation = StraightEnlist | StraightAdvance

export function straightEnlist(key: Key, request: ClaimRequest): StraightEnlist {
  checkClaim(key, request)
  return { to: 'straight enlist', key, request, length: 300 + (request.input?.byteLength ?? 0) }
}

export function straightAdvance(claim: Claim, change: Change): StraightAdvance {
  const { records, becomes } = change
  stored(claim.key.scope)
  stored(claim.key.id)
  token(claim.token)
  integer('fence', claim.fence)
  let length = 300
  for (const { name, revision, content } of records) {
    stored(name)
    integer('revision', revision)
    length += name.length + content.byteLength + 32
  }
  if (becomes.to === 'running') integer('leaseMs', becomes.leaseMs)
  if (becomes.to === 'open' && becomes.afterMs !== undefined) integer('afterMs', becomes.afterMs)
  if (becomes.to === 'settled') {
    integer('keepMs', becomes.retention.keepMs)
    integer('tombstoneMs', becomes.retention.tombstoneMs)
    length += becomes.outcome.byteLength
  }
  return { to: 'straight advance', claim, change, length }
}

/** The same call for a client that sends text. */
export function operationAsText(call: StraightOperation): FunctionCall {
  if (call.to === 'straight enlist') return claimCall(call.key, call.request, 'enlist')
  return advanceCall(call.claim, call.change)
}

export function loneOperation(names: SchemaNames, call: StraightOperation): BoundStatement {
  const { to, values } = operationAsText(call)
  return bound(names, to as 'enlist' | 'advance', values)
}

/** One statement for all of these calls. `answersOf` reads its only answer. */
export function operateStatement(
  names: SchemaNames,
  advances: readonly StraightAdvance[],
  enlists: readonly StraightEnlist[],
): BoundStatement {
  const terms: Term[] = []
  const advanced = advances.map((call) => advanceTerm(terms, call))
  const asked = enlists.map(({ key, request }) => termOf(terms, key.scope, request.retention, request))
  markRepeated(enlists, asked)
  return bound(names, 'operate', [
    ...termArrays(terms),
    ...(advances.length === 0 ? nulls(11) : [...advanceArrays(advances, advanced), ...recordArrays(advances)]),
    ...(enlists.length === 0 ? nulls(5) : claimArrays(enlists, asked)),
  ])
}

const nulls = (count: number): readonly null[] => Array<null>(count).fill(null)

const nothingKept: Retention = { keepMs: 0, tombstoneMs: 0 }

function advanceTerm(terms: Term[], { claim, change: { becomes } }: StraightAdvance): number {
  const { scope } = claim.key
  if (becomes.to === 'settled') return termOf(terms, scope, becomes.retention, undefined)
  const leaseMs = becomes.to === 'running' ? becomes.leaseMs : 0
  return termOf(terms, scope, nothingKept, { leaseMs, version: 1, onTakeover: '', onExpired: '' })
}

const verbs = { running: 'extend', settled: 'settle', open: 'open' } as const

/** Of an `open` without a time, which parks. */
const never = -1

function advanceArrays(advances: readonly StraightAdvance[], terms: readonly number[]): readonly Buffer[] {
  const changes = advances.map(({ change }) => change.becomes)
  return [
    textArray(changes.map(({ to }) => verbs[to])),
    textArray(advances.map(({ claim }) => claim.key.id)),
    uuidArray(advances.map(({ claim }) => claim.token)),
    bigintArray(advances.map(({ claim }) => claim.fence)),
    integerArray(terms),
    bigintArray(changes.map((becomes) => (becomes.to === 'open' ? (becomes.afterMs ?? never) : never))),
    byteaArray(changes.map((becomes) => (becomes.to === 'settled' ? becomes.outcome : undefined))),
  ]
}

function recordArrays(advances: readonly StraightAdvance[]): readonly (Buffer | null)[] {
  const calls: number[] = []
  const records: LedgerRecord[] = []
  advances.forEach(({ change }, index) => {
    for (const record of change.records) {
      calls.push(index + 1)
      records.push(record)
    }
  })
  if (records.length === 0) return nulls(4)
  return [
    integerArray(calls),
    textArray(records.map(({ name }) => name)),
    bigintArray(records.map(({ revision }) => revision)),
    byteaArray(records.map(({ content }) => content)),
  ]
}

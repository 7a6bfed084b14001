// One look at a shard: read, publish, mark. Invariants: a row is marked after its publisher has confirmed it. A row of a key that has a
// held row in front is not published. What was read under one epoch is marked under that epoch.

import { pausesMs } from '../../core/backoff.ts'
import { sleep } from '../../core/clock.ts'
import type { Clock, Random } from '../../core/clock.ts'
import { publish } from '../../core/events.ts'
import type { Published, Publisher, ShardedPublisher, ShardPublisher } from '../broker.ts'
import { asError, codeOf } from '../failures.ts'
import { openWayOut, placedOf } from './way-out.ts'
import { orderKeyOf } from './source.ts'
import type { HeldRow, HeldShard, RelayMark, RelayRow, RelaySource } from './source.ts'
import { behind, isOutage, judge } from './verdicts.ts'
import type { FailurePolicy } from './verdicts.ts'

export interface RelayContext {
  readonly source: RelaySource
  readonly publisher: Publisher | ShardedPublisher
  readonly owner: string
  readonly batch: number
  readonly shardsMax: number
  readonly leaseMs: number
  readonly publishMs: number
  readonly onFailure: FailurePolicy
  readonly clock: Clock
  readonly random: Random
  /** When the publisher has last confirmed a message, of any shard: `clock.elapsed()`. */
  readonly transport: { confirmedAt: number }
}

/** What a relay knows of a shard that it works on. */
export interface ShardState {
  readonly shard: number
  readonly epoch: number
  readonly cursors: Map<number, number>
  readonly wayOut: ShardPublisher
  blocked: ReadonlySet<string>
  /** The lane to begin with, so that each has its turn. */
  from: number
  /** When held rows are looked at again. */
  heldCheckAt: number
  /** Since when every message has failed. Undefined while some are confirmed. */
  failingSince: number | undefined
}

export interface Round {
  /** 'lost' when another relay has the shard. */
  readonly is: 'done' | 'lost'
  readonly found: number
  readonly sent: number
  readonly held: number
  readonly dead: number
  /** The publisher did not take anything, or the database failed. */
  readonly error?: unknown
}

export const nothing: Round = { is: 'done', found: 0, sent: 0, held: 0, dead: 0 }
const lost: Round = { ...nothing, is: 'lost' }
const noMark: RelayMark = { cursors: new Map(), hold: [], again: [], sent: [] }

/** Of a shard that was just taken. */
export function stateOf(context: RelayContext, { shard, epoch, cursors: stored, blocked }: HeldShard): ShardState {
  const cursors = new Map(stored)
  const wayOut = openWayOut(context, { shard, epoch, cursors })
  return { shard, epoch, cursors, wayOut, blocked, from: 0, heldCheckAt: 0, failingSince: undefined }
}

/** One batch of what is held and due, one of what is new. */
export async function roundOf(context: RelayContext, state: ShardState): Promise<Round> {
  const held = await heldRound(context, state)
  if (held.is === 'lost') return held
  const fresh = await freshRound(context, state)
  const error = fresh.error ?? held.error
  return {
    is: fresh.is,
    found: held.found + fresh.found,
    sent: held.sent + fresh.sent,
    held: held.held + fresh.held,
    dead: held.dead + fresh.dead,
    ...(error !== undefined && { error }),
  }
}

async function heldRound(context: RelayContext, state: ShardState): Promise<Round> {
  const { source, batch, clock, onFailure, random } = context
  if (clock.elapsed() < state.heldCheckAt) return nothing
  state.heldCheckAt = clock.elapsed() + pausesMs.heldRows
  const rows = await source.readDue(state.shard, batch)
  if (rows.length === 0) {
    if (state.blocked.size > 0) state.blocked = await source.blocked(state.shard)
    return nothing
  }
  const published = await send(context, state, rows)
  if (published instanceof Error) return { ...nothing, error: published }
  const { sent, held } = judge(rows, published, onFailure, random)
  const again = held.filter(({ reason }) => reason !== undefined)
  const mark = { ...noMark, again, sent: sent.map(({ id }) => id) }
  if ((await source.mark(state, mark, context.leaseMs)) === 'lost') return lost
  state.wayOut.marked(mark.sent)
  state.blocked = await source.blocked(state.shard)
  // There may be more of the same keys.
  state.heldCheckAt = 0
  return told(context, state.shard, rows, sent, again)
}

async function freshRound(context: RelayContext, state: ShardState): Promise<Round> {
  const { source, batch, onFailure, random } = context
  const rows = await source.read(state, state.from, batch)
  if (rows.length === 0) return nothing
  state.from = rows.at(-1)!.lane + 1
  const stuck = rows.filter((row) => state.blocked.has(orderKeyOf(row)))
  const free = rows.filter((row) => !state.blocked.has(orderKeyOf(row)))
  const published = free.length === 0 ? [] : await send(context, state, free)
  if (published instanceof Error) return { ...nothing, error: published }
  const { sent, held } = judge(free, published, onFailure, random)
  const hold = [...held, ...stuck.map(behind)]
  const cursors = new Map(rows.map(({ lane, position }) => [lane, position]))
  if ((await source.mark(state, { ...noMark, cursors, hold }, context.leaseMs)) === 'lost') return lost
  for (const [lane, position] of cursors) state.cursors.set(lane, position)
  state.wayOut.marked(sent.map(({ id }) => id))
  const blocked = hold.filter(({ state: is }) => is !== 'dead').map(({ row }) => orderKeyOf(row))
  if (blocked.length > 0) state.blocked = new Set([...state.blocked, ...blocked])
  // What was behind a row that was given up is due.
  if (hold.some(({ state: is }) => is === 'dead')) state.heldCheckAt = 0
  return told(context, state.shard, rows, sent, hold)
}

/** What became of each, or an error when nothing was taken, which is no fault of a single row. */
async function send(
  context: RelayContext,
  state: ShardState,
  rows: readonly RelayRow[],
): Promise<readonly Published[] | Error> {
  const { clock, transport } = context
  const startedAt = clock.elapsed()
  const published = await publishInTime(context, state, rows)
  if (published instanceof Error) return published
  if (published.some((each) => each === undefined)) {
    transport.confirmedAt = clock.elapsed()
    state.failingSince = undefined
    return published
  }
  const isTransportUp = state.failingSince !== undefined && transport.confirmedAt > state.failingSince
  state.failingSince ??= startedAt
  return isOutage(rows, published, isTransportUp) ? published[0]! : published
}

/** A publisher that hangs must not keep the shard for ever. What it still sends is a repetition, in its order. */
async function publishInTime(
  context: RelayContext,
  { wayOut }: ShardState,
  rows: readonly RelayRow[],
): Promise<readonly Published[] | Error> {
  const { publisher, publishMs, clock } = context
  const late = new AbortController()
  const tooLate = sleep(clock, publishMs, { signal: late.signal }).then(
    () => new Error(`${publisher.name} has not confirmed ${rows.length} messages within ${publishMs} ms`),
  )
  const publishing = wayOut.publish(rows.map(placedOf)).catch((error: unknown) => asError(error))
  const published = await Promise.race([publishing, tooLate])
  late.abort()
  if (published instanceof Error || published.length === rows.length) return published
  return new Error(`Bug! ${publisher.name} was given ${rows.length} messages and answered for ${published.length}.`)
}

/** For an event: no message, which could name a key. */
export function reasonIn(error: unknown): string {
  return codeOf(asError(error)) ?? 'Error'
}

function told(
  { publisher }: RelayContext,
  shard: number,
  rows: readonly RelayRow[],
  sent: readonly RelayRow[],
  held: readonly HeldRow[],
): Round {
  if (sent.length > 0) {
    const lagMs = Math.max(...sent.map(({ ageMs }) => ageMs))
    publish('relayed', undefined, { shard, publisher: publisher.name, count: sent.length, lagMs })
  }
  for (const { row, state, tries, reason } of held) {
    if (reason === undefined) continue
    const key = { scope: row.topic, id: orderKeyOf(row) }
    if (state === 'waiting') publish('relay-blocked', key, { shard, tries, ageMs: row.ageMs })
    else publish('dead-lettered', key, { shard, tries, how: state })
  }
  const dead = held.filter(({ state }) => state !== 'waiting').length
  return { is: 'done', found: rows.length, sent: sent.length, held: held.length - dead, dead }
}

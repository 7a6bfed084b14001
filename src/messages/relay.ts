// The relay publishes what an outbox holds, on any number of machines. A shard is worked on by one relay at a time, under a lease. A
// relay that has lost its shard can publish once more what was not marked yet, which consumers have to expect anyway, and can mark
// nothing: the epoch is checked in the statement that marks.
//
// Order: rows of a key are published in the order of their commits. A row that cannot be published is held, and the later rows of its
// key with it, while other keys go on. A broker that takes nothing at all holds nothing: the relay waits and reads again.
//
// It polls: close after rows were found or added in this process, and once per second and shard when there is nothing. A NOTIFY in
// every commit would take a lock on the whole database, and does not pass PgBouncer.

import { systemClock, systemRandom } from '../core/clock.ts'
import type { Clock, Random } from '../core/clock.ts'
import { invalidArgument } from '../core/errors.ts'
import { checkOptions, optional, positiveInteger, positiveMs, withMethods } from '../core/options.ts'
import type { Rule } from '../core/options.ts'
import { inOrderOfKeys } from './broker.ts'
import type { Outgoing, Publisher, ShardedPublisher } from './broker.ts'
import { keepShards } from './relay/keeper.ts'
import type { ShardKeeper } from './relay/keeper.ts'
import { roundOf, stateOf } from './relay/rounds.ts'
import type { RelayContext } from './relay/rounds.ts'
import type { RelayOutbox } from './relay/source.ts'
import { timedSource } from './relay/timed-source.ts'
import type { FailurePolicy } from './relay/verdicts.ts'

export { orderKeyOf, unsentCountedMax } from './relay/source.ts'
export type {
  HeldRow,
  HeldShard,
  HeldState,
  RelayMark,
  RelayOutbox,
  RelayRow,
  RelaySource,
  RelayStatus,
  ShardLease,
} from './relay/source.ts'
export type { FailurePolicy } from './relay/verdicts.ts'

export interface RelayOptions {
  readonly outbox: RelayOutbox
  readonly publisher: Publisher | ShardedPublisher
  /** How many rows are read, published and marked together. 100 unless given. */
  readonly batch?: number
  /** How many shards this relay works on at the most. Unless given, its fair share among the relays that live. */
  readonly shardsMax?: number
  /** After this time without a sign of life another relay takes its shards. 30 s unless given. */
  readonly leaseMs?: number
  /** How long a publisher may take for a batch. 30 s unless given. */
  readonly publishMs?: number
  /** What to do with a row that cannot be published. 'block' unless given. */
  readonly onFailure?: FailurePolicy
  readonly clock?: Clock
  readonly random?: Random
}

/** What one run of a relay came to. */
export interface RelayRun {
  readonly sent: number
  /** Rows that failed, or that wait behind one that did. */
  readonly held: number
  /** Rows that were given up. */
  readonly dead: number
  /** The publisher or the database failed, and rows may be left. */
  readonly error?: unknown
}

export interface Relay {
  /** Works until `stop`. */
  start(): void
  /** Takes no more rows, marks what is being published, and gives the shards back. */
  stop(): Promise<void>
  /** Publishes what there is, in the shards that no other relay has, and ends. For tests and for cron. */
  runOnce(): Promise<RelayRun>
}

const aPublisher: Rule = (value) => withMethods('publish')(value) && withMethods('openShard')(value) && 'a publisher'

const policyRule: Rule = (value) => {
  if (value === 'block' || value === 'park') return undefined
  const given = typeof value === 'object' && value !== null ? Object.entries(value) : []
  const [name, after] = given[0] ?? []
  const fine =
    given.length === 1 && (name === 'skipAfter' || name === 'parkAfter') && positiveInteger(after) === undefined
  return fine ? undefined : `"block", "park", { skipAfter: tries } or { parkAfter: tries }`
}

/**
 * Publishes the rows of an outbox: at least once each, and first deliveries in the order of commits per key.
 *
 * @example
 * ```ts
 * import { createOutbox, createRelay, functionPublisher } from 'onceonly/outbox'
 * import { sqliteStore } from 'onceonly/sqlite'
 *
 * const outbox = createOutbox({ store: sqliteStore({ path: 'shop.db' }), source: 'shop' })
 * await outbox.migrate()
 * const relay = createRelay({ outbox, publisher: functionPublisher(async ({ id, topic }) => console.log(topic, id)) })
 * relay.start()
 * process.once('SIGTERM', () => void relay.stop())
 * ```
 */
export function createRelay(options: RelayOptions): Relay {
  checkOptions('createRelay', options, {
    outbox: withMethods('onAdded'),
    publisher: aPublisher,
    batch: optional(positiveInteger),
    shardsMax: optional(positiveInteger),
    leaseMs: optional(positiveMs),
    publishMs: optional(positiveMs),
    onFailure: optional(policyRule),
    clock: optional(withMethods('now', 'elapsed', 'schedule')),
    random: optional(withMethods('uuid', 'fraction')),
  })
  const { outbox } = options
  const { clock = systemClock, random = systemRandom, leaseMs = 30_000 } = options
  const context: RelayContext = {
    source: timedSource(outbox.rows, clock, leaseMs),
    publisher: options.publisher,
    owner: random.uuid(),
    batch: options.batch ?? 100,
    shardsMax: options.shardsMax ?? Number.MAX_SAFE_INTEGER,
    leaseMs,
    publishMs: options.publishMs ?? 30_000,
    onFailure: options.onFailure ?? 'block',
    clock,
    random,
    transport: { confirmedAt: -Infinity },
  }
  let running: ShardKeeper | undefined
  let once: Promise<RelayRun> | undefined
  return {
    start() {
      if (once) throw invalidArgument('relay.start: runOnce has not ended yet')
      running ??= keepShards(context, outbox.onAdded)
    },
    async stop() {
      const ending = running
      await Promise.all([ending?.stop(), once?.catch(() => undefined)])
      if (running === ending) running = undefined
    },
    async runOnce() {
      if (running) throw invalidArgument('relay.runOnce: the relay has been started, and does this by itself')
      once ??= runOnce(context).finally(() => void (once = undefined))
      return once
    },
  }
}

/**
 * A publisher that is a function for one message. It is called for the messages of a key one after another, and for different keys at once.
 *
 * @example
 * ```ts
 * import { functionPublisher } from 'onceonly/outbox'
 *
 * const publisher = functionPublisher(async ({ id, topic, body }) => {
 *   await fetch(`https://events.example/${topic}`, { method: 'POST', headers: { 'idempotency-key': id }, body })
 * })
 * ```
 */
export function functionPublisher(send: (message: Outgoing) => unknown, name = 'function'): Publisher {
  return { name, publish: (messages) => inOrderOfKeys(messages, async (message) => void (await send(message))) }
}

async function runOnce(context: RelayContext): Promise<RelayRun> {
  const { source, owner, leaseMs, shardsMax } = context
  const total = { sent: 0, held: 0, dead: 0 }
  const { shards } = await source.attend(owner, leaseMs, [])
  const free = shards.filter((each) => each.isFree || each.owner === owner).slice(0, shardsMax)
  let failed: unknown
  try {
    for (const { shard } of free) {
      const taken = await source.take(shard, owner, leaseMs)
      if (!taken) continue
      const state = stateOf(context, taken)
      try {
        for (let found = 1; found > 0;) {
          const round = await roundOf(context, state)
          total.sent += round.sent
          total.held += round.held
          total.dead += round.dead
          failed ??= round.error
          found = round.is === 'lost' || round.error !== undefined ? 0 : round.found
        }
      } finally {
        await state.wayOut.close().catch(() => undefined)
      }
      await source.give([state])
    }
    await source.retain()
  } finally {
    await source.leave(owner)
  }
  return { ...total, ...(failed !== undefined && { error: failed }) }
}

// Every pause between two tries of the project, and every count of tries, is a row of the tables below. So the tables say how
// long anything can take at worst. Delays grow, with jitter: callers that failed together must not come back together.

import type { Random } from './clock.ts'

export interface Backoff {
  readonly firstMs: number
  readonly factor: number
  readonly maxMs: number
}

/** A back-off and, where tries are counted, how many there are before the caller gets the error. */
export interface CountedBackoff extends Backoff {
  readonly triesMax: number
}

/** The delay before try number `tries` + 1: between half and all of the exponential value. */
export function backoffMs(backoff: Backoff, tries: number, random: Random): number {
  const full = Math.min(backoff.maxMs, backoff.firstMs * backoff.factor ** tries)
  return full * (0.5 + random.fraction() / 2)
}

/** The delay before try number `tries` + 1: anything from nothing to all of the exponential value, as the many clients of one server fail together. */
export function fullJitterMs(backoff: Backoff, tries: number, random: Pick<Random, 'fraction'>): number {
  return Math.min(backoff.maxMs, backoff.firstMs * backoff.factor ** tries) * random.fraction()
}

/** `Retry-After`: seconds, or a date (RFC 9110, 10.2.3). What is neither is as if it were not there. */
export function msUntil(value: string | null | undefined, nowMs: number): number | undefined {
  if (!value) return undefined
  const ms = /^\d+$/.test(value) ? +value * 1_000 : Date.parse(value) - nowMs
  return Number.isNaN(ms) ? undefined : Math.max(0, ms)
}

/**
 * The pauses before each attempt of a webhook, as Standard Webhooks publishes them: ten attempts in 75 h 35 min. With jitter and with what
 * `Retry-After` may add they end within 88 hours, and so within the four days that a receiver remembers an id.
 */
export const webhookScheduleMs: readonly number[] = [
  0, 5_000, 300_000, 1_800_000, 7_200_000, 18_000_000, 36_000_000, 50_400_000, 72_000_000, 86_400_000,
]

/** A pause of that schedule, a tenth shorter or longer: endpoints that failed together must not be tried together. */
export function webhookPauseMs(pauseMs: number, random: Pick<Random, 'fraction'>): number {
  return Math.round(pauseMs * (0.9 + random.fraction() / 5))
}

const counted = (triesMax: number, firstMs: number, factor: number, maxMs: number): CountedBackoff => ({
  triesMax,
  firstMs,
  factor,
  maxMs,
})

/**
 * An HTTP client asks a server again, with full jitter: 0.25 s on average, then 0.5 s, 1 s and so on up to 10 s. Ends with `totalMs` of the
 * call. Not a row of the table below, all of which a browser would load with it.
 */
export const clientBackoff: Backoff = { firstMs: 500, factor: 2, maxMs: 20_000 }

/** Nothing but time ends these. */
export const backoffs: {
  readonly poll: Backoff
  readonly write: Backoff
  readonly sqliteLock: Backoff
  readonly operation: Backoff
  readonly stepRetry: Backoff
  readonly sweep: Backoff
  readonly broker: Backoff
  readonly message: Backoff
  readonly relay: Backoff
  readonly relayOutage: Backoff
  readonly relayPoll: Backoff
  readonly stream: Backoff
  readonly kafkaPoll: Backoff
  readonly kafkaTransform: Backoff
} = {
  /** A duplicate asks whether the effect has ended: close at first (most effects end within milliseconds), then twice per second. For waitMs. */
  poll: { firstMs: 20, factor: 1.6, maxMs: 500 },
  /** A settle or release that the store did not confirm is repeated until the lease would have ended. */
  write: { firstMs: 50, factor: 2, maxMs: 2_000 },
  /** A commit takes 0.1 to 10 ms. With more than 25 ms between two tries a SQLite lock would lie idle longer than it is used. */
  sqliteLock: { firstMs: 1, factor: 2, maxMs: 25 },
  /** A worker resumes an operation whose attempt failed: the default of `backoff` of an operation. */
  operation: { firstMs: 1_000, factor: 2, maxMs: 300_000 },
  /** A step tries again within one attempt: the default of a step's `retry`, which names the tries. */
  stepRetry: { firstMs: 100, factor: 2, maxMs: 10_000 },
  /**
   * The background sweep, by rounds that found nothing. The process that finds expired entries comes back in a minute. In a fleet the
   * others back off to 5 minutes: with 100 processes the store is asked once in 2 to 3 s, and each time it is one look at an index.
   */
  sweep: { firstMs: 60_000, factor: 2, maxMs: 300_000 },
  /** A consumer asks a broker that is down again: quickly after a hiccup, then every few seconds. */
  broker: { firstMs: 100, factor: 2, maxMs: 5_000 },
  /** A message whose handler failed comes again: soon at first, as most failures pass, then once per minute until it is parked. */
  message: { firstMs: 200, factor: 3, maxMs: 60_000 },
  /** A row of the outbox that a broker refused. Its key waits meanwhile, so the first tries are close. */
  relay: { firstMs: 1_000, factor: 2, maxMs: 300_000 },
  /** A broker that took no message at all, or a database that did not answer the relay. Both are mostly back within seconds. */
  relayOutage: { firstMs: 200, factor: 2, maxMs: 15_000 },
  /**
   * A relay that found nothing looks again, and starts anew when `outbox.add` was called in its own process: a commit is found 5 to 10 ms
   * later. Per shard that has nothing to do it is one look per second.
   */
  relayPoll: { firstMs: 10, factor: 1.5, maxMs: 1_000 },
  /** A consumer of a Redis stream asks for new entries. It does not block a connection for it: five questions per second cost less. */
  stream: { firstMs: 5, factor: 2, maxMs: 200 },
  /** Confluent's client is asked for records that it has fetched. It blocks one of libuv's four threads while it waits, so we wait instead. */
  kafkaPoll: { firstMs: 5, factor: 2, maxMs: 50 },
  /** A transform of `exactlyOnce` that throws is tried again with its whole transaction. */
  kafkaTransform: { firstMs: 100, factor: 2, maxMs: 30_000 },
}

/** These end after `triesMax` tries. */
export const countedBackoffs: {
  readonly transaction: CountedBackoff
  readonly statement: CountedBackoff
  readonly lockedClaim: CountedBackoff
  readonly lockedWrite: CountedBackoff
  readonly lockedMend: CountedBackoff
  readonly migration: CountedBackoff
  readonly undo: CountedBackoff
  readonly relayPark: CountedBackoff
} = {
  /** A transaction or transaction step that loses against others (deadlock, serialization) five times in a row will not win soon. */
  transaction: counted(5, 10, 3, 500),
  /** The same before any effect: a conflict costs one round trip, so the pauses are half as long. */
  statement: counted(5, 5, 3, 250),
  /** An entry that a statement has locked is free a moment later. A claim never waits long: it returns `busy`. */
  lockedClaim: counted(8, 2, 2, 200),
  /** A settle must be written, so it waits 5 s for a transaction that holds the entry. */
  lockedWrite: counted(30, 2, 2, 200),
  /** Half a second. A person who mends waits for an entry that is just being written, not for a long transaction. */
  lockedMend: counted(10, 2, 2, 200),
  /** A migration that needs a table for itself waits a minute or more. Open transactions have mostly ended by then. */
  migration: counted(300, 300, 1, 300),
  /** Three tries outlast a hiccup. An undo that fails longer parks the operation, and a store that does ends the attempt. */
  undo: counted(3, 200, 3, 5_000),
  /** `onFailure: 'park'`: after ten tries, which take 8 to 17 minutes, a person has to look. */
  relayPark: counted(10, 1_000, 2, 300_000),
}

/** Rounds without a pause: a writer that was overtaken reads what is there now, and decides again. */
export const rounds: { readonly claim: number; readonly mend: number; readonly write: number } = {
  /** A claim that is refused finds an entry that another caller has just taken, which is nearly always the end of it. */
  claim: 10,
  /** Another writer has to come between reading and writing each time. Then it is not the moment to mend anything. */
  mend: 10,
  /** A row that is there while it is written and gone while it is read. Three rounds of that are no coincidence. */
  write: 3,
}

/** Pauses that do not grow. */
export const pausesMs: {
  readonly heldKey: number
  readonly heldItem: number
  readonly majority: number
  readonly tableCreation: number
  readonly cacheDown: number
  readonly databaseDown: number
  readonly quarantineSpread: number
  readonly lastReceive: number
  readonly heldRows: number
  readonly relayUpkeep: number
  readonly lastFetch: number
  readonly lastWord: number
  readonly silentStream: number
  readonly sessionSweep: number
  readonly webhookRetryAfterMax: number
  readonly webhookUpkeep: number
} = {
  /**
   * The `retryAfterMs` of a key that an open transaction holds. Most transactions end within milliseconds. Claims ask for a
   * longer one ten times per second.
   */
  heldKey: 100,
  /** The same of an item that a transaction of DynamoDB has. Those take milliseconds. */
  heldItem: 50,
  /** The same of a write that the primary of MongoDB has and a majority has not yet. */
  majority: 10,
  /** DynamoDB makes a table within seconds. */
  tableCreation: 200,
  /** One call per second finds out whether a cache that failed is back. */
  cacheDown: 1_000,
  /** A database that gave no answer to a question beside the calls is not asked again by every call. */
  databaseDown: 1_000,
  /** On a large loss every bucket of a Redis Cluster has evidence within seconds. One of them spreads the quarantine for all. */
  quarantineSpread: 60_000,
  /** A consumer that is stopped gives its last question this long, beyond the time for which the broker waits for messages. */
  lastReceive: 500,
  /** A relay looks for held rows that are due, or that a person has redriven. */
  heldRows: 1_000,
  /** One relay removes old rows and says how far behind the relays are. */
  relayUpkeep: 10_000,
  /** The last question of a consumer of JetStream ends by itself after a second, and is given another one. */
  lastFetch: 2_000,
  /** A consumer that is stopped waits this long for RabbitMQ to confirm the end of the consumer, and as long for the end of the connection. */
  lastWord: 1_000,
  /** A slot's connection that says nothing for this long is given up. PostgreSQL itself speaks every 30 s (wal_sender_timeout). */
  silentStream: 180_000,
  /** A process that registers sessions removes what ended ones left, this long after it last did: it looks through all clients then. */
  sessionSweep: 600_000,
  /** An endpoint may ask for this much with `Retry-After`. With more, a single answer could push a delivery past what its receiver remembers. */
  webhookRetryAfterMax: 3_600_000,
  /** A sender gives up deliveries that are too old, and removes what has ended long ago. */
  webhookUpkeep: 60_000,
}

/** The pauses before each release of a claim whose answer never came. The claim may still be on its way to the store, so the release is repeated. */
export const unheardReleaseDelaysMs: readonly number[] = [0, 100, 1_000, 5_000]

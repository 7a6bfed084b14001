// What a relay knows of the place that its rows come from. An outbox is one. Rows lie in lanes, in the order of their
// commits, and a shard is a share of the lanes. Everything that a relay writes about a shard carries the epoch under which it
// took the shard, and is refused once another relay has taken it.

/** A row that is to be published. */
export interface RelayRow {
  readonly lane: number
  readonly position: number
  readonly id: string
  readonly topic: string
  readonly key: string | undefined
  readonly body: Uint8Array
  readonly headers: Readonly<Record<string, string>>
  /** How long ago it was added, by the database's clock. */
  readonly ageMs: number
  /** How often publishing it has failed. 0 for a row that was never held. */
  readonly tries: number
}

/** Rows of one order key leave one after another. A row without a key is its own. */
export function orderKeyOf({ key, id }: Pick<RelayRow, 'key' | 'id'>): string {
  return key ?? id
}

/** A shard that is ours, until another relay has a higher epoch of it. */
export interface HeldShard {
  readonly shard: number
  readonly epoch: number
  /** Per lane the position up to which every row is sent or held. */
  readonly cursors: ReadonlyMap<number, number>
  /** The order keys that have a held row in front: what comes later of them is held, too. */
  readonly blocked: ReadonlySet<string>
}

/** `waiting` is tried again, `parked` waits for a person and its key with it, `dead` was given up and its key goes on. */
export type HeldState = 'waiting' | 'parked' | 'dead'

export interface HeldRow {
  readonly row: RelayRow
  readonly state: HeldState
  readonly tries: number
  /** When it is tried again, once it is the first of its key. Undefined for a row that waits for a person, or for nothing. */
  readonly dueInMs: number | undefined
  readonly reason: string | undefined
}

/** What a relay writes after it has published, in one transaction. */
export interface RelayMark {
  /** The new cursors of lanes that have moved. */
  readonly cursors: ReadonlyMap<number, number>
  /** Rows behind the new cursors that could not be sent, or that wait for one that could not. */
  readonly hold: readonly HeldRow[]
  /** Held rows that failed again. */
  readonly again: readonly HeldRow[]
  /** Held rows that are sent now. */
  readonly sent: readonly string[]
}

export interface ShardLease {
  readonly shard: number
  readonly owner: string
  readonly isFree: boolean
}

export interface RelaySource {
  /**
   * Says that this relay lives, extends the leases of the shards that it works on, and returns all shards and how many relays live. A
   * shard that is ours without being worked on must become free: nobody else could take it.
   */
  attend(
    owner: string,
    leaseMs: number,
    working: readonly number[],
  ): Promise<{ readonly shards: readonly ShardLease[]; readonly relays: number }>
  /** Takes a shard that is free or ours, under the next epoch. Undefined when another relay has it. */
  take(shard: number, owner: string, leaseMs: number): Promise<HeldShard | undefined>
  /** Gives shards back. */
  give(held: readonly Pick<HeldShard, 'shard' | 'epoch'>[]): Promise<void>
  /** This relay takes no more shards. */
  leave(owner: string): Promise<void>
  /** Rows after the cursors: of each lane the next ones, in their order. `from` is the lane to begin with. */
  read(held: HeldShard, from: number, limit: number): Promise<readonly RelayRow[]>
  /** The order keys that have a held row in front. */
  blocked(shard: number): Promise<ReadonlySet<string>>
  /** Which of these rows are held, in whatever state. */
  heldAmong(ids: readonly string[]): Promise<ReadonlySet<string>>
  /** The waiting rows of order keys whose first row (waiting or parked) is waiting and due, in their order. */
  readDue(shard: number, limit: number): Promise<readonly RelayRow[]>
  /** Writes, if the epoch is still the shard's. 'lost' when it is not: then nothing is written. */
  mark(held: Pick<HeldShard, 'shard' | 'epoch' | 'cursors'>, mark: RelayMark, leaseMs: number): Promise<'done' | 'lost'>
  /** Removes what was sent long ago. */
  retain(): Promise<void>
  status(): Promise<RelayStatus>
}

/** What a relay needs of an outbox. */
export interface RelayOutbox {
  readonly rows: RelaySource
  /**
   * Calls the listener with the lanes of events that were added in this process and commit soon, or without lanes when there is something
   * to look for now. Returns a function that ends it.
   */
  onAdded(listener: (lanes?: readonly number[]) => void): () => void
}

/**
 * Where PostgreSQL stops counting. A relay asks every ten seconds, and must not be slowed down by a backlog of millions: to count one took
 * seconds. So many rows take some milliseconds, and more of them tell a person no more.
 */
export const unsentCountedMax = 10_000

export interface RelayStatus {
  /** Rows that are neither sent nor held. On PostgreSQL at most 10,000 are counted. */
  readonly unsent: number
  /** The age of the oldest row that is neither sent nor held. Undefined when there is none. */
  readonly lagMs: number | undefined
  /** Keys whose first unsent row has failed, and is tried again. */
  readonly blockedKeys: number
  /** The age of the oldest row that blocks its key. */
  readonly headOfLineMs: number | undefined
  /** Rows that wait for a person. */
  readonly parked: number
  readonly dead: number
  /** Rows that wait behind a row that failed, or for their own next try. */
  readonly waiting: number
  readonly shards: number
  /** Shards that no relay works on. */
  readonly shardsIdle: number
}

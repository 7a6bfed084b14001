// Logical decoding in the place of polling, on PostgreSQL: a slot tells the relay of each commit that added rows, milliseconds after
// it. The stream says *where* something is new (lane and position). The rows are read from the table, as always.
//
// Why the stream does not carry the rows. The table and the cursors of the shards decide what is sent: lanes, epochs, marks, held rows,
// dead letters, redrive and retention stay those of the one relay, and a stream that is cut, late, doubled or lost cannot lose a row. So
// a position is acknowledged as soon as it is heard. A broker that is down for a day keeps no log of the database on its disk, as it
// would if acknowledgements waited for it. A transaction of a million rows is 1,024 numbers here.
//
// Invariant: while a session streams, a row that is committed is heard of, or is found by a look at its whole shard that began after the
// session did. Hence such a look per shard after every start of a session and after every taking of a shard. The stream can be ahead of
// the table: the server sends a commit before the row can be seen, long before it with synchronous replication. So what was heard of is
// not forgotten by a look that found nothing, but by the cursor that has passed it.
//
// Each relay has a slot of its own: PostgreSQL lets one connection stream a slot. A relay whose slot is taken, missing or lost polls, says
// so (`relay-decoding`) and tries again. What is left of polling: with the lease, three times per lease, one look for rows that a person
// has redriven, and one look at a shard, each in its turn.

import type { ReplicationLibrary } from '../../clients/logical-replication.ts'
import { sql } from '../../clients/sql-statement.ts'
import { systemClock, systemRandom } from '../../core/clock.ts'
import type { Clock, Random } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { checkOptions, optional, withMethods } from '../../core/options.ts'
import type { Rule } from '../../core/options.ts'
import type { HeldShard, RelayOutbox, RelaySource } from '../relay.ts'
import { createSlot, dropSlot, publicationOf } from './decoding/slot.ts'
import { slotStream } from './decoding/stream.ts'
import type { SlotStream } from './decoding/stream.ts'
import { shardOf } from './lanes.ts'
import { shardsCount } from './reading.ts'
import { tablesIn } from './tables.ts'
import type { OutboxTables } from './tables.ts'

export type { ReplicationLibrary, ReplicationService } from '../../clients/logical-replication.ts'

export interface DecodingOptions {
  /** An outbox on PostgreSQL 14 or later, of `createOutbox`. */
  readonly outbox: RelayOutbox
  /** `import * as library from 'pg-logical-replication'`. */
  readonly library: ReplicationLibrary
  /** What pg's Client takes: `{ connectionString }`. Straight to the server, not through PgBouncer, by a user with the right REPLICATION. */
  readonly connection: object
  /** The slot of this relay: no other process streams it. Lower-case letters, digits and underscores. */
  readonly slot: string
  readonly clock?: Clock
  readonly random?: Random
}

/** What a relay is given in the place of its outbox. It streams from the start of the relay to its stop. */
export interface Decoding extends RelayOutbox {
  /** Creates the publication and the slot, if they are not there. Waits for transactions that are open. */
  create(): Promise<void>
  /** Drops the slot: one that nobody streams keeps the log of the database, and fills the disk. */
  drop(): Promise<void>
  /** Ends the stream. A relay that runs goes on with polling. */
  close(): Promise<void>
}

const slotName: Rule = (value) =>
  typeof value === 'string' && /^[a-z0-9_]{1,63}$/.test(value)
    ? undefined
    : '1 to 63 lower-case letters, digits and underscores'

const aLibrary: Rule = (value) =>
  ['LogicalReplicationService', 'PgoutputPlugin'].every(
    (name) => typeof (value as Record<string, unknown> | undefined)?.[name] === 'function',
  )
    ? undefined
    : `the library: import * as library from 'pg-logical-replication'`

const anObject: Rule = (value) => (typeof value === 'object' && value !== null ? undefined : 'an object')

/**
 * Logical decoding of an outbox on PostgreSQL, for a relay that does not poll: `createRelay({ outbox: decoding, … })`.
 *
 * @example
 * ```ts
 * import pg from 'pg'
 * import { createDecoding, createOutbox, createRelay, functionPublisher } from 'onceonly/outbox'
 * import type { ReplicationLibrary } from 'onceonly/outbox'
 * import { postgresStore } from 'onceonly/postgres'
 *
 * declare const library: ReplicationLibrary // import * as library from 'pg-logical-replication'
 *
 * const connectionString = 'postgres://127.0.0.1/shop'
 * const outbox = createOutbox({ store: postgresStore({ pool: new pg.Pool({ connectionString }) }), source: 'shop' })
 * await outbox.migrate()
 * const decoding = createDecoding({ outbox, library, connection: { connectionString }, slot: 'relay_1' })
 * await decoding.create()
 * createRelay({ outbox: decoding, publisher: functionPublisher(({ topic, id }) => console.log(topic, id)) }).start()
 * ```
 */
export function createDecoding(options: DecodingOptions): Decoding {
  checkOptions('createDecoding', options, {
    outbox: withMethods('onAdded'),
    library: aLibrary,
    connection: anObject,
    slot: slotName,
    clock: optional(withMethods('now', 'elapsed', 'schedule')),
    random: optional(withMethods('fraction')),
  })
  const { outbox, slot, library, connection, clock = systemClock, random = systemRandom } = options
  const tables = postgresTablesOf(outbox)
  const listeners = new Set<() => void>()
  let stream: SlotStream | undefined
  const known = decodedRows(outbox.rows, tables, () => stream)

  const changed = (): void => listeners.forEach((listener) => listener())
  const open = (): SlotStream =>
    slotStream({
      library,
      connection,
      slot,
      publication: publicationOf(tables),
      clock,
      random,
      logEnd: () => logEnd(tables),
      heard: known.heard,
      changed,
    })
  const close = async (): Promise<void> => {
    const closing = stream
    stream = undefined
    await closing?.close()
  }
  return {
    rows: known.rows,
    onAdded(listener) {
      const wake = (): void => listener()
      listeners.add(wake)
      stream ??= open()
      const forget = outbox.onAdded((lanes) => {
        if (!lanes) known.lookAtHeld()
        listener(lanes)
      })
      return () => {
        forget()
        listeners.delete(wake)
        if (listeners.size === 0) void close()
      }
    },
    create: () => createSlot(tables, slot),
    async drop() {
      await close()
      await dropSlot(tables, slot, clock, random)
    },
    close,
  }
}

function postgresTablesOf(outbox: RelayOutbox): OutboxTables {
  const tables = tablesIn(outbox)
  if (tables?.database.dialect === 'postgres') return tables
  throw new OnceError('UNSUPPORTED', {
    message:
      'createDecoding needs an outbox that createOutbox made on PostgreSQL. Elsewhere give the outbox itself to createRelay.',
  })
}

interface DecodedRows {
  readonly rows: RelaySource
  heard(lane: number, position: number): void
  /** A person may have redriven rows. */
  lookAtHeld(): void
}

/** The rows of the outbox, without questions whose answer the stream has given. */
function decodedRows(rows: RelaySource, tables: OutboxTables, stream: () => SlotStream | undefined): DecodedRows {
  const shards = shardsCount(tables)
  /** Per lane the last position that was heard of. It stays when a session ends. */
  const heard = new Map<number, number>()
  /** Shards of which all is known but what is heard of later, and under which session and epoch that was found. */
  const known = new Map<number, string>()
  /** Shards that have held rows to try again. The others are looked at once whenever a person may have redriven rows. */
  const held = new Set<number>()
  const looked = new Map<number, number>()
  let looks = 0
  let turn = 0

  const isNew = async ({ shard, cursors }: HeldShard): Promise<boolean> => {
    const count = await shards()
    return [...heard].some(([lane, position]) => shardOf(lane, count) === shard && position > (cursors.get(lane) ?? 0))
  }
  const noteHeld = (shard: number, isHeld: boolean): void => void (isHeld ? held.add(shard) : held.delete(shard))

  const source: RelaySource = {
    ...rows,
    async attend(owner, leaseMs, working) {
      stream()?.check()
      const standing = await rows.attend(owner, leaseMs, working)
      if (working.length > 0) known.delete(working[turn++ % working.length]!)
      for (const shard of await waitingShards(tables)) looked.delete(shard)
      return standing
    },
    async take(...given) {
      const taken = await rows.take(...given)
      if (taken) noteHeld(taken.shard, taken.blocked.size > 0)
      return taken
    },
    async read(shard, from, limit) {
      const session = stream()?.session()
      if (session === undefined) return rows.read(shard, from, limit)
      const place = `${session} ${shard.epoch}`
      if (known.get(shard.shard) === place && !(await isNew(shard))) return []
      const found = await rows.read(shard, from, limit)
      if (found.length === 0) known.set(shard.shard, place)
      return found
    },
    async readDue(shard, limit) {
      const isStreaming = stream()?.session() !== undefined
      if (isStreaming && !held.has(shard) && looked.get(shard) === looks) return []
      looked.set(shard, looks)
      return rows.readDue(shard, limit)
    },
    async blocked(shard) {
      const keys = await rows.blocked(shard)
      noteHeld(shard, keys.size > 0)
      return keys
    },
    async mark(holding, mark, leaseMs) {
      const marked = await rows.mark(holding, mark, leaseMs)
      if ([...mark.hold, ...mark.again].some(({ state }) => state !== 'dead')) held.add(holding.shard)
      return marked
    },
  }
  return {
    rows: source,
    heard: (lane, position) => void heard.set(lane, Math.max(position, heard.get(lane) ?? 0)),
    lookAtHeld: () => void looks++,
  }
}

async function waitingShards({ database, held }: OutboxTables): Promise<readonly number[]> {
  const found = await database.query(sql`select distinct shard::text as answer from ${held} where state = 'waiting'`)
  return found.map(Number)
}

async function logEnd({ database }: OutboxTables): Promise<string> {
  const [position] = await database.query(sql`select pg_current_wal_flush_lsn()::text as answer`)
  return position!
}

// Publication and slot of an outbox: created and dropped here, and refused by name where the server cannot have them.

import { sql } from '../../../clients/sql-statement.ts'
import { backoffMs, countedBackoffs } from '../../../core/backoff.ts'
import { sleep } from '../../../core/clock.ts'
import type { Clock, Random } from '../../../core/clock.ts'
import { OnceError } from '../../../core/errors.ts'
import type { OutboxTables } from '../tables.ts'

/** Longer names are cut off by PostgreSQL. */
const nameBytesMax = 63

/** The publication is the outbox's, and all slots share it. */
export function publicationOf({ names }: OutboxTables): string {
  return names.outbox.replaceAll('"', '').replaceAll('.', '_').slice(0, nameBytesMax)
}

interface Facts {
  readonly walLevel: string
  readonly version: number
  readonly isMigrated: boolean
  /** Undefined when there is no slot of this name. */
  readonly slot?: { readonly database: string; readonly isOurs: boolean; readonly walStatus: string | null }
}

async function factsOf({ database, names }: OutboxTables, slot: string): Promise<Facts> {
  const [answer] = await database.query(sql`select json_build_object(
  'walLevel', current_setting('wal_level'),
  'version', current_setting('server_version_num')::int,
  'isMigrated', to_regclass(${names.outbox}) is not null,
  'slot', (select json_build_object('database', s.database, 'walStatus', s.wal_status,
      'isOurs', coalesce(s.database = current_database() and s.plugin = 'pgoutput', false))
    from pg_replication_slots s where s.slot_name = ${slot})
)::text as answer`)
  const facts = JSON.parse(answer!) as Facts & { readonly slot: Facts['slot'] | null }
  return { ...facts, slot: facts.slot ?? undefined } as Facts
}

export async function createSlot(tables: OutboxTables, slot: string): Promise<void> {
  const { database, names } = tables
  const facts = await factsOf(tables, slot)
  refuseUnfit(facts, slot)
  // From 15 on the stream carries two numbers per row. Before, it carries the whole row.
  const columns = facts.version >= 150_000 ? ' (lane, position)' : ''
  const publication = publicationOf(tables)
  await database.migrate([
    `do $$ begin
  if not exists (select from pg_publication where pubname = '${publication}') then
    create publication "${publication}" for table ${names.outbox}${columns} with (publish = 'insert', publish_via_partition_root = true);
  end if;
end $$`,
  ])
  if (facts.slot && facts.slot.walStatus !== 'lost') return
  // What a lost slot has missed is read from the table.
  if (facts.slot) await database.query(sql`select pg_drop_replication_slot(${slot})::text as answer`)
  try {
    await database.query(sql`select pg_create_logical_replication_slot(${slot}, 'pgoutput')::text as answer`)
  } catch (error) {
    // Another process may have created it at the same moment.
    if ((await factsOf(tables, slot)).slot?.isOurs !== true) throw error
  }
}

function refuseUnfit({ walLevel, version, isMigrated, slot: found }: Facts, slot: string): void {
  if (version < 140_000) {
    throw unsupported(
      `Logical decoding needs PostgreSQL 14 or later, and this server is ${Math.floor(version / 10_000)}.`,
    )
  }
  if (walLevel !== 'logical') {
    throw unsupported(
      `Logical decoding needs wal_level = logical, and this server has ${walLevel}. Run "alter system set wal_level = logical" and restart PostgreSQL.`,
    )
  }
  if (!isMigrated) {
    throw new OnceError('SCHEMA_MISSING', {
      message: `There is no outbox to decode. Run "await outbox.migrate()" before the slot ${slot} is created.`,
    })
  }
  if (found && !found.isOurs) {
    throw unsupported(
      `The slot ${slot} is of the database ${found.database} or of another plugin than pgoutput. Give another name: slots are shared by all databases of a server.`,
    )
  }
}

function unsupported(message: string): OnceError {
  return new OnceError('UNSUPPORTED', {
    message: `${message} Or give the outbox itself to createRelay, which then polls.`,
  })
}

/** Drops the slot, and the publication with the last slot that could use it. */
export async function dropSlot(tables: OutboxTables, slot: string, clock: Clock, random: Random): Promise<void> {
  const { database } = tables
  const own = sql`slot_name = ${slot} and database = current_database()`
  for (let tries = 1; ; tries++) {
    await database.query(
      sql`select pg_drop_replication_slot(slot_name)::text as answer from pg_replication_slots where ${own} and not active`,
    )
    const [reader] = await database.query(sql`select active_pid::text as answer from pg_replication_slots where ${own}`)
    if (reader === undefined) break
    if (tries === countedBackoffs.lockedMend.triesMax) throw inUse(slot, reader)
    // The server notices a moment later that a connection has ended.
    await sleep(clock, backoffMs(countedBackoffs.lockedMend, tries, random))
  }
  const [left] = await database.query(
    sql`select slot_name::text as answer from pg_replication_slots where database = current_database() and plugin = 'pgoutput' limit 1`,
  )
  if (left === undefined) await database.migrate([`drop publication if exists "${publicationOf(tables)}"`])
}

function inUse(slot: string, reader: string): OnceError {
  return new OnceError('STORE_UNAVAILABLE', {
    message: `The slot ${slot} was not dropped: the server process ${reader} streams it for another relay. Stop that relay first.`,
  })
}

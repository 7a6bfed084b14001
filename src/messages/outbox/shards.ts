// Who works on which shard. A lease decides when another relay may take a shard, by the database's clock. Only the epoch, which grows
// with every take, decides who may write.

import { jsonRow } from '../../clients/sql-columns.ts'
import { integer, join, sql } from '../../clients/sql-statement.ts'
import type { SqlStatement } from '../../clients/sql-statement.ts'
import type { RelaySource, ShardLease } from '../relay.ts'
import type { OutboxTables } from './tables.ts'

export type ShardCalls = Pick<RelaySource, 'attend' | 'take' | 'give' | 'leave' | 'blocked'>

export function shardCalls(tables: OutboxTables): ShardCalls {
  const { database, shards, relays, held } = tables
  const until = (leaseMs: number): SqlStatement => sql`${database.nowMs()} + ${integer(leaseMs)}`
  const announce = (owner: string, leaseMs: number): Promise<unknown> => {
    const insert = sql`insert into ${relays} (owner, until_ms) values (${owner}, ${until(leaseMs)})`
    return database.query(
      database.dialect === 'mysql'
        ? sql`${insert} on duplicate key update until_ms = ${until(leaseMs)}`
        : sql`${insert} on conflict (owner) do update set until_ms = excluded.until_ms`,
    )
  }
  const blocked = async (shard: number): Promise<ReadonlySet<string>> => {
    const own = sql`shard = ${integer(shard)} and state in ('waiting', 'parked')`
    return new Set(await database.query(sql`select distinct ${orderKey(tables)} as answer from ${held} where ${own}`))
  }
  return {
    async attend(owner, leaseMs, working) {
      await announce(owner, leaseMs)
      if (working.length > 0) {
        const own = sql`owner = ${owner} and shard in (${join(working.map(integer), ', ')})`
        await database.query(sql`update ${shards} set lease_until_ms = ${until(leaseMs)} where ${own}`)
      }
      const row = jsonRow(database, 'shard, owner, case when lease_until_ms <= now_ms then 1 else 0 end')
      const answers = await database.query(
        sql`select ${row} from (select s.*, ${database.nowMs()} as now_ms from ${shards} s) s order by shard`,
      )
      const [living] = await database.query(
        sql`select ${jsonRow(database, 'count(*)')} from ${relays} where until_ms > ${database.nowMs()}`,
      )
      return { shards: answers.map(leaseIn), relays: (JSON.parse(living!) as [number])[0] }
    },
    async take(shard, owner, leaseMs) {
      await database.query(sql`update ${shards} set epoch = epoch + 1, owner = ${owner}, lease_until_ms = ${until(leaseMs)}
where shard = ${integer(shard)} and (lease_until_ms <= ${database.nowMs()} or owner = ${owner})`)
      const [taken] = await database.query(
        sql`select ${jsonRow(database, 'epoch, cursors')} from ${shards} where shard = ${integer(shard)} and owner = ${owner}`,
      )
      if (taken === undefined) return undefined
      const [epoch, cursors] = JSON.parse(taken) as [number, string]
      return { shard, epoch, cursors: cursorsIn(cursors), blocked: await blocked(shard) }
    },
    blocked,
    async give(given) {
      for (const { shard, epoch } of given) {
        await database.query(
          sql`update ${shards} set lease_until_ms = 0, owner = '' where shard = ${integer(shard)} and epoch = ${integer(epoch)}`,
        )
      }
    },
    async leave(owner) {
      await database.query(sql`delete from ${relays} where owner = ${owner} or until_ms <= ${database.nowMs()}`)
    },
  }
}

function leaseIn(answer: string): ShardLease {
  const [shard, owner, free] = JSON.parse(answer) as [number, string, number]
  return { shard, owner, isFree: free === 1 }
}

/** Kept as text: `{ "17": 4711 }`. */
export function cursorsIn(text: string): Map<number, number> {
  const entries = Object.entries(JSON.parse(text) as Record<string, number>)
  return new Map(entries.map(([lane, position]) => [Number(lane), position]))
}

export function cursorsText(cursors: ReadonlyMap<number, number>): string {
  return JSON.stringify(Object.fromEntries(cursors))
}

function orderKey({ database }: OutboxTables): SqlStatement {
  return database.dialect === 'mysql' ? sql`convert(order_key using utf8mb4)` : sql`order_key`
}

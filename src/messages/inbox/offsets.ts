// How far a consumer is, for brokers that number their messages. A row per source, which goes forward only: whoever writes it has handled
// everything before, so the greatest of all that was ever written is true, also when a consumer writes that has lost its partition.

import type { SqlDatabase } from '../../clients/sql-database.ts'
import { sql } from '../../clients/sql-statement.ts'
import type { StoredOffsets } from '../broker.ts'
import { columnsOf, read } from '../../clients/sql-columns.ts'

export function offsetsOn(database: SqlDatabase, scope: string): StoredOffsets {
  const { dialect } = database
  const { bound, row } = columnsOf(dialect)
  const table = database.table('inbox_offsets')
  const one = (source: string) => sql`scope = ${bound(scope)} and source = ${bound(source)}`
  const asText = dialect === 'mysql' ? sql`cast(next_offset as char)` : sql`cast(next_offset as text)`
  const forward = {
    mysql: sql`on duplicate key update next_offset = greatest(next_offset, values(next_offset))`,
    postgres: sql`on conflict (scope, source) do update set next_offset = greatest(${table}.next_offset, excluded.next_offset)`,
    sqlite: sql`on conflict (scope, source) do update set next_offset = max(${table}.next_offset, excluded.next_offset)`,
  }[dialect]
  return {
    async next(source) {
      const [found] = await database.query(sql`select ${row(asText)} from ${table} where ${one(source)}`)
      return found === undefined ? undefined : BigInt(read(found)[0] as string)
    },
    async write(tx, source, next) {
      const session = tx === undefined ? database : database.join(tx, 'offsets')
      await session.query(sql`
        insert into ${table} (scope, source, next_offset) values (${bound(scope)}, ${bound(source)}, ${String(next)}) ${forward}`)
    },
    async forget(source) {
      await database.query(sql`delete from ${table} where ${one(source)}`)
    },
  }
}

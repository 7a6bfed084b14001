// Per-entity versions: ordering is another problem than duplication. An update that is older than the one applied is refused, also
// when it comes for the first time.

import type { SqlDatabase, SqlSession } from '../../clients/sql-database.ts'
import { join, sql } from '../../clients/sql-statement.ts'
import { OnceError } from '../../core/errors.ts'
import { among, columnsOf, read } from './columns.ts'
import type { EntityVersion, Read } from './message.ts'

export interface Versions {
  /** Those whose entity has this version or a newer one already. The versions of the others are raised, in the same transaction. */
  stale<M>(session: SqlSession, messages: readonly Read<M>[]): Promise<ReadonlySet<Read<M>>>
}

export function versionsOn(database: SqlDatabase, scope: string): Versions {
  const { dialect } = database
  const { bound, name, readName, row, forUpdate } = columnsOf(dialect)
  const table = database.table('inbox_versions')
  const asText = dialect === 'mysql' ? sql`cast(version as char)` : sql`cast(version as text)`

  /** What is applied, of those of these entities that have a version. Their rows are locked. */
  const applied = async (session: SqlSession, entities: readonly string[]): Promise<Map<string, bigint>> => {
    const found = await session.query(sql`
      select ${row(name(sql`entity`), asText)} from ${table}
      where scope = ${bound(scope)} and ${among(sql`entity`, entities.map(bound))} order by entity ${forUpdate}`)
    return new Map(found.map(read).map(([entity, version]) => [readName(entity), BigInt(version as string)]))
  }

  const raise = async (session: SqlSession, versions: readonly EntityVersion[]): Promise<void> => {
    const rows = versions.map(({ entity, version }) => sql`(${bound(scope)}, ${bound(entity)}, ${String(version)})`)
    const greater = {
      mysql: sql`on duplicate key update version = greatest(version, values(version))`,
      postgres: sql`on conflict (scope, entity) do update set version = greatest(${table}.version, excluded.version)`,
      sqlite: sql`on conflict (scope, entity) do update set version = max(${table}.version, excluded.version)`,
    }[dialect]
    await session.query(sql`insert into ${table} (scope, entity, version) values ${join(rows, ', ')} ${greater}`)
    const now = await applied(
      session,
      versions.map(({ entity }) => entity),
    )
    // The row was not there to be locked, and another transaction has made it in between.
    if (versions.every(({ entity, version }) => now.get(entity) === BigInt(version))) return
    throw new OnceError('TRANSACTION_CONFLICT', {
      message: 'Another transaction has applied a version of the same entity. Run the whole transaction again.',
    })
  }

  return {
    async stale(session, messages) {
      const versioned = messages.filter(({ version }) => version !== undefined)
      const stale = new Set<(typeof messages)[number]>()
      if (versioned.length === 0) return stale
      const last = await applied(session, [...new Set(versioned.map(({ version }) => version!.entity))])
      const raised = new Map<string, EntityVersion>()
      for (const message of versioned) {
        const { entity, version } = message.version!
        const before = last.get(entity)
        if (before !== undefined && BigInt(version) <= before) {
          stale.add(message)
          continue
        }
        last.set(entity, BigInt(version))
        raised.set(entity, { entity, version })
      }
      if (raised.size > 0) await raise(session, [...raised.values()])
      return stale
    },
  }
}

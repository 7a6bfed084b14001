// Per-entity versions: ordering is another problem than duplication. An update that is older than the one applied is refused, also
// when it comes for the first time.

import type { SqlDatabase, SqlSession } from '../../clients/sql-database.ts'
import { join, sql } from '../../clients/sql-statement.ts'
import type { SqlStatement } from '../../clients/sql-statement.ts'
import { among, columnsOf, read } from '../../clients/sql-columns.ts'
import type { EntityVersion, Read } from './message.ts'

export interface Versions {
  /** Those whose entity has this version or a newer one already. The versions of the others are raised, in the same transaction. */
  stale<M>(session: SqlSession, messages: readonly Read<M>[]): Promise<ReadonlySet<Read<M>>>
}

/** Less than every version: the smallest whole number of 64 bits. */
const versionNone = -(2n ** 63n)

export function versionsOn(database: SqlDatabase, scope: string): Versions {
  const { dialect } = database
  const { bound, name, readName, row, forUpdate, insert, orNothing } = columnsOf(dialect)
  const table = database.table('inbox_versions')
  const greater = {
    mysql: sql`on duplicate key update version = greatest(version, values(version))`,
    postgres: sql`on conflict (scope, entity) do update set version = greatest(${table}.version, excluded.version)`,
    sqlite: sql`on conflict (scope, entity) do update set version = max(${table}.version, excluded.version)`,
  }[dialect]
  const asText = dialect === 'mysql' ? sql`cast(version as char)` : sql`cast(version as text)`

  /** What is applied, of those of these entities that have a version. Their rows are locked. */
  const applied = async (session: SqlSession, entities: readonly string[]): Promise<Map<string, bigint>> => {
    const found = await session.query(sql`
      select ${row(name(sql`entity`), asText)} from ${table}
      where scope = ${bound(scope)} and ${among(sql`entity`, entities.map(bound))} order by entity ${forUpdate}`)
    return new Map(found.map(read).map(([entity, version]) => [readName(entity), BigInt(version as string)]))
  }

  const rows = (versions: readonly EntityVersion[]): SqlStatement =>
    join(
      versions.map(({ entity, version }) => sql`(${bound(scope)}, ${bound(entity)}, ${String(version)})`),
      ', ',
    )

  const raise = async (session: SqlSession, versions: readonly EntityVersion[]): Promise<void> => {
    await session.query(sql`insert into ${table} (scope, entity, version) values ${rows(versions)} ${greater}`)
  }

  // An entity without a row has nothing to lock, and two first versions of it would not see each other.
  const locked = async (session: SqlSession, entities: readonly string[]): Promise<Map<string, bigint>> => {
    const found = await applied(session, entities)
    const missing = entities.filter((entity) => !found.has(entity))
    if (missing.length === 0) return found
    const none = missing.toSorted().map((entity) => ({ entity, version: versionNone }))
    await session.query(sql`${insert} ${table} (scope, entity, version) values ${rows(none)} ${orNothing}`)
    return applied(session, entities)
  }

  return {
    async stale(session, messages) {
      const versioned = messages.filter(({ version }) => version !== undefined)
      const stale = new Set<(typeof messages)[number]>()
      if (versioned.length === 0) return stale
      const last = await locked(session, [...new Set(versioned.map(({ version }) => version!.entity))])
      const raised = new Map<string, EntityVersion>()
      for (const message of versioned) {
        const { entity, version } = message.version!
        if (BigInt(version) <= last.get(entity)!) {
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

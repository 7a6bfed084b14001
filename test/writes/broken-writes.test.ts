// A contract that passes everything proves nothing: each of these writes is wrong in one way that is common, and a case must fail.
import { DatabaseSync } from 'node:sqlite'
import { expect, test } from 'vitest'
import { sqliteWrites, type WriteName } from '../../src/writes/index.ts'
import { namesAreOnlyNames, valuesAreOnlyValues } from './contract/hostile.ts'
import { racingChanges, racingUpserts } from './contract/races.ts'
import { repeatedChanges, repeatedConditions, repeatedUpserts, repeatedVersions } from './contract/repeats.ts'
import { subjectOf } from './contract/subject.ts'
import { insideTransactions, otherConstraints } from './contract/transactions.ts'
import { sqliteGround, type Handle } from './sqlite-ground.ts'

type Wrong = (database: Handle, table: string, request: Record<string, Record<string, never>>) => unknown

const columns = (row: object): string => Object.keys(row).join(', ')
const holes = (row: object): string =>
  Object.keys(row)
    .map(() => '?')
    .join(', ')
const assigned = (row: object): string =>
  Object.keys(row)
    .map((name) => `${name} = ?`)
    .join(', ')
const run = (database: Handle, text: string, ...rows: object[]): number => {
  const values = rows.flatMap((row) => Object.values(row) as never[])
  return database.prepare(`${text} returning 1`).all(...values).length
}

const insertWith =
  (words: string): Wrong =>
  (database, table, { key, set, setOnInsert, newer }) => {
    const row = { ...key, ...setOnInsert, ...set, ...newer }
    return run(database, `${words} into ${table} (${columns(row)}) values (${holes(row)})`, row) > 0
      ? 'applied'
      : 'already'
  }

const wrong: readonly [what: string, write: WriteName, body: Wrong][] = [
  ['INSERT OR IGNORE, which swallows every other constraint', 'insertOnce', insertWith('insert or ignore')],
  ['INSERT OR REPLACE, which loses what it does not name', 'insertOnce', insertWith('insert or replace')],
  ['REPLACE for an upsert', 'upsert', insertWith('replace')],
  ['REPLACE whatever the version', 'upsertIfNewer', insertWith('replace')],
  [
    'an upsert that does not look at what is expected',
    'upsertIf',
    (database, table, { key, set, setOnInsert }) => {
      const row = { ...key, ...setOnInsert, ...set }
      const excluded = Object.keys(set!).map((name) => `${name} = excluded.${name}`)
      const insert = `insert into ${table} (${columns(row)}) values (${holes(row)})`
      run(database, `${insert} on conflict (${columns(key!)}) do update set ${excluded.join(', ')}`, row)
      return 'applied'
    },
  ],
  ['an insert that takes whatever row is there for the one that it meant', 'upsertIf', insertWith('insert or ignore')],
  [
    'a read, and then a write of what was read',
    'upsertIf',
    async (database, table, { key, expect: expected, set, setOnInsert }) => {
      const found = database
        .prepare(`select * from ${table} where ${assigned(key!)}`)
        .all(...(Object.values(key!) as never[]))[0] as Record<string, unknown> | undefined
      const holds = (row: object): boolean => Object.entries(row).every(([name, value]) => found?.[name] === value)
      await new Promise((resolve) => setTimeout(resolve))
      if (found && holds(set!)) return 'already'
      if (found && !holds(expected!)) return 'conflict'
      if (found) run(database, `update ${table} set ${assigned(set!)} where ${assigned(key!)}`, set!, key!)
      else insertWith('replace')(database, table, { key: key!, set: { ...setOnInsert, ...set } as never })
      return 'applied'
    },
  ],
  [
    'an update that does not look at what is expected',
    'compareAndSet',
    (database, table, { key, set }) => {
      const found = run(database, `update ${table} set ${assigned(set!)} where ${assigned(key!)}`, set!, key!)
      return found > 0 ? 'applied' : 'missing'
    },
  ],
  [
    'a counter without marks',
    'addOnce',
    (database, table, { key, add }) => {
      const sums = Object.keys(add!).map((name) => `${name} = coalesce(${name}, 0) + ?`)
      return run(database, `update ${table} set ${sums.join(', ')} where ${assigned(key!)}`, add!, key!) > 0
        ? 'applied'
        : 'missing'
    },
  ],
  [
    'an event at whatever version',
    'appendOnce',
    (database, table, { key, stream, after, set }) => {
      const row = { ...key, ...stream, version: (after as unknown as number) + 1, ...set }
      const words = `insert or ignore into ${table} (${columns(row)}) values (${holes(row)})`
      return run(database, words, row) > 0 ? 'appended' : 'already'
    },
  ],
]

async function failures(replaced: { name: WriteName; body: Wrong } | undefined): Promise<string[]> {
  const database = new DatabaseSync(':memory:') as Handle
  const writes = sqliteWrites(database)
  const given = replaced
    ? { ...writes, [replaced.name]: (table: string, request: never) => replaced.body(database, table, request) }
    : writes
  const ground = sqliteGround(database, given)
  const cases: [string, () => Promise<void>][] = []
  const once = (event: string) => ({ table: 'marks', key: { event_id: event } })
  const subject = subjectOf({ ground: () => ground, cannot: {}, once }, (name, body) => void cases.push([name, body]))
  for (const add of [repeatedUpserts, repeatedVersions, repeatedConditions, repeatedChanges]) add(subject)
  for (const add of [racingUpserts, racingChanges]) add(subject)
  for (const add of [valuesAreOnlyValues, namesAreOnlyNames, insideTransactions, otherConstraints]) add(subject)
  const failed: string[] = []
  for (const [name, body] of cases) await body().catch(() => failed.push(name))
  await ground[Symbol.asyncDispose]()
  return failed
}

test('the contract passes writes that are right', async () => {
  expect(await failures(undefined)).toEqual([])
})

test.each(wrong)('the contract finds %s (%s)', async (_, name, body) => {
  expect(await failures({ name, body })).not.toEqual([])
})

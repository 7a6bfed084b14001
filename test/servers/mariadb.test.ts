// MariaDB as the tests get it: what it keeps over a crash.
import { createConnection } from 'mysql2/promise'
import { expect, test } from 'vitest'
import { startMariadb } from './mariadb.ts'
import { needs } from './needs.ts'

async function query(url: string, sql: string): Promise<unknown> {
  const connection = await createConnection(url)
  try {
    const [rows] = await connection.query(sql)
    return rows
  } finally {
    await connection.end()
  }
}

needs('mariadb', { ours: true }).describe('a MariaDB of our own', () => {
  test('keeps what was committed over a crash and an orderly restart', async () => {
    await using server = await startMariadb()
    const url = await server.createDatabase()
    await query(url, 'CREATE TABLE kept (value int)')
    await query(url, 'INSERT INTO kept VALUES (42)')
    await server.crash()
    await server.restart()
    expect(await query(url, 'SELECT value FROM kept')).toEqual([{ value: 42 }])
    await server.restart()
    expect(await query(url, 'SELECT value FROM kept')).toEqual([{ value: 42 }])
  })

  test('given by URL is used in a database of its own, which is dropped', async () => {
    await using server = await startMariadb()
    process.env['ONCEONLY_MYSQL_URL'] = server.url
    try {
      const given = await startMariadb()
      expect(await query(given.url, 'SELECT 1 AS one')).toEqual([{ one: 1 }])
      await given.stop()
      await expect(query(given.url, 'SELECT 1')).rejects.toThrow(/Unknown database/)
    } finally {
      delete process.env['ONCEONLY_MYSQL_URL']
    }
  })
})

// MySQL itself as the tests get it: that it is no MariaDB, and what it keeps over a crash.
import { createConnection, type RowDataPacket } from 'mysql2/promise'
import { expect, test } from 'vitest'
import { startMysql } from './mysql.ts'
import { needs } from './needs.ts'

async function query(url: string, sql: string): Promise<RowDataPacket[]> {
  const connection = await createConnection(url)
  try {
    const [rows] = await connection.query<RowDataPacket[]>(sql)
    return rows
  } finally {
    await connection.end()
  }
}

needs('mysql', { ours: true }).describe('a MySQL of our own', () => {
  test('is MySQL, and keeps what was committed over a crash and an orderly restart', async () => {
    await using server = await startMysql()
    const url = await server.createDatabase()
    const [about] = await query(url, 'SELECT version() AS version, @@version_comment AS comment')
    expect(`${about!['version']} ${about!['comment']}`).not.toContain('MariaDB')
    await query(url, 'CREATE TABLE kept (value int)')
    await query(url, 'INSERT INTO kept VALUES (42)')
    await server.crash()
    await server.restart()
    expect(await query(url, 'SELECT value FROM kept')).toEqual([{ value: 42 }])
    await server.restart()
    expect(await query(url, 'SELECT value FROM kept')).toEqual([{ value: 42 }])
  })
})

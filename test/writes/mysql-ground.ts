// MariaDB or MySQL for the writes: one database, its tables, a transaction of mysql2. The collation is one that folds letters, as most are.
import type { Pool, RowDataPacket } from 'mysql2/promise'
import { mysqlWrites } from '../../src/writes/index.ts'
import { createPool, inTransaction } from '../subjects/mysql.ts'
import { startMariadb } from '../servers/mariadb.ts'
import { asTexts, tables, type WritesGround } from './ground.ts'

export interface MysqlWritesGround extends WritesGround {
  readonly url: string
  readonly pool: Pool
}

const schema = [
  `create table things (
    id varchar(200) primary key, name varchar(200), note varchar(200), visits bigint, version bigint, email varchar(200) unique
  ) engine = InnoDB character set utf8mb4 collate utf8mb4_unicode_ci`,
  `create table marks (event_id varchar(200) primary key) engine = InnoDB`,
  `create table events (
    event_id varchar(200) primary key, stream varchar(200) not null, version bigint not null, body text,
    unique (stream, version)
  ) engine = InnoDB`,
]

export async function startMysqlWritesGround(start = startMariadb): Promise<MysqlWritesGround> {
  const server = await start()
  const url = await server.createDatabase()
  const pool = createPool(url, { supportBigNumbers: true, bigNumberStrings: true })
  for (const statement of schema) await pool.query(statement)
  return {
    url,
    pool,
    run: (work) => inTransaction(pool, (tx) => work(mysqlWrites(tx))),
    async row(table, key) {
      const [column, value] = Object.entries(key)[0]!
      const [rows] = await pool.query<RowDataPacket[]>(`select * from ${table} where ${column} = ?`, [value])
      return rows[0] && asTexts(rows[0])
    },
    async reset() {
      for (const table of tables) await pool.query(`delete from ${table}`)
    },
    async [Symbol.asyncDispose]() {
      await pool.end()
      await server.stop()
    },
  }
}

// The writes on MariaDB keep the contract.
import { afterAll, beforeAll } from 'vitest'
import { needs } from '../servers/needs.ts'
import { writesContract } from './contract.ts'
import { startMysqlWritesGround, type MysqlWritesGround } from './mysql-ground.ts'

needs('mariadb').describe('the writes on MariaDB', () => {
  let ground: MysqlWritesGround
  beforeAll(async () => void (ground = await startMysqlWritesGround()))
  afterAll(() => ground[Symbol.asyncDispose]())

  writesContract({
    ground: () => ground,
    cannot: {},
    once: (event) => ({ table: 'marks', key: { event_id: event } }),
  })
})

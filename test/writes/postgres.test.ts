// The writes on PostgreSQL keep the contract.
import { afterAll, beforeAll } from 'vitest'
import { needs } from '../servers/needs.ts'
import { writesContract } from './contract.ts'
import { startPostgresWritesGround, type PostgresWritesGround } from './postgres-ground.ts'

needs('postgres').describe('the writes on PostgreSQL', () => {
  let ground: PostgresWritesGround
  beforeAll(async () => void (ground = await startPostgresWritesGround()))
  afterAll(() => ground[Symbol.asyncDispose]())

  writesContract({
    ground: () => ground,
    cannot: {},
    once: (event) => ({ table: 'marks', key: { event_id: event } }),
  })
})

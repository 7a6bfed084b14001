// What the doctor says of a real server's replication slots. Its other checks are in test/cli/doctor.test.ts.
import { expect } from 'vitest'
import type { FitnessCheck } from '../../core/fitness.ts'
import { needs } from '../../../test/servers/needs.ts'
import { startPostgres } from '../../../test/servers/postgres.ts'
import { createPool } from '../../../test/subjects/postgres.ts'
import { postgresFitness } from '../postgres.ts'

const settings = { wal_level: 'logical', max_slot_wal_keep_size: '96MB' }

needs('postgres', { ours: true }).test(
  'a slot that nobody reads is found before it fills the disk, and when the server has given it up',
  async () => {
    await using server = await startPostgres({ settings })
    const pool = createPool(server.url)
    const ask = async (statement: string): Promise<void> => void (await pool.query(statement))
    const slots = async (): Promise<FitnessCheck | undefined> =>
      (await postgresFitness({ pool, longestMs: 1_000 }).checks(0)).find(({ name }) => name === 'postgres-slots')
    // A segment of the log has 16 MB.
    const write = async (segments: number): Promise<void> => {
      for (let segment = 0; segment < segments; segment++) {
        await ask('insert into noise values (1)')
        await ask('select pg_switch_wal()')
      }
    }
    try {
      await ask('create table noise (n int)')
      expect(await slots()).toMatchObject({ verdict: 'ok', found: 'there is no replication slot' })
      await ask(`select pg_create_logical_replication_slot('relay_1', 'pgoutput')`)
      const well = { verdict: 'ok', found: 'relay_1 keeps 0 MB of log, is read by nobody (reserved)' }
      expect(await slots()).toMatchObject(well)
      await write(4)
      expect(await slots()).toMatchObject({
        verdict: 'warning',
        found: expect.stringMatching(/^relay_1 keeps [56]\d MB of log, is read by nobody/) as string,
        mend: `Start what reads relay_1, or if that is gone: select pg_drop_replication_slot('relay_1');`,
      })
      await write(4)
      await ask('checkpoint')
      expect(await slots()).toMatchObject({
        verdict: 'warning',
        found: 'relay_1 has lost what it had not read, is read by nobody (lost)',
        mend: expect.stringMatching(/^select pg_drop_replication_slot\('relay_1'\); then create it anew/) as string,
      })
    } finally {
      await pool.end()
    }
  },
)

// Transactions of Prisma, for real, in the same cases as those of the other libraries, and as a user of `once` has them.

import type pg from 'pg'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { clientTransactionCases } from '../../../test/subjects/client-transactions.ts'
import { createPool, type PostgresGround, startPostgresGround } from '../../../test/subjects/postgres.ts'
import { needs } from '../../../test/servers/needs.ts'
import { createPrismaClient, type PrismaClient } from '../../../test/servers/prisma.ts'
import { key } from '../../core/key.ts'
import { createOnce } from '../../core/once.ts'
import { postgresStore } from '../postgres.ts'
import type { PostgresTransaction } from '../postgres.ts'

// Every character that means something to one of the layers on the way.
const odd = key(`it's "quoted"`, String.raw`\ ? $1 :name {a,b} %s -- ; ' 🙂`)

const raisingTrigger = `
  create function public.raising() returns trigger language plpgsql as $$ begin
    if new.name like 'raise %' then raise exception using errcode = substring(new.name from 7); end if;
    return new;
  end $$;
  create trigger raising before insert on public.effects for each row execute function public.raising();
`

needs(['postgres', 'prisma'], { ours: true }).describe('transactions of Prisma', () => {
  let ground: PostgresGround
  let pool: pg.Pool
  let prisma: PrismaClient
  beforeAll(async () => {
    ground = await startPostgresGround()
    await ground.admin.query(raisingTrigger)
    pool = createPool(ground.url)
    prisma = await createPrismaClient(ground.url)
  })
  beforeEach(() => ground.reset())
  afterAll(async () => {
    await prisma.$disconnect()
    await pool.end()
    await ground[Symbol.asyncDispose]()
  })

  const effects = async (): Promise<string[]> => {
    const { rows } = await ground.admin.query<{ name: string }>('select name from public.effects order by name')
    return rows.map((row) => row.name)
  }
  const errors = {
    title: 'a serialization failure is a conflict, however it is wrapped; others are not',
    conflicts: { 40001: true, '40P01': true, 23505: false, 57014: false },
  }
  clientTransactionCases<PostgresTransaction>(
    { clientNames: ['Prisma'], odd, errors },
    {
      store: () => postgresStore({ pool }),
      clients: () => [
        {
          name: 'Prisma',
          run: (work) => prisma.$transaction((tx) => work(tx, (name) => tx.effect.create({ data: { name } }))),
          close: async () => undefined,
        },
      ],
      effects,
      wrong: async () => ({ values: [prisma], close: async () => undefined }),
      async outside() {
        const tx = await pool.connect()
        return { tx, release: () => tx.release() }
      },
    },
  )

  test('once.within(tx) in prisma.$transaction: one effect, a replay, and nothing when Prisma rolls back', async () => {
    const once = createOnce({ store: postgresStore({ pool }), scope: 'shop' })
    const buy = (fails: boolean) =>
      prisma.$transaction(async (tx) => {
        const result = await once.within(tx).run('order-1', async () => {
          await tx.effect.create({ data: { name: 'order-1' } })
          return { bought: true }
        })
        if (fails) throw new Error('taken back')
        return result
      })
    await expect(buy(true)).rejects.toThrow('taken back')
    expect(await effects()).toEqual([])
    expect(await buy(false)).toEqual({ value: { bought: true }, replayed: false, attempt: 1 })
    expect(await buy(false)).toEqual({ value: { bought: true }, replayed: true, attempt: 1 })
    expect(await effects()).toEqual(['order-1'])
  })

  test('the client itself is no transaction: INVALID_ARGUMENT says what to write, and no retry is worth it', async () => {
    const once = createOnce({ store: postgresStore({ pool }), scope: 'shop' })
    let ran = false
    const outside = once.within(prisma as unknown as PostgresTransaction).run('order-1', () => void (ran = true))
    await expect(outside).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      executed: 'no',
      retryable: false,
      message: expect.stringContaining('prisma.$transaction(async (tx) => …)') as string,
    })
    expect(ran).toBe(false)
  })
})

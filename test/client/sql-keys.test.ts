// Keys in a database: the contract of key stores, and a key that commits with the caller's transaction or does not exist.

import { describe, expect, test } from 'vitest'
import { sqlKeys } from '../../src/client/node.ts'
import type { SqlKeys } from '../../src/client/node.ts'
import { startMysqlMessages, startPostgresMessages, startSqliteMessages } from '../messages/grounds.ts'
import type { MessagesGround, OpenStore } from '../messages/grounds.ts'
import { needs } from '../servers/needs.ts'
import { keyStoreCases, record } from './key-store-contract.ts'
import { openShop, payments, post } from './shop.ts'

const keysOf = ({ store }: OpenStore): SqlKeys<unknown> => sqlKeys<unknown>({ store: store as never })

function suite(start: () => Promise<MessagesGround>): void {
  test('the contract of key stores, and a key in the caller’s transaction', async () => {
    await using ground = await start()
    await using opened = await ground.openStore()
    await using second = await ground.openStore()
    const [one, other] = [keysOf(opened), keysOf(second)]
    await expect(one.open(record('pay', 'k1'))).rejects.toMatchObject({ code: 'SCHEMA_MISSING' })
    await one.migrate()
    await other.migrate()
    for (const { run } of keyStoreCases) {
      await run({ one, other })
      await ground.ask('delete from onceonly_client_keys')
    }
    await named(opened, one)
    await inTransactions(opened, one)
  })
}

/** Keys with a name are others: a session client on the same database has its own. */
async function named({ store }: OpenStore, plain: SqlKeys<unknown>): Promise<void> {
  const till = sqlKeys<unknown>({ store: store as never, name: 'till-7' })
  await plain.open(record('pay', 'k1'))
  expect(await till.get('pay')).toBeUndefined()
  const own = record('pay', 'k2')
  expect(await till.open(own)).toBe(own)
  await till.save({ ...own, windowMs: 0 })
  expect([await till.list(), await plain.list()]).toMatchObject([[{ key: 'k2', windowMs: 0 }], [{ key: 'k1' }]])
  await till.remove('pay', 'k2')
  expect([await till.list(), (await plain.get('pay'))?.key]).toEqual([[], 'k1'])
  await plain.remove('pay', 'k1')
}

async function inTransactions({ database }: OpenStore, keys: SqlKeys<unknown>): Promise<void> {
  const shop = openShop()
  const client = shop.client({ keys })
  const prepare = async (operation: string): Promise<{ end(how: 'commit' | 'rollback'): Promise<void> }> => {
    const transaction = await database.begin({ scope: 'test', id: operation })
    await client.prepare(payments, post('{}'), { operation, keys: keys.within(transaction.tx) })
    return { end: (how) => transaction[how]() }
  }
  await (await prepare('rolled back')).end('rollback')
  await (await prepare('committed')).end('commit')
  expect(await client.pending()).toMatchObject([{ operation: 'committed', state: 'waiting' }])
  // The process dies here. Nothing was sent before the commit.
  expect(shop.seen).toEqual([])
  const restarted = shop.client({ keys })
  expect(await restarted.resume(() => {})).toEqual({ settled: ['committed'], failed: [] })
  expect([shop.ledger, await restarted.pending()]).toEqual([['{}'], []])
}

describe('sqlite', () => suite(startSqliteMessages))
needs('postgres').describe('postgres', () => suite(() => startPostgresMessages()))
needs('mariadb').describe('mariadb', () => suite(() => startMysqlMessages()))

// Keys in doubt of every tenant, and deciding about them in bulk, on real servers: each store has its own order of keys.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test, vi } from 'vitest'
import { openStore } from '../../src/cli/open-store.ts'
import { InDoubtError } from '../../src/core/errors.ts'
import { createOnce } from '../../src/core/once.ts'
import type { MemoryStore } from '../../src/stores/memory.ts'
import type { StoreName } from '../servers/index.ts'
import { startDynamodb } from '../servers/dynamodb.ts'
import { startMariadb } from '../servers/mariadb.ts'
import { startMongodb } from '../servers/mongodb.ts'
import { needs } from '../servers/needs.ts'
import { pollUntil } from '../servers/poll.ts'
import { startPostgres } from '../servers/postgres.ts'
import { startRedis } from '../servers/redis.ts'

vi.stubEnv('AWS_ACCESS_KEY_ID', 'onceonly')
vi.stubEnv('AWS_SECRET_ACCESS_KEY', 'onceonly')

interface Place {
  readonly url: string
  stop(): unknown
}

function inFolder(): Place {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-in-doubt-'))
  return { url: `sqlite:${join(folder, 'once.db')}`, stop: () => rmSync(folder, { recursive: true, force: true }) }
}

const places: readonly [name: StoreName, start: () => Promise<Place>, urlOf: (url: string) => string][] = [
  ['sqlite', async () => inFolder(), (url) => url],
  ['postgres', startPostgres, (url) => url],
  ['mariadb', startMariadb, (url) => url],
  ['redis', startRedis, (url) => `${url}?durability=relaxed`],
  ['mongodb', startMongodb, (url) => url.replace('/?', '/test?')],
  ['dynamodb', startDynamodb, (url) => `dynamodb:in_doubt?region=local&endpoint=${encodeURIComponent(url)}`],
]

const decided = { charged: { value: 'r1' }, absent: 'release', later: { keepMs: 86_400_000 * 90 } } as const

for (const [name, start, urlOf] of places) {
  needs(name).describe(name, () => {
    test('keys in doubt of every tenant are listed and reconciled, and of no other service', async () => {
      const place = await start()
      await using _ended = { [Symbol.asyncDispose]: async () => void (await place.stop()) }
      const { store, close } = await openStore(urlOf(place.url))
      await store.migrate?.()
      const once = createOnce({ store: store as MemoryStore, scope: 'shop', sweepEveryMs: false })
      try {
        const scopes = ['shop', 'shop/', 'shop/acme', 'shop/z%C3%A9']
        const others = ['a', 'shop-x', 'shop.x', 'shop0', 'shopping/acme', 'ü']
        for (const scope of [...scopes, ...others]) {
          for (const id of ['charged', 'absent', 'later', 'unknown']) {
            const lost = (): Promise<never> => Promise.reject(new InDoubtError('no answer'))
            await once.run({ scope, id }, lost, { leaseMs: 1 }).catch(() => undefined)
          }
        }
        const inDoubt = async (): Promise<string[]> => {
          const found: string[] = []
          for await (const { key, tenant } of once.inDoubt()) found.push(`${key.scope} ${key.id} ${tenant ?? '-'}`)
          return found.toSorted()
        }
        const tenants = ['-', '', 'acme', 'zé']
        const expected = (...ids: string[]): string[] =>
          scopes.flatMap((scope, at) => ids.map((id) => `${scope} ${id} ${tenants[at]}`)).toSorted()
        // DynamoDB goes by the clocks of machines, and lets a lease end some seconds late.
        await pollUntil('the leases to be over', async () => (await inDoubt()).length === 16)
        expect(await inDoubt()).toEqual(expected('absent', 'charged', 'later', 'unknown'))
        const report = await once.reconcileKeys(async ({ key }) => decided[key.id as keyof typeof decided], {
          reason: 'a test',
        })
        expect(report).toEqual({ resolved: 4, released: 4, kept: 4, left: 4, passed: 0, failed: [], more: false })
        expect(await inDoubt()).toEqual(expected('later', 'unknown'))
        const key = { scope: 'shop/acme', id: 'charged' }
        expect(await once.run(key, () => 'ran')).toMatchObject({ replayed: true, value: 'r1' })
        expect(await once.run({ ...key, id: 'absent' }, () => 'ran')).toMatchObject({ replayed: false, value: 'ran' })
        expect((await store.audit!({ ...key, id: 'later' })).at(-1)).toMatchObject({ action: 'keep', reason: 'a test' })
      } finally {
        await once.close()
        await close()
      }
    })
  })
}

// What the dashboard asks, on every store that can be had: each has its own order of keys and its own way to walk over them.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { openStore } from '../../src/cli/open-store.ts'
import { InDoubtError } from '../../src/core/errors.ts'
import { createOnce } from '../../src/core/once.ts'
import type { MemoryStore } from '../../src/stores/memory.ts'
import { entriesOf, hasLedger, operationsSection, startJournal } from '../../src/gateway/admin.ts'
import type { StoreName } from '../servers/index.ts'
import { startMariadb } from '../servers/mariadb.ts'
import { startMongodb } from '../servers/mongodb.ts'
import { needs } from '../servers/needs.ts'
import { startPostgres } from '../servers/postgres.ts'
import { startRedis } from '../servers/redis.ts'

interface Place {
  readonly url: string
  stop(): unknown
}

const asItIs = (url: string): string => url

const places: readonly [name: StoreName, start: () => Promise<Place>, urlOf: (url: string) => string][] = [
  ['sqlite', async () => inFolder(mkdtempSync(join(tmpdir(), 'onceonly-admin-'))), asItIs],
  ['postgres', startPostgres, asItIs],
  ['mariadb', startMariadb, asItIs],
  ['redis', startRedis, (url) => `${url}?durability=relaxed`],
  ['mongodb', startMongodb, (url) => url.replace('/?', '/test?')],
]

function inFolder(folder: string): Place {
  return { url: `sqlite:${join(folder, 'once.db')}`, stop: () => rmSync(folder, { recursive: true, force: true }) }
}

for (const [name, start, urlOf] of places) {
  needs(name).describe(name, () => {
    test('pages, scopes, search, counts, one life and a manual change', async () => {
      const place = await start()
      await using _ended = { [Symbol.asyncDispose]: async () => void (await place.stop()) }
      const { store, close } = await openStore(urlOf(place.url))
      await store.migrate?.()
      const once = createOnce({ store: store as MemoryStore, scope: 'b' })
      const journal = startJournal()
      const entries = entriesOf(once, store, journal)
      try {
        // Scopes that sort around each other, and ids that no collation may fold into one.
        const ids = ['A', 'a', 'k 1', 'k-07', 'k-7', 'zé', '\u{FF5E}', '\u{1F600}']
        for (const scope of ['a', 'b', 'b/', 'b/x', 'ü']) for (const id of ids) await once.run({ scope, id }, () => 1)
        expect(await entries.scopes()).toEqual(['a', 'b', 'b/', 'b/x', 'ü'])
        const first = await entries.page({})
        const last = first.rows.at(-1)!
        const second = await entries.page({ after: { scope: last.scope, id: last.id } })
        expect([first.rows.length, first.more, second.rows.length, second.more]).toEqual([25, true, 15, false])
        expect(new Set([...first.rows, ...second.rows].map(({ scope, id }) => `${scope} ${id}`)).size).toBe(40)
        const found = await entries.find('k-', undefined)
        expect(found.rows.filter(({ scope }) => scope === 'b').map(({ id }) => id)).toEqual(['k-07', 'k-7'])
        expect(found.rows).toHaveLength(10)
        expect((await entries.find('A', 'a')).rows.map(({ id }) => id)).toEqual(['A'])
        expect(await entries.waiting()).toEqual({ running: 0, abandoned: 0, open: 0 })
        const key = { scope: 'b', id: 'zé' }
        const life = await entries.life(key)
        expect(life.entry).toMatchObject({ ...key, state: 'settled', outcome: { kind: 'value', bytes: 1 } })
        expect(life.timeline.map(({ what }) => what).slice(0, 2)).toEqual(['claimed', 'settled'])
        expect(await entries.reveal(key)).toEqual({ text: '1', cut: false })
        expect(await entries.mend(key, { action: 'forget' }, 'a test')).toBeUndefined()
        expect((await entries.life(key)).timeline.map(({ what }) => what)).toContain('forgotten manually')
        if (hasLedger(store)) {
          const mail = once.operation('mail', { version: 1 }, (op) =>
            op.step('send', { run: () => Promise.reject(new InDoubtError('no answer')), inDoubt: 'park' }),
          )
          await mail.run('m-1', 'a letter').catch(() => undefined)
          const rows = await operationsSection(once, store).rows()
          const subject = { scope: 'b/operations/mail', id: 'm-1' }
          const cells = ['m-1 (b/operations/mail)', 'waiting', 'send began', 'send', '1']
          expect(rows).toEqual([{ cells, key: subject, counts: ['inDoubt'] }])
          await expect(entries.mend(subject, { action: 'resume' }, 'too early')).rejects.toThrow(
            'It is waiting, not parked',
          )
          await expect(mail.run('m-1', 'a letter')).rejects.toMatchObject({ code: 'PARKED' })
          expect((await entries.life(subject)).operation).toEqual({
            state: 'parked',
            direction: 'forward',
            inDoubt: ['send'],
          })
          expect(await entries.mend(subject, { action: 'resume' }, 'a test')).toMatchObject({ state: 'open' })
          expect(await mail.status('m-1')).toMatchObject({ state: 'waiting', failures: 0 })
          const resumed = (await entries.life(subject)).timeline
          expect(resumed.find(({ what }) => what === 'resumed manually')?.detail).toContain('Reason: resume: a test')
          expect(resumed.find(({ what }) => what === 'step')?.detail).toBe('Step send: began.')
          await expect(entries.mend(subject, { action: 'resume' }, 'again')).rejects.toThrow('nothing was changed')
        }
      } finally {
        journal.close()
        await once.close()
        await close()
      }
    })
  })
}

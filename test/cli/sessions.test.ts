// `onceonly sessions` as an operator uses it: a client is stuck, is looked at, and its session is closed.
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { openStore } from '../../src/cli/open-store.ts'
import { key } from '../../src/core/key.ts'
import type { Inspectable, Store } from '../../src/core/store.ts'
import { createSessions, type Sessions } from '../../src/sessions/sessions.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import { needs } from '../servers/needs.ts'
import { startRedis } from '../servers/redis.ts'
import { type Ended, makeFolder, onceonly } from './program.ts'

type Ask = (...args: string[]) => Promise<Ended>

// Three numbers of a window of three: the first is acknowledged, one is answered and one failed.
async function stuckTill(sessions: Sessions): Promise<number> {
  const { session, epoch } = await sessions.register('till-7')
  const send = (sequence: number, acknowledged: number, effect: () => string): Promise<unknown> =>
    sessions.apply({ session, epoch, sequence, acknowledged }, effect).catch((error: Error) => error.message)
  for (const sequence of [1, 2, 3]) await send(sequence, 0, () => 'sold')
  await send(4, 1, () => {
    throw new Error('no printer')
  })
  return epoch
}

async function lookAndClose(
  ask: Ask,
  sessions: Sessions,
  store: Store & Inspectable,
  described: string,
): Promise<void> {
  expect(await ask('list')).toMatchObject({ code: 0, out: 'No such session.\n' })
  const epoch = await stuckTill(sessions)
  for (const client of ['till-8', 'till-9']) await sessions.register(client)

  const listed = (await ask('list')).out
  expect(listed).toMatch(/SCOPE +CLIENT +STATE +EPOCH +FLOOR +LAST +WINDOW +LEASE ENDS\n/)
  expect(listed).toMatch(new RegExp(`tills/sessions +till-7 +open +${epoch} +1 +4 +3 of 3 +20\\S+Z \\(in \\d+ h`))
  const first = await ask('list', '--limit', '2')
  const [, cursor = ''] = /There are more: --after (\S+)/.exec(first.out) ?? []
  expect(first.out).not.toContain('till-9')
  const second = JSON.parse((await ask('list', '--after', cursor, '--json')).out) as object
  expect(second).toMatchObject({
    sessions: [{ scope: 'tills/sessions', session: 'till-9', state: 'open' }],
    next: null,
  })
  const chosen = (await ask('list', '--scope', 'tills/sessions', '--client', 'till-8')).out
  expect(chosen).toMatch(/till-8/)
  expect(chosen).not.toMatch(/till-[79]/)

  const { code, out } = await ask('show', 'tills/sessions', 'till-7')
  expect(code).toBe(0)
  expect(out).toMatch(/Floor +1: the client has acknowledged it and all below it\n/)
  expect(out).toMatch(/Window +3 of 3: full\. Requests above 4 get WINDOW_EXCEEDED until the client acknowledges/)
  expect(out).toMatch(
    /Lease +20\S+Z \(in \d+ h[^\n]*\)\n +Answered +2-3: kept[^\n]*\n +Unanswered +4: they run now, or failed/,
  )
  expect(out).toContain(`onceonly sessions close tills/sessions till-7 --epoch ${epoch} --reason TEXT ${described}`)
  expect(JSON.parse((await ask('show', 'tills/sessions', 'till-7', '--json')).out)).toMatchObject({
    scope: 'tills/sessions',
    session: 'till-7',
    state: 'open',
    epoch,
    floor: 1,
    last: 4,
    window: 3,
    requests: 3,
    answered: [2, 3],
    unanswered: [4],
  })
  const gone = await ask('show', 'tills/sessions', 'till-1')
  expect([gone.code, gone.error]).toEqual([3, expect.stringContaining('no session tills/sessions / till-1')])

  const named = ['close', 'tills/sessions', 'till-7']
  const older = await ask(...named, '--epoch', String(epoch - 1), '--reason', 'stolen')
  expect([older.code, older.error]).toEqual([1, expect.stringContaining(`has epoch ${epoch}: nothing was changed`)])
  const closed = await ask(...named, '--reason', 'stolen')
  expect([closed.code, closed.out]).toEqual([0, expect.stringContaining('tills/sessions / till-7 is closed')])
  const late = sessions.apply({ session: 'till-7', epoch, sequence: 5, acknowledged: 4 }, () => 'sold')
  await expect(late).rejects.toMatchObject({ code: 'SESSION_EXPIRED' })
  expect(await store.audit(key('tills/sessions', 'till-7'))).toMatchObject([{ reason: 'close: stolen' }])
  const again = await ask(...named, '--reason', 'stolen', '--json')
  expect([again.code, again.error]).toEqual([1, expect.stringContaining('is closed already: nothing was changed')])
  expect(JSON.parse(again.out)).toMatchObject({ changed: false, session: { state: 'closed' } })
  expect((await ask('show', 'tills/sessions', 'till-7')).out).toMatch(
    /State +closed[^]*Answered +none[^]*registers again/,
  )
}

test('on SQLite: migrated, listed, shown, closed', async () => {
  using folder = makeFolder()
  const path = join(folder.path, 'tills.db')
  const store = sqliteStore({ path })
  await store.migrate()
  const ask: Ask = (...args) => onceonly(['sessions', ...args, '--store', `sqlite:${path}`])
  const untold = await ask('list')
  expect(untold).toMatchObject({ code: 1, out: '' })
  expect(untold.error).toContain(`onceonly migrate --sessions --store sqlite:${path}`)
  expect(await onceonly(['migrate', '--sessions', '--store', `sqlite:${path}`])).toMatchObject({ code: 0 })
  const sessions = createSessions({ store, scope: 'tills', window: 3 }) as Sessions
  await lookAndClose(ask, sessions, store, `--store sqlite:${path}`)
  store.close()
})

needs('redis').test('on Redis: listed, shown, closed', async () => {
  const server = await startRedis({ config: { appendonly: 'yes' } })
  const { store, close } = await openStore(server.url)
  try {
    const ask: Ask = (...args) => onceonly(['sessions', ...args, '--store', server.url])
    const sessions = createSessions({ store, scope: 'tills', window: 3 }) as Sessions
    const epoch = await stuckTill(sessions)
    expect((await ask('list', '--client', 'till')).out).toMatch(new RegExp(`till-7 +open +${epoch} +1 +4 +3 of 3 `))
    expect((await ask('show', 'tills/sessions', 'till-7')).out).toMatch(/Answered +2-3:[^\n]*\n +Unanswered +4:/)
    expect(await ask('close', 'tills/sessions', 'till-7', '--reason', 'stolen')).toMatchObject({ code: 0, error: '' })
    expect(await sessions.show('till-7')).toMatchObject({ state: 'closed', epoch })
  } finally {
    await close()
    await server.stop()
  }
})

test('a store that keeps no sessions says so', async () => {
  using folder = makeFolder()
  const ended = await onceonly(['sessions', 'list', '--store', 'dynamodb:tills?region=eu-central-1'], {
    cwd: folder.path,
  })
  expect(ended.code).toBe(1)
  expect(ended.error).toContain('The dynamodb store keeps no sessions')
})

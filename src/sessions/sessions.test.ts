// Sessions in memory and on SQLite. The servers are in test/sessions/sessions.test.ts.

import { describe, expect, test } from 'vitest'
import { startSqliteMessages } from '../../test/messages/grounds.ts'
import { testSessions } from '../../test/sessions/session-cases.ts'
import { runAgainstModel } from '../../test/sessions/against-model.ts'
import { memorySessions, sqlSessions } from '../../test/sessions/session-subject.ts'
import type { SessionsGround } from '../../test/sessions/session-subject.ts'
import { memoryStore } from '../stores/memory.ts'
import { memoryOf, offerMemory } from '../clients/memory-place.ts'
import { createSessions, sessionsByHand } from './sessions.ts'

const grounds: Readonly<Record<string, () => Promise<SessionsGround>>> = {
  'in memory': async () => memorySessions(),
  'on SQLite': async () => sqlSessions(await startSqliteMessages()),
}

for (const [where, start] of Object.entries(grounds)) {
  describe(where, () => {
    const trying = testSessions(start, { network: false })

    test('random calls: every answer and all that is stored is what the model has', async () => {
      const runs = where === 'in memory' ? 40 : 3
      for (let seed = 1; seed <= runs; seed++) await trying((subject) => runAgainstModel(subject, seed, 60))
    })
  })
}

test('wrong options are refused by name', () => {
  const store = memoryStore()
  const refused: readonly (readonly [given: object, words: RegExp])[] = [
    [{ window: 0 }, /window to be an integer from 1 to 10000, got 0/],
    [{ window: 10_001 }, /window to be an integer from 1 to 10000/],
    [{ window: 1.5 }, /window to be an integer/],
    [{ leaseMs: 0 }, /leaseMs to be a positive integer/],
    [{ strict: 'yes' }, /strict to be true or false/],
    [{ scope: '' }, /scope/],
    [{ scope: 'x'.repeat(250) }, /scope/],
    [{ lease: 5 }, /unknown option "lease", did you mean "leaseMs"/],
    [{ store: {} }, /store to be an object with the methods/],
  ]
  for (const [given, words] of refused) {
    expect(() => createSessions({ store, scope: 'tills', ...given } as never)).toThrow(words)
  }
  const unable = { ...store, name: 'homemade' }
  expect(() => createSessions({ store: unable, scope: 'tills' })).toThrow(/homemade store keeps no sessions/)
})

test('tables that are missing are an error that says which call creates them', async () => {
  const ground = await startSqliteMessages()
  const { store } = await ground.openStore()
  const sessions = createSessions({ store, scope: 'tills' })
  await expect(sessions.register('till-7')).rejects.toMatchObject({
    code: 'SCHEMA_MISSING',
    message: expect.stringContaining('await sessions.migrate()') as string,
  })
  expect(sessions.schema()).toContain('onceonly_session_requests')
  await ground[Symbol.asyncDispose]()
})

test('a session whose closing cannot be put on record stays open', async () => {
  const store = memoryStore()
  const sessions = createSessions({ store, scope: 'tills' })
  await sessions.register('till-7')
  const mend = (): Promise<never> => Promise.reject(new Error('the audit trail is full'))
  const withoutAudit = offerMemory({ ...store, mend }, memoryOf(store)!)
  const closed = sessionsByHand(withoutAudit).close({ scope: 'tills/sessions', session: 'till-7' }, 'stolen')
  await expect(closed).rejects.toThrow('the audit trail is full')
  expect(await sessions.show('till-7')).toMatchObject({ state: 'open' })
})

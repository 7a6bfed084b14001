// The cases of sessions on every SQL server. Memory and SQLite are in src/sessions/sessions.test.ts.
import { afterAll, beforeAll, test } from 'vitest'
import { grounds } from '../messages/grounds.ts'
import { needs } from '../servers/needs.ts'
import { sessionCases } from './session-cases.ts'
import { sessionSubject, sqlSessions, type SessionsGround } from './session-subject.ts'

for (const { name, server, start } of grounds) {
  if (server === undefined) continue
  needs(server, { ours: true }).describe(`sessions on ${name}`, () => {
    let ground: SessionsGround
    beforeAll(async () => {
      ground = sqlSessions(await start())
    })
    afterAll(() => ground[Symbol.asyncDispose]())
    for (const [what, check] of Object.entries(sessionCases)) {
      test(what, async () => {
        const subject = await sessionSubject(ground)
        try {
          await check(subject)
        } finally {
          await subject.close()
        }
      })
    }
  })
}

// The cases of the inbox on every SQL server. SQLite is in src/messages/inbox.test.ts.
import { afterAll, beforeAll, test } from 'vitest'
import { needs } from '../servers/needs.ts'
import { grounds, type MessagesGround } from './grounds.ts'
import { inboxCases } from './inbox-cases.ts'
import { inboxSubject } from './inbox-subject.ts'

for (const { name, server, start } of grounds) {
  if (server === undefined) continue
  needs(server, { ours: true }).describe(`inbox on ${name}`, () => {
    let ground: MessagesGround
    beforeAll(async () => {
      ground = await start()
    })
    afterAll(() => ground[Symbol.asyncDispose]())
    for (const [what, check] of Object.entries(inboxCases)) {
      test(what, async () => {
        const subject = await inboxSubject(ground)
        try {
          await check(subject)
        } finally {
          await subject.close()
        }
      })
    }
  })
}
